"""Emptying the prefix cache: never under a request, and never under a launched step."""

from __future__ import annotations

from collections.abc import Callable

from control_loop.parts import LoopParts
from srt.core.errors import Busy
from srt.core.messages import FlushReply, FlushReq
from srt.core.step_messages import Fence


class CacheFlush:
    """Thread: control. Flushes that were asked for and have not been answered.

    A flush begins when there is no work: a `Fence` goes to compute, nobody is admitted until it is acknowledged, then
    the tree is emptied. While the engine is paused, requests that wait are no work: they hold nothing of the tree.
    """

    def __init__(self, parts: LoopParts, is_paused: Callable[[], bool]) -> None:
        self._parts = parts
        self._is_paused = is_paused
        self._asked: list[tuple[FlushReq, float]] = []
        self._fence: int | None = None

    @property
    def is_draining(self) -> bool:
        """The tree is about to be emptied: nobody may lean on it."""
        return self._fence is not None

    @property
    def is_owed(self) -> bool:
        """Somebody waits for an answer."""
        return bool(self._asked)

    @property
    def deadline(self) -> float | None:
        """When the first of them must be refused, on the loop's clock."""
        return min((deadline for _, deadline in self._asked), default=None)

    def ask(self, message: FlushReq) -> None:
        self._asked.append((message, self._parts.clock() + message.timeout))
        self.advance()

    def advance(self) -> bool:
        """Begins what can begin and refuses what has waited too long; True when either happened."""
        if not self._asked or self.is_draining:
            return False
        if self._parts.is_quiet and (self._is_paused() or not len(self._parts.waiting)):
            self._fence = self._parts.commands.send(Fence)
            return True
        now = self._parts.clock()
        late = [message for message, deadline in self._asked if deadline <= now]
        for message in late:
            self._parts.port.send(FlushReply(message.key, error=self._busy(message).info()))
        self._asked = [asked for asked in self._asked if asked[1] > now]
        return bool(late)

    def on_fence(self, fence: int) -> None:
        """Compute has drained: every launched step has reported."""
        if fence != self._fence:
            return
        self._fence = None
        asked, self._asked = self._asked, []
        flushed = self._parts.manager.flush() * self._parts.slots.page_size
        for message, _ in asked:
            self._parts.port.send(FlushReply(message.key, flushed))

    def _busy(self, message: FlushReq) -> Busy:
        waited = f" after {message.timeout:g} s" if message.timeout else ""
        return Busy(
            f"cannot flush the cache{waited}: {self._parts.slots.num_in_use} requests run, "
            f"{len(self._parts.waiting)} wait; try again when they have ended, or give a longer timeout"
        )

    def __repr__(self) -> str:
        return f"CacheFlush({len(self._asked)} asked, {'draining' if self.is_draining else 'not draining'})"
