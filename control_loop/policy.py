"""In which order waiting requests are tried. A policy is one function and one registry line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from control_loop.req import Req

MatchLength = Callable[[Req], int]
"""How many tokens of a request are cached now; not free of cost."""

Policy = Callable[[Iterable[Req], MatchLength], Sequence[Req]]

MAX_OVERTAKEN = 32
"""A request that others have overtaken in this many passes is tried first, however hot they are."""


def fcfs(waiting: Iterable[Req], match_length: MatchLength) -> Sequence[Req]:
    """First come, first served."""
    return list(waiting)


def lpm(waiting: Iterable[Req], match_length: MatchLength) -> Sequence[Req]:
    """Longest cached prefix first, which keeps hot prefixes in the tree; among equals the oldest.

    A cold request starts after at most `MAX_OVERTAKEN` passes that admit somebody else before it.
    """
    reqs = list(waiting)
    aged = [req for req in reqs if req.overtaken >= MAX_OVERTAKEN]
    fresh = [req for req in reqs if req.overtaken < MAX_OVERTAKEN]
    fresh.sort(key=lambda req: -match_length(req))
    return [*aged, *fresh]


POLICIES: dict[str, Policy] = {"fcfs": fcfs, "lpm": lpm}


def note_overtaking(waiting: Iterable[Req], admitted: Sequence[Req]) -> None:
    """Counts, for each request still waiting, the passes in which a younger one was admitted."""
    if not admitted:
        return
    youngest = max(req.arrival for req in admitted)
    for req in waiting:
        if req.arrival < youngest:
            req.overtaken += 1
