"""Both loops in the client's own process: for tests and for debugging. `Engine(in_process=True)`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from srt.core.config import Config
from srt.core.errors import EngineFailure, TwinloopError
from srt.core.messages import ClientMessage, EngineMessage
from srt.core.port import LocalPort
from srt.core.queues import Doorbell
from srt.server.engine_client import EngineClient
from srt.server.engine_core import EngineCore

STOP_SECONDS = 10.0


class LoopPort(LocalPort):
    """A port whose client is an event loop. Thread: `send` and what reads control's, `submit` and `close` any."""

    def __init__(
        self, doorbell: Doorbell, loop: asyncio.AbstractEventLoop, on_message: Callable[[EngineMessage], None]
    ) -> None:
        super().__init__(doorbell)
        self._loop = loop
        self._on_message = on_message

    def send(self, message: EngineMessage) -> None:
        self._loop.call_soon_threadsafe(self._on_message, message)


class InProcessEngine:
    """Thread: event loop. Runs the loops on threads of this process, connected to the client.

    Args:
        config: the engine's options.
        client: told when the engine can serve, and of its death.
    """

    def __init__(self, config: Config, client: EngineClient) -> None:
        self._config = config
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Runs the engine until `stop`.

        Raises:
            ModelError, ConfigError: it cannot start.
            EngineFailure: one of its loops raised.
        """
        port: LoopPort | None = None

        def make_port(doorbell: Doorbell) -> LoopPort:
            nonlocal port
            port = LoopPort(doorbell, self._loop, self._client.on_message)
            return port

        core = await asyncio.to_thread(EngineCore.build, self._config, make_port, self._on_failure)
        assert port is not None
        core.start()
        self._client.connect(_LocalLink(port), core.ready)
        try:
            await self._ended
        finally:
            port.close()
            await asyncio.to_thread(core.stop, STOP_SECONDS)
            self._client.disconnect(EngineFailure("the engine was shut down"))

    async def stop(self) -> None:
        """Lets `run` end."""
        if not self._ended.done():
            self._ended.set_result(None)

    def _on_failure(self, failure: BaseException) -> None:
        error = (
            failure
            if isinstance(failure, TwinloopError)
            else EngineFailure(f"a loop of the engine failed: {failure!r}")
        )
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: TwinloopError) -> None:
        self._client.disconnect(error)
        if not self._ended.done():
            self._ended.set_exception(error)


class _LocalLink:
    def __init__(self, port: LoopPort) -> None:
        self._port = port

    def send(self, message: ClientMessage) -> None:
        self._port.submit(message)

    def close(self) -> None:
        self._port.close()
