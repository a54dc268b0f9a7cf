"""In which order waiting requests are tried. A policy is one function and one registry line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np

from control_loop.aging import Aging
from control_loop.req import Req
from control_loop.waiting_queue import WaitingQueue
from radix_cache.radix_tree import TreeNode


class CachedPrefixes(Protocol):
    """What a policy may ask about the tree; cheap as long as the tree stays as it is."""

    @property
    def root(self) -> TreeNode: ...

    def match_lengths(self, reqs: Sequence[Req]) -> list[int]:
        """How many tokens of each request are cached now."""

    def match_nodes(self, reqs: Sequence[Req]) -> list[TreeNode]:
        """The deepest node that is wholly on each prompt."""


Order = Callable[[Sequence[Req], CachedPrefixes], list[Req]]
"""Waiting requests, in the order in which they came, to the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`returned_first`: requests that have lived before go ahead of new ones, because somebody reads them."""

    order: Order
    returned_first: bool = True


_SPREAD: Final = 0x9E3779B97F4A7C15
_WORD: Final = 2**64 - 1


def fcfs(waiting: Sequence[Req], prefixes: CachedPrefixes) -> list[Req]:
    """First come, first served."""
    return list(waiting)


def priority(waiting: Sequence[Req], prefixes: CachedPrefixes) -> list[Req]:
    """Highest priority first; among equals first come, first served."""
    return by_rank(waiting, [-req.priority for req in waiting])


def lpm(waiting: Sequence[Req], prefixes: CachedPrefixes) -> list[Req]:
    """Longest cached prefix first, which keeps hot prefixes in the tree."""
    return by_rank(waiting, [-length for length in prefixes.match_lengths(waiting)])


def shortest_prefill_first(waiting: Sequence[Req], prefixes: CachedPrefixes) -> list[Req]:
    """Fewest tokens to compute first: the shortest mean time to a first token."""
    lengths = prefixes.match_lengths(waiting)
    return by_rank(waiting, [len(req.token_ids) - found for req, found in zip(waiting, lengths, strict=True)])


def lof(waiting: Sequence[Req], prefixes: CachedPrefixes) -> list[Req]:
    """Longest output first: what takes longest starts earliest, so that a batch ends together."""
    return by_rank(waiting, [-req.max_new_tokens for req in waiting])


def random_order(waiting: Sequence[Req], prefixes: CachedPrefixes) -> list[Req]:
    """In no order that has to do with the requests; the same one in each pass and in each run.

    Source of the scattering: Knuth, "The Art of Computer Programming", vol. 3, 6.4 (multiplicative hashing).
    """
    return by_rank(waiting, [(req.arrival * _SPREAD & _WORD) >> 1 for req in waiting])


def dfs_weight(waiting: Sequence[Req], prefixes: CachedPrefixes) -> list[Req]:
    """In the order of a walk through the tree, the branch with most requests that wait or run on it first.

    Requests that share a prefix follow each other, so that it is used while it is surely there; between equals the
    branch that was used last, or two groups would take turns. Source: Zheng et al.,
    "SGLang: Efficient Execution of Structured Language Model Programs", 2024 (depth-first order is optimal offline).
    """
    nodes = prefixes.match_nodes(waiting)
    here: dict[TreeNode, list[Req]] = {}
    weights: Counter[TreeNode] = Counter()
    below: dict[TreeNode, set[TreeNode]] = {}
    for req, node in zip(waiting, nodes, strict=True):
        here.setdefault(node, []).append(req)
    for node, reqs in here.items():
        for ancestor in _upwards(node):
            weights[ancestor] += len(reqs)
            if ancestor.parent is not None:
                below.setdefault(ancestor.parent, set()).add(ancestor)
    ordered: list[Req] = []
    stack = [prefixes.root]
    while stack:
        node = stack.pop()
        ordered += here.get(node, ())
        # What is sorted last is popped first.
        stack += sorted(
            below.get(node, ()), key=lambda child: (weights[child] + child.lock_ref, child.last_access)
        )
    return ordered


POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        "fcfs": Policy(fcfs),
        "lpm": Policy(lpm),
        "dfs-weight": Policy(dfs_weight),
        "lof": Policy(lof),
        "shortest-prefill-first": Policy(shortest_prefill_first),
        "random": Policy(random_order),
        "priority": Policy(priority, returned_first=False),
    }
)
"""name -> policy: a new policy is a function above and a line here."""


def by_rank(waiting: Sequence[Req], ranks: Sequence[int]) -> list[Req]:
    """The smallest rank first; among equals as they came."""
    order = np.argsort(np.array(ranks, np.int64), kind="stable")
    return [waiting[place] for place in order.tolist()]


def _upwards(node: TreeNode) -> Iterator[TreeNode]:
    current: TreeNode | None = node
    while current is not None:
        yield current
        current = current.parent


def in_order(policy: Policy, waiting: WaitingQueue, aging: Aging, prefixes: CachedPrefixes) -> list[Req]:
    """The order of one pass: first whoever has been overtaken too often, oldest first, then as the policy says.

    A pass stops at the first request that finds no memory. So a request starts, under every policy, after at most
    `MAX_OVERTAKEN` passes that admit a younger one before it, and as many as those that are older need.
    """
    aged = aging.aged(waiting)
    first, rest = [], list(waiting)
    if policy.returned_first:
        first, rest = list(waiting.returned), list(waiting.new)
    ordered = [*first, *policy.order(rest, prefixes)]
    if not aged:
        return ordered
    ahead = set(aged)
    return [*aged, *(req for req in ordered if req not in ahead)]
