"""The radix tree: the pure algorithm, without a lock and without a pool.

A path from the root spells the token ids of a cached prefix; each node holds a run of whole pages. The
structure is the radix tree of RadixAttention (Zheng et al., "SGLang: Efficient Execution of Structured
Language Model Programs", 2024, arXiv 2312.07104).
"""

from __future__ import annotations

from radix_cache.descent import descend
from radix_cache.errors import TreeStateError
from radix_cache.eviction import EvictionPolicy, EvictionQueue
from radix_cache.key import TOKEN_BYTES, RadixKey
from radix_cache.lock_ref import acquire, check_locked, release
from radix_cache.pending import PendingInsertions
from radix_cache.tree_node import (
    PAGE_ID_BYTES,
    TreeNode,
    add_child,
    cut_leaf,
    make_root,
    remove_child,
    split_node,
    unlink,
    worth_halving,
)

__all__ = ["RadixTree", "TreeNode", "TreeStateError"]


class RadixTree:
    """Thread: control. Whole pages of token ids, shared by prefix, with lock counts and an order of eviction.

    Every operation costs O(tokens touched), compared by memcmp, plus O(nodes touched) steps of Python. A run
    of pages is passed out as a list of bytes objects (int32 ids): immutable, so joining them needs no lock.

    Attributes (read only outside):
        root: carries no tokens and is never locked, evicted or removed.
        num_nodes: nodes, without the root.
        num_pages: pages of all nodes.
        num_evictable: pages of nodes that no lock and no unsettled insertion protects; `evict` can free them
            all.
        clock: operations so far: the time in which `last_access` and `created` count.
        pending: the unsettled insertions.
        queue: the evictable leaves.
        stride: bytes of the tokens of one page.
    """

    __slots__ = (
        "clock",
        "num_evictable",
        "num_nodes",
        "num_pages",
        "page_size",
        "pending",
        "queue",
        "root",
        "stride",
    )

    def __init__(self, page_size: int, policy: EvictionPolicy) -> None:
        """`page_size` is in tokens.

        Raises:
            ValueError: `page_size` is below 1.
        """
        if page_size < 1:
            raise ValueError(f"page_size: {page_size} given, at least 1 token wanted")
        self.page_size = page_size
        self.stride = page_size * TOKEN_BYTES
        self.root = make_root()
        self.queue = EvictionQueue(policy)
        self.pending = PendingInsertions()
        self.clock = 0
        self.num_nodes = 0
        self.num_pages = 0
        self.num_evictable = 0

    # ---- match and insert

    def match_prefix(
        self, key: RadixKey, limit: int, priority: int = 0
    ) -> tuple[TreeNode, int, int, list[bytes]]:
        """The longest cached prefix of `key` within `limit` tokens (at most its length), in whole pages.

        Splits the node in which the prefix ends, so that the node returned is exactly its end; marks the path
        as used.

        Returns:
            The last node, its tokens from the root, how many of them are settled, and the pages in parts.
        """
        path, offset = self._enter(key, self.whole_pages(limit), priority, hit=1)
        if not path:
            return self.root, 0, 0, []
        settled = offset
        for node in reversed(path):
            if node.pending is None:
                break
            settled -= len(node.tokens)
        return path[-1], offset // TOKEN_BYTES, settled // TOKEN_BYTES, [node.pages for node in path]

    def match_length(self, key: RadixKey, limit: int) -> int:
        """The tokens that `match_prefix` would find. Splits nothing and marks nothing as used."""
        end = self.whole_pages(limit)
        return descend(self.root, key, end, self.stride)[1] // TOKEN_BYTES

    def insert(
        self, key: RadixKey, pages: bytes, pending: int | None, priority: int = 0
    ) -> tuple[TreeNode, int, int]:
        """Add what is not there yet of `key`, cut down to whole pages, as one new leaf.

            key      [0 ........ present)[present ........ aligned)[aligned ........ len)
            pages     stay the caller's   become the tree's          not looked at

        The leaf is pending until `settle(pending)`, or settled at once (None); but never settled before its
        parent.

        Returns:
            The node that ends the aligned key, tokens that were present, tokens taken.
        """
        end = self.whole_pages(len(key))
        path, offset = self._enter(key, end, priority, hit=0)
        parent = path[-1] if path else self.root
        if offset == end:
            return parent, end // TOKEN_BYTES, 0
        if parent.pending is not None and (pending is None or pending < parent.pending):
            pending = parent.pending
        edge = key.data[offset : offset + self.stride]
        if parent is self.root:
            edge += key.salt
        new_pages = pages[self._page_bytes(offset) : self._page_bytes(end)]
        node = TreeNode(parent, edge, key.data[offset:end], new_pages, pending, self.clock)
        node.priority = priority
        self._add_leaf(node, parent)
        return node, offset // TOKEN_BYTES, (end - offset) // TOKEN_BYTES

    def _add_leaf(self, node: TreeNode, parent: TreeNode) -> None:
        add_child(parent, node)
        self.num_nodes += 1
        self.num_pages += node.num_pages
        self.num_evictable += node.num_pages
        if node.pending is None:
            self.queue.push(node)
        else:
            self.pending.add(node, node.pending)
            self.inc_lock_ref(node)

    def whole_pages(self, num_tokens: int) -> int:
        """Bytes of the whole pages among `num_tokens` (-1, all but one of an empty key, counts as none)."""
        return num_tokens // self.page_size * self.stride if num_tokens > 0 else 0

    def _page_bytes(self, token_bytes: int) -> int:
        """Bytes of the page ids that go with so many bytes of token ids."""
        return token_bytes // self.stride * PAGE_ID_BYTES

    def _enter(self, key: RadixKey, end: int, priority: int, hit: int) -> tuple[list[TreeNode], int]:
        """Walk as far as `key` goes, split the node in which it leaves the tree, mark the path as used.

        Returns:
            The nodes from below the root to the end, all of them wholly on the key, and the bytes they cover.
        """
        path, offset, inside, common = descend(self.root, key, end, self.stride)
        if inside is not None:
            path.append(split_node(inside, common, self.page_size))
            self.num_nodes += 1
        self.clock = clock = self.clock + 1
        for node in path:
            node.last_access = clock
            node.hits += hit
            if node.priority < priority:
                node.priority = priority
        if path:
            self._queue_if_evictable(node)
        return path, offset

    # ---- locks

    def inc_lock_ref(self, node: TreeNode) -> None:
        """Protect `node` and all above it from eviction. On the root: nothing.

        Raises:
            TreeStateError: `node` is no longer in the tree.
        """
        self.num_evictable -= acquire(node, self.root, stop=self.root)[1]

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Undo one `inc_lock_ref`. On the root: nothing.

        Raises:
            TreeStateError: `node` has no lock.
        """
        check_locked(node, self.root)
        self._release(node, 1)

    def move_lock(self, old: TreeNode, new: TreeNode) -> None:
        """`inc_lock_ref(new)`, then `dec_lock_ref(old)`, without touching the ancestors that both share.

        Raises:
            TreeStateError: `old` has no lock, or `new` is no longer in the tree.
        """
        check_locked(old, self.root)
        end, protected = acquire(new, self.root, stop=old)
        self.num_evictable -= protected
        if end is not old:
            self._release(old, 1)

    def _release(self, node: TreeNode, count: int) -> None:
        self.num_evictable += release(node, self.root, count)
        self._queue_if_evictable(node)

    def _queue_if_evictable(self, node: TreeNode) -> None:
        if node.lock_ref == 0 and node.is_leaf() and node is not self.root:
            self.queue.push(node)

    # ---- pending nodes

    def settle(self, applied: int) -> None:
        """Every node whose command is at most `applied` is written now."""
        for node in self.pending.settle(applied):
            self._release(node, 1)

    def remove_pending(self) -> list[bytes]:
        """Remove every pending node, and with it all below, because the step that was to write it failed.

        Returns:
            Their pages.

        Raises:
            TreeStateError: one of them is still locked; nothing is changed.
        """
        parts: list[bytes] = []
        for top, insertions in self.pending.take_tops().items():
            parent = remove_child(top)
            self._release(parent, insertions)
            removed = unlink(top)
            self.num_nodes -= len(removed)
            parts.extend(removed)
        self.num_pages -= sum(map(len, parts)) // PAGE_ID_BYTES
        return parts

    # ---- eviction

    def evict(self, num_pages: int) -> list[bytes]:
        """Take `num_pages` pages out of the tree in the policy's order; all evictable ones if they are fewer.

        Leaves go first, each from its end; the last one touched is cut, not taken whole. Copies O(pages taken)
        bytes, amortised: a leaf of which much more than that would stay is halved first.
        """
        missing = num_pages * PAGE_ID_BYTES
        parts: list[bytes] = []
        while missing > 0:
            leaf = self.queue.first()
            if leaf is None:
                break
            pages = leaf.pages
            if len(pages) > missing:
                if worth_halving(leaf, missing):
                    split_node(leaf, leaf.num_pages // 2 * self.stride, self.page_size)
                    self.num_nodes += 1
                    continue
                parts.append(cut_leaf(leaf, missing, self.stride))
                break
            self.queue.pop_first()
            self._queue_if_evictable(remove_child(leaf))
            self.num_nodes -= 1
            parts.append(pages)
            missing -= len(pages)
        evicted = sum(map(len, parts)) // PAGE_ID_BYTES
        self.num_pages -= evicted
        self.num_evictable -= evicted
        return parts

    def clear(self) -> TreeNode:
        """Forget everything.

        Returns:
            A root with all the nodes there were, for `unlink` to take apart (which needs no lock).

        Raises:
            TreeStateError: something is locked or pending; nothing is changed.
        """
        if self.num_evictable != self.num_pages:
            raise TreeStateError(
                f"clear: {self.num_pages - self.num_evictable} of {self.num_pages} pages are locked or "
                "pending; drain the requests first"
            )
        old = make_root()
        old.children, self.root.children = self.root.children, old.children
        self.queue.clear()
        self.num_nodes = 0
        self.num_pages = 0
        self.num_evictable = 0
        return old

    def __repr__(self) -> str:
        return (
            f"RadixTree(page_size={self.page_size}, {self.num_nodes} nodes, {self.num_pages} pages, "
            f"{self.num_evictable} evictable, {self.pending!r}, {self.queue!r})"
        )
