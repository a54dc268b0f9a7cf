"""Who owns which page and who holds which lock, counted anew from the live leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from control_loop.cache_manager import CacheManager
from control_loop.req import Req
from control_loop.slots import SlotTable
from radix_cache.tree_node import TreeNode
from tests.rig import Rig


def check_ownership(manager: CacheManager, slots: SlotTable, others: Sequence[TreeNode] = ()) -> None:
    """The tree holds together, every page has one owner, every lock one holder, and what a row reads is protected.

    `others` are nodes that somebody else than a lease holds a lock on.
    """
    manager.cache.check_integrity()
    nodes = list(walk(manager))
    _check_pages(manager, slots, nodes)
    _check_locks(manager, slots, nodes, others)
    for req in slots.reqs():
        _check_lease(manager, slots, req)


def check_kv(rig: Rig) -> None:
    """With nothing in flight: the hash model has in every page of the tree the tokens that the tree says."""
    for node in walk(rig.control._manager):
        kv = rig.runner._kv[pages_of(node)].reshape(-1)
        assert kv.tolist() == tokens_of(node), f"{node!r}"


def walk(manager: CacheManager) -> Iterator[TreeNode]:
    """Every node but the root."""
    stack = list(manager.cache.root.child_nodes())
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.child_nodes())


def pages_of(node: TreeNode) -> list[int]:
    return list(map(int, np.frombuffer(node.pages, np.int32)))


def tokens_of(node: TreeNode) -> list[int]:
    return list(map(int, np.frombuffer(node.tokens, np.int32)))


def _check_pages(manager: CacheManager, slots: SlotTable, nodes: list[TreeNode]) -> None:
    """free + cached + leased == pool, and no page is in two of them."""
    allocator, cache = manager.allocator, manager.cache
    owners = Counter(np.flatnonzero(allocator._is_free).tolist())
    assert len(owners) == allocator.num_free
    for node in nodes:
        owners.update(pages_of(node))
    leased = [page for req in slots.reqs() for page in slots.owned_pages(req.slot).tolist()]
    owners.update(leased)
    astray = {page: owners[page] for page in range(1, allocator.num_pages + 1) if owners[page] != 1}
    assert not astray, f"pages by their number of owners: {astray}"
    assert allocator.num_free + cache.num_pages + len(leased) == allocator.num_pages
    assert slots.num_free + slots.num_in_use == slots.num_slots


def _check_locks(
    manager: CacheManager, slots: SlotTable, nodes: list[TreeNode], others: Sequence[TreeNode]
) -> None:
    """No lock is lost and none is left: each is a lease's or an unsettled insertion's."""
    tree = manager.cache._tree
    expected: Counter[TreeNode] = Counter()
    held = [manager._nodes[req.slot] for req in slots.reqs()]
    for end in (*held, *tree.pending.nodes(), *others):
        node: TreeNode | None = end
        while node is not None and node is not tree.root:
            expected[node] += 1
            node = node.parent
    for node in nodes:
        assert node.lock_ref == expected[node], f"{node!r} has {expected[node]} holders"
    free = [slot for slot in range(slots.num_slots + 1) if not slots.generation[slot]]
    assert all(manager._nodes[slot] is tree.root for slot in free), "a free slot holds a node"


def _check_lease(manager: CacheManager, slots: SlotTable, req: Req) -> None:
    """A page in a lease is its own, or stands at the same place of the path that it has locked."""
    slot, size = req.slot, slots.page_size
    path: list[int] = []
    for node in manager.locked_path(slot):
        path[:0] = pages_of(node)
    count = int(slots.num_pages[slot])
    for index in np.flatnonzero(~slots.owned[slot, :count]).tolist():
        page = int(slots.pages[slot, index])
        assert path[index : index + 1] == [page], f"page {page}, number {index} of {req!r}, has no lock"
    assert slots.kv_len[slot] <= slots.scheduled[slot] <= count * size
    assert slots.prefill_len[slot] <= count * size, "a prompt is reserved whole"
    assert slots.limit[slot] <= min(count * size, int(slots.max_kv[slot]))
