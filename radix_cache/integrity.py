"""Does the tree hold together? Recounts everything that the tree keeps up to date."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from radix_cache.key import TOKEN_BYTES
from radix_cache.radix_tree import RadixTree
from radix_cache.tree_node import PAGE_ID_BYTES, TreeNode


class IntegrityError(AssertionError):
    """The tree contradicts itself; the message names the node or the counter."""


def check_integrity(tree: RadixTree) -> None:
    """Check every node and every counter. O(nodes + pages); for tests and for an idle engine.

    Raises:
        IntegrityError: something does not hold; the first thing found is named.
    """
    holds = Counter(tree.pending.nodes())
    nodes = list(_walk(tree.root))
    for node in nodes:
        _check_shape(node, tree)
        _check_pending(node, holds)
        _check_lock_ref(node, holds)
    _require(tree.root.lock_ref == 0 and not tree.root.tokens, tree.root, "the root is locked or has tokens")
    strangers = set(holds).difference(nodes)
    _require(not strangers, next(iter(strangers), None), "is listed as pending but is not in the tree")
    _check_pages(nodes)
    _check_counters(tree, nodes)
    _check_queue(tree, nodes)


def _require(holds: bool, node: object, what: str) -> None:
    if not holds:
        raise IntegrityError(f"{node!r}: {what}")


def _walk(root: TreeNode) -> Iterator[TreeNode]:
    """Every node but the root; checks the links on the way, because the walk relies on them."""
    stack = [root]
    while stack:
        parent = stack.pop()
        _check_children(parent, root)
        for node in parent.child_nodes():
            _require(node.parent is parent, node, f"its parent link names {node.parent!r}, not {parent!r}")
            stack.append(node)
            yield node


def _check_children(parent: TreeNode, root: TreeNode) -> None:
    children = parent.children
    if parent is root:
        _require(
            children is not None and parent.only_child is None, parent, "the root needs a dict of children"
        )
    elif children is not None:
        _require(parent.only_child is None, parent, "has an only child and others")
        _require(len(children) > 1, parent, f"keeps a dict for {len(children)} children")
    for edge, node in (children or {}).items():
        _require(node.edge == edge, node, "its edge is not its key among its parent's children")


def _check_shape(node: TreeNode, tree: RadixTree) -> None:
    stride = tree.page_size * TOKEN_BYTES
    _require(len(node.tokens) > 0, node, "has no tokens")
    _require(len(node.tokens) % stride == 0, node, f"is not a multiple of the page size {tree.page_size}")
    _require(
        len(node.pages) // PAGE_ID_BYTES == len(node.tokens) // stride
        and len(node.pages) % PAGE_ID_BYTES == 0,
        node,
        "its pages do not fit its tokens",
    )
    own = node.edge[:stride] if node.parent is tree.root else node.edge
    _require(own == node.tokens[:stride], node, "its edge is not its first page")


def _check_pending(node: TreeNode, holds: Counter[TreeNode]) -> None:
    parent = node.parent
    above = None if parent is None else parent.pending
    if above is not None:
        _require(node.pending is not None, node, f"is settled below the pending {parent!r}")
        _require(
            node.pending is None or node.pending >= above, node, f"is written before its parent {parent!r}"
        )
    if node.pending is not None and not holds[node]:
        below = [child for child in node.child_nodes() if child.pending == node.pending]
        _require(bool(below), node, "is pending, but no insertion at or below it is listed")
    _require(holds[node] <= 1, node, f"is listed as pending {holds[node]} times")
    _require(not holds[node] or node.pending is not None, node, "is listed as pending but is settled")


def _check_lock_ref(node: TreeNode, holds: Counter[TreeNode]) -> None:
    least = sum(child.lock_ref for child in node.child_nodes()) + holds[node]
    _require(node.lock_ref >= least, node, f"lock_ref is below the {least} locks at and below it")


def _check_pages(nodes: list[TreeNode]) -> None:
    pages = np.frombuffer(b"".join(node.pages for node in nodes), np.int32)
    if len(np.unique(pages)) == len(pages):
        return
    owners: dict[int, TreeNode] = {}
    for node in nodes:
        for page in np.frombuffer(node.pages, np.int32).tolist():
            other = owners.setdefault(page, node)
            _require(other is node, node, f"page {page} is also owned by {other!r}")
    raise IntegrityError(f"a node owns one of its pages twice: {nodes!r}")


def _check_counters(tree: RadixTree, nodes: list[TreeNode]) -> None:
    counts = {
        "num_nodes": (tree.num_nodes, len(nodes)),
        "num_pages": (tree.num_pages, sum(node.num_pages for node in nodes)),
        "num_evictable": (tree.num_evictable, sum(node.num_pages for node in nodes if node.lock_ref == 0)),
        "pending.num_pages": (
            tree.pending.num_pages,
            sum(node.num_pages for node in nodes if node.pending is not None),
        ),
    }
    for name, (kept, counted) in counts.items():
        _require(kept == counted, tree, f"{name} is {kept}, a recount gives {counted}")


def _check_queue(tree: RadixTree, nodes: list[TreeNode]) -> None:
    entries = tree.queue.entries()
    _require(
        all(entries[(place - 1) // 2] <= entries[place] for place in range(1, len(entries))),
        tree,
        "the eviction queue is not a heap",
    )
    keys = {(key, id(node)) for key, _, node in entries}
    members = set(nodes)
    for node in nodes:
        if node.lock_ref == 0 and node.is_leaf():
            _require(
                node.queue_key is not None, node, "is an evictable leaf without a place in the eviction queue"
            )
        if node.queue_key is not None:
            _require((node.queue_key, id(node)) in keys, node, "its eviction queue entry is missing")
            late = node.lock_ref == 0 and node.is_leaf() and node.queue_key > tree.queue.key(node)
            _require(not late, node, f"stands in the eviction queue at {node.queue_key}, too late")
    for key, _, node in entries:
        _require(
            node in members or key != node.queue_key, node, "left the tree but counts in the eviction queue"
        )
