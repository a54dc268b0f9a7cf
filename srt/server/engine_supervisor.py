"""The parent's half of the engine process: starts it, watches it, ends it, starts it again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import srt.server
from srt.core.config import Config
from srt.core.errors import EngineFailure, TwinloopError
from srt.core.messages import EngineMessage, EngineReady, Heartbeat
from srt.server.engine_client import EngineClient
from srt.server.engine_spec import EngineSpec, decode_last_words, encode_spec
from srt.server.ipc import ZmqLink

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long an engine that was told to end may take before it is killed."""

FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 10.0
MIN_TICK_SECONDS = 0.05

HEALTHY_SECONDS = 600.0
"""An engine that served this long was healthy: the count of restarts starts anew."""


class EngineProcess:
    """Thread: event loop. One child process with both loops, from its start to its end.

    The child is bound to the thread that starts it (it dies with that thread): it must be one that lasts.
    `exited` is done as soon as the process has ended, however it ended, and has been reaped.
    """

    def __init__(self, config: Config, link: ZmqLink) -> None:
        self.link = link
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[TwinloopError] = self._loop.create_future()
        self._kill_reason: TwinloopError | None = None
        self._last_words, child_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._popen = _spawn(EngineSpec(config, link.address, os.getpid(), child_end), child_end)
        finally:
            os.close(child_end)
        self._pidfd = os.pidfd_open(self._popen.pid)
        self._loop.add_reader(self._pidfd, self._on_exit)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def kill(self, reason: TwinloopError | None = None) -> None:
        """Ends it now, whatever it is doing; `reason` then is why it `exited`."""
        if not self.exited.done():
            self._kill_reason = self._kill_reason or reason
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def stop(self, seconds: float) -> None:
        """Asks it to end, and kills it after `seconds`."""
        if not self.exited.done():
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
            done, _ = await asyncio.wait([self.exited], timeout=seconds)
            if not done:
                log.warning("the engine process did not end within %g s: killing it", seconds)
                self.kill()
        await self.exited

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        code = self._popen.wait()
        os.close(self._pidfd)
        words = _read_all(self._last_words)
        os.close(self._last_words)
        self.exited.set_result(self._kill_reason or _cause_of_death(words, code))

    def __repr__(self) -> str:
        return f"EngineProcess(pid={self.pid}, {'ended' if self.exited.done() else 'running'})"


class EngineSupervisor:
    """Thread: event loop. Keeps one engine process alive, and the client connected to it.

    Args:
        config: handed to every engine.
        client: told of every engine that can serve, and of its death.
    """

    def __init__(self, config: Config, client: EngineClient) -> None:
        self._config = config
        self._client = client
        self._process: EngineProcess | None = None
        self._ready: asyncio.Future[EngineReady] | None = None
        self._num_signs = 0
        self._restarts = 0
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The running engine process."""
        return self._process.pid if self._process is not None else None

    @property
    def num_restarts(self) -> int:
        return self._restarts

    async def run(self) -> None:
        """Runs engines until `stop`.

        Raises:
            ModelError: the first engine cannot load its model.
            ConfigError: the first engine cannot run with its options.
            EngineFailure: `max_restarts` engines died one after the other.
        """
        served_before = False
        while not self._stopping.is_set():
            error, served_for = await self._run_engine()
            if self._stopping.is_set():
                return
            if not served_before and served_for is None:
                raise error
            served_before = True
            if served_for is not None and served_for > HEALTHY_SECONDS:
                self._restarts = 0
            await self._back_off(error)

    async def stop(self) -> None:
        """Ends the engine for good; `run` returns."""
        self._stopping.set()
        if self._process is not None:
            await self._process.stop(STOP_SECONDS)

    async def _back_off(self, error: TwinloopError) -> None:
        limit = self._config.server.max_restarts
        if self._restarts >= limit:
            raise EngineFailure(
                f"the engine died {self._restarts + 1} times, --max-restarts is {limit}: {error.message}"
            )
        seconds = min(FIRST_BACKOFF_SECONDS * 2**self._restarts, MAX_BACKOFF_SECONDS)
        self._restarts += 1
        log.warning("starting a new engine in %g s (restart %d of %d)", seconds, self._restarts, limit)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _run_engine(self) -> tuple[TwinloopError, float | None]:
        """One engine from start to death: why it died, and how long it served (None: it never could)."""
        link = ZmqLink(self._on_message)
        ready = self._ready = asyncio.get_running_loop().create_future()
        served_at: float | None = None
        process = self._process = EngineProcess(self._config, link)
        watchdog = asyncio.create_task(self._watch(process))
        try:
            first: list[asyncio.Future[Any]] = [ready, process.exited]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not process.exited.done():
                served_at = time.monotonic()
                self._client.connect(link, ready.result())
            error = await asyncio.shield(process.exited)
        finally:
            watchdog.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watchdog
            process.kill()
            link.close()
            self._process = None
        if not self._stopping.is_set() and served_at is not None:
            log.error("%s", error.message)
        self._client.disconnect(error)
        return error, None if served_at is None else time.monotonic() - served_at

    def _on_message(self, message: EngineMessage) -> None:
        self._num_signs += 1
        if isinstance(message, EngineReady):
            assert self._ready is not None
            self._ready.set_result(message)
        elif isinstance(message, Heartbeat):
            if message.waiting_seconds > self._timeout:
                self._kill(f"a step of the engine has given no result for {message.waiting_seconds:.0f} s")
        else:
            self._client.on_message(message)

    @property
    def _timeout(self) -> float:
        return self._config.schedule.watchdog_timeout

    async def _watch(self, process: EngineProcess) -> None:
        """Kills an engine that owes something and gives no sign of life.

        Silence is counted in ticks: if this process was stopped for an hour, the engine was not silent for one.
        """
        tick = max(MIN_TICK_SECONDS, min(1.0, self._timeout / 4))
        silence, heard = 0.0, self._num_signs
        while True:
            await asyncio.sleep(tick)
            if self._num_signs != heard or not self._client.is_owed:
                silence, heard = 0.0, self._num_signs
                continue
            silence += tick
            if silence > self._timeout:
                self._kill(f"the engine has work and gave no sign of life for {silence:.0f} s")

    def _kill(self, reason: str) -> None:
        if self._process is not None:
            self._process.kill(EngineFailure(f"{reason} (--watchdog-timeout {self._timeout:g}): killed"))

    def __repr__(self) -> str:
        return f"EngineSupervisor({self._process}, {self._restarts} restarts)"


def _spawn(spec: EngineSpec, last_words_fd: int) -> subprocess.Popen[bytes]:
    # The packages are found where they were found here, whatever the working directory holds (-P).
    root = str(Path(srt.server.__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "srt.server.engine_process"],
        stdin=subprocess.PIPE,
        stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        pass_fds=(last_words_fd,),
        # A key press in the terminal is for the parent, which then ends its child.
        start_new_session=True,
    )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin:
        child.stdin.write(encode_spec(spec))
    return child


def _read_all(fd: int) -> bytes:
    chunks = []
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(fd, 65536):
            chunks.append(chunk)
    return b"".join(chunks)


def _cause_of_death(words: bytes, code: int) -> TwinloopError:
    if words:
        return decode_last_words(words)
    if code < 0:
        return EngineFailure(f"the engine process was ended by {signal.Signals(-code).name}")
    return EngineFailure(f"the engine process ended with exit code {code}")
