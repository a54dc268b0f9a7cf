"""Frozen pictures of the tree for guests: metrics, people, routers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice

import numpy as np

from radix_cache.key import TOKEN_BYTES, decode_namespace
from radix_cache.radix_tree import RadixTree
from radix_cache.tree_node import TreeNode


@dataclass(frozen=True, slots=True)
class RadixStats:
    """Counts at one moment. Pages unless the name says otherwise; the last three count since the start.

    `num_protected` are the pages under a lock or an unsettled insertion, `num_pending` those not yet written
    (a part of the protected ones); `lookup_tokens` and `hit_tokens` are what matches asked for and found.
    """

    num_nodes: int
    num_pages: int
    num_evictable: int
    num_protected: int
    num_pending: int
    lookup_tokens: int
    hit_tokens: int
    num_evicted: int


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node.

    `parent` is the parent's index in `TreeView.nodes` (-1: the root); `age` counts tree operations since the
    last use; `head` are its first token ids.
    """

    parent: int
    namespace: str | None
    num_tokens: int
    lock_ref: int
    hits: int
    age: int
    pending: bool
    num_children: int
    head: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TreeView:
    """The top of the tree, breadth first: parents stand before their children.

    `num_nodes` counts those left out too.
    """

    page_size: int
    num_nodes: int
    nodes: tuple[NodeView, ...]


Sighting = tuple[int, bytes, bytes, int, int, int, bool, int]
"""Fields of a node under the lock: parent, edge, tokens, lock_ref, hits, age, pending, num_children."""


def sight(tree: RadixTree, max_nodes: int) -> list[Sighting]:
    """Note down the first `max_nodes` nodes, breadth first. O(max_nodes): this runs under the lock."""
    seen: list[Sighting] = []
    waiting: deque[tuple[TreeNode, int]] = deque([(tree.root, -1)])
    budget = max_nodes
    while waiting and budget:
        parent, index = waiting.popleft()
        for node in islice(parent.child_nodes(), budget):
            budget -= 1
            waiting.append((node, len(seen)))
            age = tree.clock - node.last_access
            pending = node.pending is not None
            num_children = len(node.child_nodes())
            seen.append((index, node.edge, node.tokens, node.lock_ref, node.hits, age, pending, num_children))
    return seen


def picture(page_size: int, num_nodes: int, seen: list[Sighting], head_tokens: int) -> TreeView:
    """Make the view of what `sight` noted. Needs no lock."""
    stride = page_size * TOKEN_BYTES
    nodes: list[NodeView] = []
    for parent, edge, tokens, lock_ref, hits, age, pending, num_children in seen:
        namespace = decode_namespace(edge[stride:]) if parent < 0 else nodes[parent].namespace
        head = tuple(np.frombuffer(tokens[: head_tokens * TOKEN_BYTES], np.int32).tolist())
        num_tokens = len(tokens) // TOKEN_BYTES
        nodes.append(
            NodeView(parent, namespace, num_tokens, lock_ref, hits, age, pending, num_children, head)
        )
    return TreeView(page_size, num_nodes, tuple(nodes))
