"""In which order waiting requests are tried. A policy is one function and one registry line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from control_loop.aging import Aging
from control_loop.req import Req
from control_loop.waiting_queue import WaitingQueue


class CachedPrefixes(Protocol):
    """What a policy may ask about the tree."""

    def match_length(self, req: Req) -> int:
        """How many tokens of a request are cached now. Cheap while the tree stays as it is."""


Policy = Callable[[Sequence[Req], CachedPrefixes], list[Req]]
"""Waiting requests, in the order in which they came, to the order in which they are tried."""

_SPREAD: Final = 0x9E3779B97F4A7C15
_WORD: Final = 2**64 - 1


def fcfs(waiting: Sequence[Req], prefixes: CachedPrefixes) -> list[Req]:
    """First come, first served."""
    return list(waiting)


def priority(waiting: Sequence[Req], prefixes: CachedPrefixes) -> list[Req]:
    """Highest priority first; among equals first come, first served."""
    return sorted(waiting, key=lambda req: -req.priority)


def lpm(waiting: Sequence[Req], prefixes: CachedPrefixes) -> list[Req]:
    """Longest cached prefix first, which keeps hot prefixes in the tree."""
    return sorted(waiting, key=lambda req: (req.is_new, -prefixes.match_length(req)))


def shortest_prefill_first(waiting: Sequence[Req], prefixes: CachedPrefixes) -> list[Req]:
    """Fewest tokens to compute first: the shortest mean time to a first token."""
    return sorted(waiting, key=lambda req: (req.is_new, len(req.token_ids) - prefixes.match_length(req)))


def lof(waiting: Sequence[Req], prefixes: CachedPrefixes) -> list[Req]:
    """Longest output first: what takes longest starts earliest, so that a batch ends together."""
    return sorted(waiting, key=lambda req: (req.is_new, req.generated - req.max_new_tokens))


def random_order(waiting: Sequence[Req], prefixes: CachedPrefixes) -> list[Req]:
    """In no order that has to do with the requests; the same one in each pass and in each run.

    Source of the scattering: Knuth, "The Art of Computer Programming", vol. 3, 6.4 (multiplicative hashing).
    """
    return sorted(waiting, key=lambda req: (req.is_new, req.arrival * _SPREAD & _WORD))


POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        "fcfs": fcfs,
        "lpm": lpm,
        "lof": lof,
        "shortest-prefill-first": shortest_prefill_first,
        "random": random_order,
        "priority": priority,
    }
)
"""Name -> policy. All but `priority` try requests that have lived before ahead of new ones: somebody reads them."""


def in_order(policy: Policy, waiting: WaitingQueue, aging: Aging, prefixes: CachedPrefixes) -> list[Req]:
    """The order of one pass: first whoever has been overtaken too often, oldest first, then as the policy says.

    A pass stops at the first request that finds no memory. So a request starts, under every policy, after at most
    `MAX_OVERTAKEN` passes that admit a younger one before it, and as many as those that are older need.
    """
    aged = aging.aged(waiting)
    if not aged:
        return policy(list(waiting), prefixes)
    first = set(aged)
    return [*aged, *policy([req for req in waiting if req not in first], prefixes)]
