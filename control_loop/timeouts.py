"""Requests that have waited or run for too long end, and say so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from control_loop.parts import LoopParts
from control_loop.req import Phase, Req
from srt.core.config import ScheduleOptions
from srt.core.errors import TimedOut
from srt.core.messages import FinishReason

CHECK_SECONDS: Final = 0.1
"""Time between two looks at all requests."""


class Timeouts:
    """Thread: control. Times count on the loop's clock, in seconds.

    Waiting counts anew each time a request is put into the queue; running counts from its first admission, whatever
    happens to it since.
    """

    def __init__(self, options: ScheduleOptions, parts: LoopParts) -> None:
        self._waiting = options.waiting_timeout
        self._running = options.running_timeout
        self._parts = parts
        self._next_look = 0.0

    def advance(self, live: Iterable[Req]) -> bool:
        """Ends whose time is over; True when there was one."""
        if self._waiting is None and self._running is None:
            return False
        now = self._parts.clock()
        if now < self._next_look:
            return False
        self._next_look = now + CHECK_SECONDS
        late = [(req, error) for req in live if (error := self._judge(req, now)) is not None]
        for req, error in late:
            self._parts.outputs.abort(req, None, FinishReason("error", error=error.info()))
        return bool(late)

    def _judge(self, req: Req, now: float) -> TimedOut | None:
        if req.finish is not None:
            return None
        if self._waiting is not None and req.phase is Phase.WAITING and now - req.queued_at >= self._waiting:
            return TimedOut(
                f"the request waited for {self._waiting:g} s, which is --waiting-timeout; try again later"
            )
        if self._running is not None and req.started_at is not None and now - req.started_at >= self._running:
            return TimedOut(
                f"the request has run for {self._running:g} s, which is --running-timeout; ask for fewer tokens"
            )
        return None

    def __repr__(self) -> str:
        return f"Timeouts(waiting {self._waiting}, running {self._running})"
