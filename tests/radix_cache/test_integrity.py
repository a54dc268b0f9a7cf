"""The integrity check finds what it is there to find: each kind of damage is done by hand and named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from radix_cache.eviction import lru
from radix_cache.integrity import IntegrityError, check_integrity
from radix_cache.radix_tree import RadixTree
from radix_cache.tree_node import TreeNode
from tests.radix_cache.model import key_of


def page_bytes(first: int, count: int) -> bytes:
    return np.arange(first, first + count, dtype=np.int32).tobytes()


def make_tree() -> tuple[RadixTree, TreeNode, TreeNode, TreeNode]:
    """A settled node of pages 0 and 1, with a locked leaf (2) and a pending one (3), and an evictable leaf (4)."""
    tree = RadixTree(1, lru)
    top = tree.insert(key_of((1, 2)), page_bytes(0, 2), None)[0]
    locked = tree.insert(key_of((1, 2, 3)), page_bytes(0, 3), None)[0]
    tree.inc_lock_ref(locked)
    pending = tree.insert(key_of((1, 2, 4)), page_bytes(1, 3), 5)[0]
    tree.insert(key_of((9,)), page_bytes(4, 1), None)
    check_integrity(tree)
    return tree, top, locked, pending


def parent_link(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    locked.parent = pending


def edge(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    locked.edge = pending.edge


def first_page(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    locked.tokens = pending.tokens


def odd_tokens(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    locked.tokens += b"\0"


def lost_page(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    top.pages = top.pages[:4]


def page_owned_twice(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    locked.pages = pending.pages


def page_twice_in_a_node(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    top.pages = top.pages[:4] * 2


def lock_lost_above(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    top.lock_ref -= 1


def lock_appeared(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    (leaf,) = set(tree.root.child_nodes()) - {top}
    leaf.lock_ref += 1


def settled_below_pending(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    tree.insert(key_of((1, 2, 4, 6)), page_bytes(6, 4), None)[0].pending = None


def pending_unlisted(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    locked.pending = 3


def settled_but_listed(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    pending.pending = None


def node_count(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    tree.num_nodes += 1


def page_count(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    tree.num_pages += 1


def not_queued(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    tree.queue.clear()


def queued_too_late(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    (leaf,) = set(tree.root.child_nodes()) - {top}
    leaf.last_access = 0


def root_locked(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    tree.root.lock_ref = 1


def lone_child_in_a_dict(tree: RadixTree, top: TreeNode, locked: TreeNode, pending: TreeNode) -> None:
    assert top.children is not None
    del top.children[locked.edge]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (parent_link, "its parent link names"),
        (edge, "its edge is not its key"),
        (first_page, "its edge is not its first page"),
        (odd_tokens, "not a multiple of the page size"),
        (lost_page, "its pages do not fit its tokens"),
        (page_owned_twice, "page 3 is also owned by TreeNode"),
        (page_twice_in_a_node, "owns one of its pages twice"),
        (lock_lost_above, "lock_ref is below the 2 locks"),
        (lock_appeared, "num_evictable is 1, a recount gives 0"),
        (settled_below_pending, "is settled below the pending TreeNode"),
        (pending_unlisted, "no insertion at or below it is listed"),
        (settled_but_listed, "is listed as pending but is settled"),
        (node_count, "num_nodes is 5, a recount gives 4"),
        (page_count, "num_pages is 6, a recount gives 5"),
        (not_queued, "its eviction queue entry is missing|without a place in the eviction queue"),
        (queued_too_late, "too late"),
        (root_locked, "the root is locked"),
        (lone_child_in_a_dict, "keeps a dict for 1 children"),
    ],
)
def test_damage_is_found(
    damage: Callable[[RadixTree, TreeNode, TreeNode, TreeNode], None], message: str
) -> None:
    tree, top, locked, pending = make_tree()
    damage(tree, top, locked, pending)
    with pytest.raises(IntegrityError, match=message):
        check_integrity(tree)
