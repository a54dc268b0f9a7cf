"""The bounded queue in which requests wait for memory and a slot."""

from __future__ import annotations

from collections.abc import Iterator

from control_loop.req import Req


class WaitingQueue:
    """Thread: control. First come first served order; those who held memory before come back to the front.

    `max_queued` is kept by the one who pushes; a request that was accepted once always finds room again.
    """

    def __init__(self, max_queued: int) -> None:
        self.max_queued = max_queued
        self._reqs: dict[int, Req] = {}
        self._returned: list[Req] = []

    def push(self, req: Req) -> None:
        self._reqs[req.key] = req

    def push_front(self, req: Req) -> None:
        """For a request that has lived before; among them the oldest arrival goes first."""
        self._returned.append(req)
        self._returned.sort(key=lambda r: r.arrival)

    def remove(self, req: Req) -> None:
        if self._reqs.pop(req.key, None) is None:
            self._returned.remove(req)

    def find(self, key: int) -> Req | None:
        found = self._reqs.get(key)
        return found or next((req for req in self._returned if req.key == key), None)

    def weakest(self) -> Req | None:
        """Of those that have never held memory, the least important; of these the youngest."""
        return min(self._reqs.values(), key=lambda req: (req.priority, -req.arrival), default=None)

    @property
    def new(self) -> Iterator[Req]:
        """Those that have never held memory, oldest first."""
        return iter(self._reqs.values())

    @property
    def returned(self) -> Iterator[Req]:
        """Those that have lived before, oldest first."""
        return iter(self._returned)

    def __iter__(self) -> Iterator[Req]:
        return iter([*self._returned, *self._reqs.values()])

    def __len__(self) -> int:
        return len(self._returned) + len(self._reqs)

    def __repr__(self) -> str:
        return (
            f"WaitingQueue({len(self._reqs)} new, {len(self._returned)} returned, at most {self.max_queued})"
        )
