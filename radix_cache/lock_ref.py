"""Lock counts: a lock on a node is counted on every node from it up to the root.

So a node without locks has none below it either, and the evictable pages are those of the nodes at zero. The
root is
never counted: locking it is allowed and does nothing.
"""

from __future__ import annotations

from radix_cache.errors import TreeStateError
from radix_cache.tree_node import PAGE_ID_BYTES, TreeNode


def acquire(node: TreeNode, root: TreeNode, stop: TreeNode) -> tuple[TreeNode, int]:
    """Count one lock on `node` and on all above it, up to `root` or `stop`, without these two.

    Returns:
        Which of the two ended it, and how many pages became protected.

    Raises:
        TreeStateError: `node` is no longer in the tree (nothing is changed).
    """
    protected = 0
    while node is not root and node is not stop:
        parent = node.parent
        if parent is None:
            raise TreeStateError(f"lock: {node!r} left the tree; match again and lock in the same section")
        if node.lock_ref == 0:
            protected += len(node.pages)
        node.lock_ref += 1
        node = parent
    return node, protected // PAGE_ID_BYTES


def release(node: TreeNode, root: TreeNode, count: int) -> int:
    """Take `count` locks off `node` and all above it; return how many pages became evictable."""
    freed = 0
    while node is not root:
        node.lock_ref -= count
        if node.lock_ref == 0:
            freed += len(node.pages)
        parent = node.parent
        assert parent is not None
        node = parent
    return freed // PAGE_ID_BYTES


def check_locked(node: TreeNode, root: TreeNode) -> None:
    """Raise TreeStateError when releasing one lock of `node` would go below zero."""
    if node.lock_ref < 1 and node is not root:
        raise TreeStateError(f"unlock: {node!r} has no lock; every lock is released exactly once")
