"""Nobody is overtaken for ever: who has been passed over too often goes first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappush, heappushpop
from itertools import takewhile
from typing import Final

from control_loop.req import Req
from control_loop.waiting_queue import WaitingQueue

MAX_OVERTAKEN: Final = 32
"""A request that younger ones have overtaken in this many passes is tried first, however hot they are."""


class Aging:
    """Thread: control. Who is *aged*: in `MAX_OVERTAKEN` passes somebody younger was admitted while it waited.

    A pass is known by the arrival number of the youngest request that it admitted. Whoever is younger than a request
    arrived after it, so a request that has waited ever since it came is aged when the `MAX_OVERTAKEN` largest of
    these numbers are all above its own: one comparison, nothing to count for each that waits. Those that have lived
    before did not wait all the time; they are few, and are counted one by one in `Req.overtaken`.
    """

    def __init__(self) -> None:
        self._youngest: list[int] = []

    def aged(self, waiting: WaitingQueue) -> list[Req]:
        """The aged among those that wait, oldest first. O(aged + returned)."""
        returned = [req for req in waiting.returned if is_aged(req)]
        new = list(takewhile(self._is_overtaken, waiting.new))
        return sorted([*returned, *new], key=lambda req: req.arrival)

    def note_pass(self, admitted: Sequence[Req], returned: Iterable[Req]) -> None:
        """A pass has admitted these, and `returned` are the requests with earlier lives that still wait."""
        if not admitted:
            return
        for req in admitted:
            if req.is_new and self._is_overtaken(req):
                req.overtaken = MAX_OVERTAKEN
        youngest = max(req.arrival for req in admitted)
        push = heappush if len(self._youngest) < MAX_OVERTAKEN else heappushpop
        push(self._youngest, youngest)
        for req in returned:
            req.overtaken += req.arrival < youngest

    def _is_overtaken(self, req: Req) -> bool:
        """For a request that has waited ever since it came."""
        return len(self._youngest) == MAX_OVERTAKEN and req.arrival < self._youngest[0]

    def __repr__(self) -> str:
        return f"Aging({len(self._youngest)} passes)"


def is_aged(req: Req) -> bool:
    """For a request that is or was admitted: it had been overtaken too often, and must not be again."""
    return req.overtaken >= MAX_OVERTAKEN
