"""uvicorn on a socket that is bound already, told to end by us and not by signals."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from srt.core.errors import ConfigError

BACKLOG = 2048
GRACE_SECONDS = 5
"""How long a connection whose answer is complete may take to read it, when the server ends."""


class HttpListener(uvicorn.Server):
    """Thread: event loop. `serve` runs until `stop`."""

    def __init__(self, app: ASGIApp, listening: socket.socket) -> None:
        self._listening = listening
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the business of whoever runs the server."""
        yield

    async def run_until_stopped(self) -> None:
        await self.serve(sockets=[self._listening])

    def stop(self) -> None:
        """Takes no more connections, lets the answers under way be read, and ends."""
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: the address is in use or is none of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {host} port {port}: {reason}; choose another with --host and --port"
        ) from error


def url_of(listening: socket.socket) -> str:
    """Where a client on this machine reaches the server."""
    host, port = listening.getsockname()[:2]
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{local}]:{port}" if ":" in local else f"http://{local}:{port}"
