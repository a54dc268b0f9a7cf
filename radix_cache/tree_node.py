"""One node of the radix tree."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from radix_cache.key import TOKEN_BYTES

PAGE_ID_BYTES = 4
"""Bytes of one page id (int32)."""

CUT_BYTES = 16_384
"""So many bytes that stay are copied at once when a leaf is cut: about a microsecond, less than a node costs."""


class TreeNode:
    """Thread: control. A run of whole pages that follows its parent's, and the KV pages that hold it.

    Attributes:
        parent: the node before; None for the root and for a node that left the tree.
        edge: the bytes of its first page, and under the root the namespace's salt.
        tokens: token ids, int32 bytes. Immutable, and a copy of its own: a part never pins the whole.
        pages: page ids, int32 bytes, one for each `page_size` tokens.
        only_child: the child, where there is exactly one: most chains need no dict, and a walk no look-up.
        children: two or more children by edge, else None. The root always has it, and no `only_child`.
        lock_ref: locks on this node and on all below it, and one for each unsettled insertion there.
        pending: the command whose step writes these pages; None once they are written.
        last_access: the tree's operation count when it was last matched or inserted through.
        created: the operation count when it was inserted.
        hits: how many matches passed through it.
        priority: the highest of the requests that were matched or inserted through it.
        queue_key: the key of its entry in the eviction queue; None when it has none.
    """

    __slots__ = (
        "children",
        "created",
        "edge",
        "hits",
        "last_access",
        "lock_ref",
        "only_child",
        "pages",
        "parent",
        "pending",
        "priority",
        "queue_key",
        "tokens",
    )

    def __init__(
        self,
        parent: TreeNode | None,
        edge: bytes,
        tokens: bytes,
        pages: bytes,
        pending: int | None,
        created: int,
    ) -> None:
        self.parent = parent
        self.edge = edge
        self.tokens = tokens
        self.pages = pages
        self.only_child: TreeNode | None = None
        self.children: dict[bytes, TreeNode] | None = None
        self.lock_ref = 0
        self.pending = pending
        self.last_access = created
        self.created = created
        self.hits = 0
        self.priority = 0
        self.queue_key: int | None = None

    def is_leaf(self) -> bool:
        return self.only_child is None and not self.children

    def child_nodes(self) -> Collection[TreeNode]:
        if self.only_child is not None:
            return (self.only_child,)
        return () if self.children is None else self.children.values()

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) // TOKEN_BYTES

    @property
    def num_pages(self) -> int:
        return len(self.pages) // PAGE_ID_BYTES

    def __repr__(self) -> str:
        head = np.frombuffer(self.tokens, np.int32, min(4, self.num_tokens)).tolist()
        return (
            f"TreeNode({self.num_tokens} tokens {head}{'...' if self.num_tokens > 4 else ''}, "
            f"{self.num_pages} pages, lock_ref={self.lock_ref}, pending={self.pending}, hits={self.hits}, "
            f"last_access={self.last_access}, children={len(self.child_nodes())}, "
            f"{'no parent' if self.parent is None else 'in the tree'})"
        )


def make_root() -> TreeNode:
    """A root without children. It looks up every child, because their edges carry their namespaces."""
    root = TreeNode(None, b"", b"", b"", None, 0)
    root.children = {}
    return root


def add_child(parent: TreeNode, node: TreeNode) -> None:
    """Enter `node`, whose parent link is set already, among the children of `parent`."""
    only = parent.only_child
    if parent.children is not None:
        parent.children[node.edge] = node
    elif only is None:
        parent.only_child = node
    else:
        parent.children = {only.edge: only, node.edge: node}
        parent.only_child = None


def remove_child(node: TreeNode) -> TreeNode:
    """Take `node` out of its parent's children and cut its link to the parent; return the parent."""
    parent = node.parent
    assert parent is not None
    node.parent = None
    children = parent.children
    if children is None:
        parent.only_child = None
        return parent
    del children[node.edge]
    if len(children) == 1 and parent.parent is not None:
        (parent.only_child,) = children.values()
        parent.children = None
    elif not children:
        parent.children = {}
    return parent


def split_node(lower: TreeNode, size: int, page_size: int) -> TreeNode:
    """Cut the first `size` bytes of tokens (whole pages) off `lower` into a new node above; return it.

        before   parent -> lower [0, n)
        after    parent -> upper [0, size) -> lower [size, n)

    `lower` keeps its identity and its place in the eviction queue: a handle names the end of a path. All that
    leads to `lower` leads through the upper node, so that it gets the same counts and times.
    """
    tokens, pages = lower.tokens, lower.pages
    page_bytes = size // TOKEN_BYTES // page_size * PAGE_ID_BYTES
    parent = remove_child(lower)
    upper = TreeNode(parent, lower.edge, tokens[:size], pages[:page_bytes], lower.pending, lower.created)
    upper.lock_ref = lower.lock_ref
    upper.last_access = lower.last_access
    upper.hits = lower.hits
    upper.priority = lower.priority
    add_child(parent, upper)
    lower.parent = upper
    lower.tokens = tokens[size:]
    lower.pages = pages[page_bytes:]
    lower.edge = lower.tokens[: page_size * TOKEN_BYTES]
    add_child(upper, lower)
    return upper


def worth_halving(leaf: TreeNode, missing: int) -> bool:
    """Whether cutting `missing` bytes of page ids off `leaf` would copy far more than it frees.

    ::

        one leaf   [0 ................................ n)    each cut copies what stays: O(n) a call
        halved     [0 ...... n/2)[n/2 ... 3n/4)[3n/4 .. n)    a byte is copied once a halving: O(log n) a page

    What is evicted page by page comes to its end in O(n log n), and not in O(n * n).
    """
    kept = len(leaf.pages) - missing
    return kept > missing and kept + len(leaf.tokens) > CUT_BYTES


def cut_leaf(leaf: TreeNode, missing: int, stride: int) -> bytes:
    """Cut `missing` bytes of page ids, with their tokens, off the end of `leaf`; return these page ids.

    ::

        leaf   [0 ........ n - missing)[n - missing ........ n)
                stays                    returned
    """
    pages = leaf.pages
    kept = len(pages) - missing
    leaf.pages = pages[:kept]
    leaf.tokens = leaf.tokens[: kept // PAGE_ID_BYTES * stride]
    return pages[kept:]


def unlink(top: TreeNode) -> list[bytes]:
    """Break every link at and below `top`, so that no reference cycle remains; return all pages."""
    parts: list[bytes] = []
    stack = [top]
    while stack:
        node = stack.pop()
        if node.pages:
            parts.append(node.pages)
        stack.extend(node.child_nodes())
        node.only_child = None
        node.children = None
        node.parent = None
        node.queue_key = None
    return parts
