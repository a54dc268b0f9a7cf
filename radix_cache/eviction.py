"""Which leaf goes first: the policies, and the queue that keeps leaves in a policy's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from types import MappingProxyType
from typing import Final

from radix_cache.tree_node import TreeNode

EvictionPolicy = Callable[[TreeNode], int]
"""A node's place in the order of eviction: the leaf with the smallest number goes first."""

CLOCK_BITS: Final = 48
"""Room for `last_access` below a higher-order count; at a million operations a second it lasts nine years."""
SLRU_PROTECTED_HITS: Final = 2
"""From this many hits on, slru counts a node among the protected ones."""


def lru(node: TreeNode) -> int:
    """Least recently used first."""
    return node.last_access


def mru(node: TreeNode) -> int:
    """Most recently used first."""
    return -node.last_access


def fifo(node: TreeNode) -> int:
    """Oldest first, however much it is used."""
    return node.created


def filo(node: TreeNode) -> int:
    """Youngest first."""
    return -node.created


def lfu(node: TreeNode) -> int:
    """Least often matched first; among equals the least recently used."""
    return node.hits << CLOCK_BITS | node.last_access


def slru(node: TreeNode) -> int:
    """Segmented LRU: nodes matched at least twice outlive all others; each segment is an LRU of its own.

    Source: Karedla, Love, Wherry, "Caching strategies to improve disk system performance" (IEEE Computer,
    1994).
    """
    return (node.hits >= SLRU_PROTECTED_HITS) << CLOCK_BITS | node.last_access


def priority(node: TreeNode) -> int:
    """What only requests of low priority have used goes first; among equals the least recently used."""
    return node.priority << CLOCK_BITS | node.last_access


EVICTION_POLICIES: Final[Mapping[str, EvictionPolicy]] = MappingProxyType(
    {"lru": lru, "lfu": lfu, "fifo": fifo, "mru": mru, "filo": filo, "slru": slru, "priority": priority}
)
"""name -> policy: a new policy is a function above and a word here."""


def find_eviction_policy(name: str) -> EvictionPolicy:
    """The policy of that name.

    Raises:
        ValueError: there is none; the message lists those that exist.
    """
    policy = EVICTION_POLICIES.get(name)
    if policy is None:
        raise ValueError(
            f"eviction_policy: {name!r} is unknown; choose one of {', '.join(EVICTION_POLICIES)}"
        )
    return policy


class EvictionQueue:
    """Thread: control. The evictable leaves in a policy's order: a heap put right lazily.

    A node has at most one entry that counts, the one whose key equals `node.queue_key`. That key never
    exceeds the node's present one, so the entry surfaces in time; what changed since is looked at only then:
    a node that is locked or has children loses its entry, one that was used meanwhile goes back with its
    present key. So locking, touching and extending a leaf cost nothing here, and the heap holds no more
    entries than the tree has nodes (a policy whose keys fall, such as mru, leaves superseded entries behind,
    at most as many again).
    """

    __slots__ = ("_heap", "_policy", "_serial", "_superseded")

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[int, int, TreeNode]] = []
        self._serial = 0
        self._superseded = 0

    def push(self, node: TreeNode) -> None:
        """Say that `node` is an evictable leaf, or that it is one and its key may have fallen. O(log n)."""
        key = self._policy(node)
        queued = node.queue_key
        if queued is not None:
            if queued <= key:
                return
            self._superseded += 1
        self._serial += 1
        node.queue_key = key
        heappush(self._heap, (key, self._serial, node))
        if self._superseded * 2 > len(self._heap):
            self._compact()

    def first(self) -> TreeNode | None:
        """The leaf to evict next; None when no leaf is evictable. It stays queued. O(log n) amortised."""
        heap = self._heap
        while heap:
            key, _, node = heap[0]
            if key != node.queue_key:
                heappop(heap)
                self._superseded -= 1
            elif node.lock_ref or not node.is_leaf():
                heappop(heap)
                node.queue_key = None
            else:
                current = self._policy(node)
                if current == key:
                    return node
                self._serial += 1
                node.queue_key = current
                heapreplace(heap, (current, self._serial, node))
        return None

    def pop_first(self) -> None:
        """Forget the leaf that `first` has just returned."""
        node = heappop(self._heap)[2]
        node.queue_key = None

    def clear(self) -> None:
        """Forget every leaf, because the tree forgets its nodes."""
        self._heap = []
        self._superseded = 0

    def key(self, node: TreeNode) -> int:
        """The node's present place in the order."""
        return self._policy(node)

    def entries(self) -> list[tuple[int, int, TreeNode]]:
        """A copy of the heap, for checks: (key, serial, node)."""
        return list(self._heap)

    def _compact(self) -> None:
        self._heap = list(
            {id(entry[2]): entry for entry in self._heap if entry[0] == entry[2].queue_key}.values()
        )
        heapify(self._heap)
        self._superseded = 0

    def __repr__(self) -> str:
        entries = f"{len(self._heap)} entries, {self._superseded} superseded"
        return f"EvictionQueue({self._policy.__name__}, {entries})"
