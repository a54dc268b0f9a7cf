"""What a measured engine says of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from srt.core.errors import Busy, Unavailable

FLUSH_TRIES = 50
FLUSH_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """From /server_info or `Engine.server_info`.

    Attributes:
        model_source: the option --model of the server: where its machine finds the tokenizer.
        vocab_size: ids that the engine takes.
        announced: version, and all that the engine announced when it was ready.
    """

    model_source: str
    revision: str | None
    vocab_size: int
    announced: Mapping[str, Any]

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> EngineInfo:
        """Raises:
        Unavailable: the server's engine is not ready, or it is no such server.
        """
        try:
            engine, model = info["engine"], info["config"]["model"]
            if engine is None:
                raise Unavailable(f"the server is {info.get('state')}: it has no engine yet; try again")
            announced = {"version": info["version"], **engine}
            return cls(model["model"], model["revision"], engine["vocab_size"], announced)
        except (LookupError, TypeError) as error:
            raise Unavailable(f"/server_info is none of a twinloop server: {error!r} is missing") from error


async def flush(action: Callable[[], Awaitable[object]]) -> None:
    """Empties a cache; an engine that has just answered may have work for a moment longer.

    Raises:
        Busy: it still has after some seconds.
    """
    for _ in range(FLUSH_TRIES - 1):
        try:
            await action()
            return
        except Busy:
            await asyncio.sleep(FLUSH_PAUSE_SECONDS)
    await action()
