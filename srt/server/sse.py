"""Server-sent events, and noticing that a client has gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

import orjson
from fastapi import Response
from starlette.types import Receive, Scope, Send

from srt.core.errors import Aborted
from srt.server.generation import Generation

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


class ClientGone(Aborted):
    """Nobody is there to read the answer."""


def event(body: Any) -> bytes:
    """One event with a JSON body."""
    return b"data: " + orjson.dumps(body) + b"\n\n"


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Does `work`, and cancels it as soon as the client goes away. The request's body must have been read.

    Raises:
        ClientGone: before the work was done.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone("the client has gone")
        return task.result()
    finally:
        for unfinished in (task, gone):
            unfinished.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await unfinished


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Thread: event loop. A streamed answer: status and headers are sent once the engine has accepted the request.

    A refusal is raised, so it becomes an ordinary error response. A writer that the client slows down finds all that
    has arrived meanwhile in one turn, and sends it as one chunk.

    Args:
        generation: not entered yet.
        events: turns the entered generation into chunks of complete events.
    """

    media_type = "text/event-stream"

    def __init__(
        self, generation: Generation, events: Callable[[Generation], AsyncGenerator[bytes, None]]
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGone):
            await while_connected(receive, self._write(send))

    async def _write(self, send: Send) -> None:
        async with self._generation as generation:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            async with contextlib.aclosing(self._events(generation)) as chunks:
                async for chunk in chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})
