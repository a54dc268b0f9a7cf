"""``twinloop serve``: the HTTP process, from its command line to its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import Sequence
from typing import Any

import uvloop

from compute_loop.models.files import locate_model
from srt.core.config import Config
from srt.server.arguments import parse_config, serve_parser
from srt.server.engine_client import EngineClient
from srt.server.engine_supervisor import EngineSupervisor
from srt.server.frontend import Frontend
from srt.server.http_listener import HttpListener, listen, url_of
from srt.server.http_server import create_app
from srt.server.logs import configure_logging
from srt.server.operations import save_before_end

log = logging.getLogger(__name__)

ABORT_SECONDS = 3.0
"""How long aborted requests may take to say their last word."""


def main(argv: Sequence[str]) -> int:
    """Runs a server until it is told to end; the exit code.

    Raises:
        TwinloopError: as `serve`, or an option or the address is not right.
    """
    config, _ = parse_config(serve_parser(), argv)
    configure_logging(config.server.log_level)
    with (
        listen(config.server.host, config.server.port) as listening,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(serve(config, listening))
    return 0


async def serve(config: Config, listening: socket.socket) -> None:
    """Serves until SIGTERM or SIGINT, then drains. A second signal ends the drain.

    Raises:
        ModelError: the model cannot be found or loaded.
        ConfigError: an option does not fit it.
        EngineFailure: the engine died too often.
    """
    signals = _Signals()
    _say(f"Loading {config.model.model} ...")
    files = await asyncio.to_thread(locate_model, config.model.model, config.model.revision)
    frontend = Frontend.build(config, files)
    supervisor = EngineSupervisor(config, frontend.client)
    listener = HttpListener(create_app(frontend), listening)
    engine = asyncio.create_task(supervisor.run())
    http = asyncio.create_task(listener.run_until_stopped())
    greeting = asyncio.create_task(_greet(frontend, url_of(listening)))
    try:
        await _first(engine, http, signals.first)
        if signals.first.done():
            await _drain(frontend.client, config.server.drain_timeout, signals.second)
            await _save(frontend.client, config, signals.second)
    finally:
        frontend.client.drain()
        greeting.cancel()
        listener.stop()
        await http
        await supervisor.stop()
        await asyncio.wait((engine,))
        await frontend.close()
    await engine


async def _greet(frontend: Frontend, url: str) -> None:
    ready = await frontend.client.wait_ready()
    body = {
        "text": "The capital of France is",
        "sampling_params": {"max_new_tokens": 16, "temperature": 0},
    }
    restored = f", {ready.restored_tokens} tokens of saved cache" if ready.restored_tokens else ""
    _say(
        f"{frontend.model_name} is ready on {url} after {ready.load_seconds:.1f} s: {ready.dtype} on {ready.device}, "
        f"{ready.max_total_tokens} tokens of KV memory, context {ready.context_length}{restored}.\n"
        f"Try:  curl {url}/generate -H 'content-type: application/json' -d '{json.dumps(body)}'\n"
        f"OpenAI clients: base_url {url}/v1 (/v1/chat/completions, /v1/completions)"
    )


async def _drain(client: EngineClient, seconds: float, hurry: asyncio.Future[None]) -> None:
    """Refuses what is new, waits for what runs, and aborts what is left."""
    client.drain()
    if client.num_live:
        _say(f"Ending: {client.num_live} requests have {seconds:g} s to finish")
    drained = asyncio.ensure_future(client.drained())
    await _first(drained, hurry, seconds=seconds)
    if not drained.done():
        log.warning("aborting %d requests that are not done", client.num_live)
        client.abort_all()
        await _first(drained, seconds=ABORT_SECONDS)
    drained.cancel()


async def _save(client: EngineClient, config: Config, hurry: asyncio.Future[None]) -> None:
    if config.cache.cache_dir is None or hurry.done():
        return
    saving = asyncio.ensure_future(save_before_end(client, config.server.cache_save_timeout))
    await _first(saving, hurry)
    saving.cancel()


async def _first(*waited: asyncio.Future[Any], seconds: float | None = None) -> None:
    await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


class _Signals:
    """Thread: event loop. The first and the second request to end."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.first: asyncio.Future[None] = loop.create_future()
        self.second: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        for future in (self.first, self.second):
            if not future.done():
                future.set_result(None)
                return


def _say(text: str) -> None:
    """For the person at the terminal; logs go to stderr. Nobody there is no reason to end."""
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)
