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

    `parent` is the parent's index in `TreeView.nodes` (-1: the root); `depth` is 1 below the root; `age` counts
    tree operations since the last use; `head` are its first token ids.
    """

    parent: int
    depth: int
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
    """The top of the tree, breadth first: parents stand before their children. Columns: element i speaks of node i.

    `num_nodes` and `num_pages` count what is left out too. `heads` are token ids, as int32 bytes.
    """

    page_size: int
    num_nodes: int
    num_pages: int
    parents: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    namespaces: tuple[str | None, ...] = ()
    num_tokens: tuple[int, ...] = ()
    lock_refs: tuple[int, ...] = ()
    hits: tuple[int, ...] = ()
    ages: tuple[int, ...] = ()
    pending: tuple[bool, ...] = ()
    num_children: tuple[int, ...] = ()
    heads: tuple[bytes, ...] = ()

    @property
    def nodes(self) -> tuple[NodeView, ...]:
        """The rows."""
        heads = (tuple(np.frombuffer(head, np.int32).tolist()) for head in self.heads)
        rows = zip(
            *(self.parents, self.depths, self.namespaces, self.num_tokens, self.lock_refs, self.hits),
            *(self.ages, self.pending, self.num_children, heads),
            strict=True,
        )
        return tuple(NodeView(*row) for row in rows)


Sighting = tuple[int, int, bytes, bytes, int, int, int, bool, int]
"""Fields of a node under the lock: parent, depth, edge, tokens, lock_ref, hits, age, pending, num_children."""


def sight(tree: RadixTree, max_nodes: int, max_depth: int | None = None) -> list[Sighting]:
    """Note down the first `max_nodes` nodes, breadth first, at most `max_depth` below the root.

    O(max_nodes), about a microsecond a node: this runs under the lock.
    """
    seen: list[Sighting] = []
    waiting: deque[tuple[TreeNode, int, int]] = deque([(tree.root, -1, 0)])
    clock, budget = tree.clock, max_nodes
    while waiting and budget:
        parent, index, depth = waiting.popleft()
        if depth == max_depth:
            break  # breadth first: all that wait are as deep
        for node in islice(parent.child_nodes(), budget):
            budget -= 1
            waiting.append((node, len(seen), depth + 1))
            age = clock - node.last_access
            pending = node.pending is not None
            count = len(node.child_nodes())
            seen.append(
                (index, depth + 1, node.edge, node.tokens, node.lock_ref, node.hits, age, pending, count)
            )
    return seen


def picture(
    page_size: int, num_nodes: int, num_pages: int, seen: list[Sighting], head_tokens: int
) -> TreeView:
    """Make the view of what `sight` noted. Needs no lock."""
    if not seen:
        return TreeView(page_size, num_nodes, num_pages)
    parents, depths, edges, tokens, lock_refs, hits, ages, pending, num_children = zip(*seen, strict=True)
    stride, head_bytes = page_size * TOKEN_BYTES, head_tokens * TOKEN_BYTES
    namespaces: list[str | None] = []
    for parent, edge in zip(parents, edges, strict=True):
        namespaces.append(decode_namespace(edge[stride:]) if parent < 0 else namespaces[parent])
    return TreeView(
        page_size=page_size,
        num_nodes=num_nodes,
        num_pages=num_pages,
        parents=parents,
        depths=depths,
        namespaces=tuple(namespaces),
        num_tokens=tuple(len(run) // TOKEN_BYTES for run in tokens),
        lock_refs=lock_refs,
        hits=hits,
        ages=ages,
        pending=pending,
        num_children=num_children,
        heads=tuple(run[:head_bytes] for run in tokens),
    )
