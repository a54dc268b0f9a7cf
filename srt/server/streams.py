"""One request as its reader sees it: accepted or refused, tokens as they come, one finish."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from srt.core.errors import ErrorInfo, TwinloopError
from srt.core.messages import FinishReason


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """All that arrived for one request since the last look. The last batch, and no other, has a `finish`."""

    token_ids: list[int]
    cached_tokens: int
    finish: FinishReason | None
    num_retractions: int


class Stream:
    """Thread: event loop. The engine's answer to one request: accepted or refused, tokens, one finish."""

    def __init__(self, key: int, rid: str, group: StreamGroup) -> None:
        self.key = key
        self.rid = rid
        self.group = group
        self.accepted = False
        self.refusal: ErrorInfo | None = None
        self.submitted_at = time.monotonic()
        self.last_token_at: float | None = None
        self._token_ids: list[int] = []
        self._cached_tokens = 0
        self._num_retractions = 0
        self._finish: FinishReason | None = None
        self._finish_taken = False

    @property
    def ended(self) -> bool:
        """No more will arrive."""
        return self._finish is not None or self.refusal is not None

    @property
    def num_unread(self) -> int:
        return len(self._token_ids)

    def take(self) -> TokenBatch | None:
        """Everything unread as one batch, None when there is nothing."""
        finish = None if self._finish_taken else self._finish
        if not self._token_ids and finish is None:
            return None
        token_ids, self._token_ids = self._token_ids, []
        self._finish_taken = finish is not None
        return TokenBatch(token_ids, self._cached_tokens, finish, self._num_retractions)

    def accept(self) -> None:
        self.accepted = True
        self.group.changed.set()

    def refuse(self, error: ErrorInfo) -> None:
        self.refusal = error
        self.group.changed.set()

    def push(self, token_ids: list[int], cached_tokens: int) -> None:
        self._token_ids += token_ids
        self._cached_tokens = cached_tokens
        self.group.changed.set()

    def finish(self, reason: FinishReason, num_retractions: int = 0) -> None:
        self._finish = reason
        self._num_retractions = num_retractions
        self.group.changed.set()

    def __repr__(self) -> str:
        state = "ended" if self.ended else "accepted" if self.accepted else "sent"
        return f"Stream(key={self.key}, rid={self.rid!r}, {state}, {self.num_unread} unread tokens)"


class StreamGroup:
    """Thread: event loop. The streams of one submit, which are waited for together."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.changed = asyncio.Event()

    async def accepted(self) -> None:
        """Waits until the engine has accepted all of them.

        Raises:
            TwinloopError: the first refusal. The caller releases the group.
        """
        while True:
            self.changed.clear()
            for stream in self.streams:
                if stream.refusal is not None:
                    raise stream.refusal.to_exception()
            if all(stream.accepted or stream.ended for stream in self.streams):
                self.changed.set()  # tokens may have come along with the acceptance
                return
            await self.changed.wait()

    async def wait(self) -> None:
        """Waits until something arrived for any of the streams."""
        await self.changed.wait()
        self.changed.clear()


class Replies:
    """Thread: event loop. Single answers of the engine that somebody waits for, by key."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def expect(self, key: int) -> asyncio.Future[Any]:
        reply = self._waiting[key] = asyncio.get_running_loop().create_future()
        return reply

    def answer(self, key: int, reply: object) -> None:
        """Nobody may be waiting any more."""
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def fail(self, error: TwinloopError) -> None:
        """None of them will come."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)

    def forget(self, key: int) -> None:
        self._waiting.pop(key, None)

    def __repr__(self) -> str:
        return f"Replies({len(self._waiting)} expected)"
