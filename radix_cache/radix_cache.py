"""The radix cache: the tree behind a lock, with arrays in and out."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from threading import Lock

import numpy as np
import numpy.typing as npt

from radix_cache.cursor import MatchCursor, match_lengths
from radix_cache.eviction import find_eviction_policy
from radix_cache.integrity import check_integrity
from radix_cache.key import RadixKey
from radix_cache.lock_ref import check_locked
from radix_cache.radix_tree import RadixTree
from radix_cache.results import Insertion, Match, match_limit, to_array
from radix_cache.tree_node import TreeNode, unlink
from radix_cache.view import RadixStats, TreeView, picture, sight


class RadixCache:
    """Thread: control; guests may call `stats` and `snapshot`, and read the counters.

    The lock is there for the guests. A locked section walks the tree; arrays are made before and after it.
    A node from a `Match` or an `Insertion` that is not locked is good until the next call that may evict.
    """

    def __init__(
        self,
        page_size: int = 16,
        eviction_policy: str = "lru",
        enabled: bool = True,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        """`page_size` in tokens; `eviction_policy` is a name in `EVICTION_POLICIES`.

        With `enabled=False` nothing is ever found or taken, and all else works on the empty tree. `lock` takes the
        place of a lock of its own, for who wants to see how long it is held.

        Raises:
            ValueError: `page_size` is below 1, or the policy is unknown.
        """
        self._lock: AbstractContextManager[object] = Lock() if lock is None else lock
        self._tree = RadixTree(page_size, find_eviction_policy(eviction_policy))
        self._eviction_policy = eviction_policy
        self._enabled = enabled
        self._lookup_tokens = 0
        self._hit_tokens = 0
        self._num_evicted = 0

    # ---- match and insert

    def match_prefix(self, key: RadixKey, limit: int | None = None, priority: int = 0) -> Match:
        """The longest cached prefix of `key`, in whole pages, within `min(len(key) - 1, limit)` tokens.

        One token at least is left to compute, because the logits need it. Marks the prefix as used, by a request
        of that `priority`, and locks nothing.

        Raises:
            ValueError: `limit` is negative.
        """
        return self._match(key, limit, priority, lock=False)

    def match_and_lock(self, key: RadixKey, limit: int | None = None, priority: int = 0) -> Match:
        """`match_prefix` and `lock` of the node it finds, in one locked section."""
        return self._match(key, limit, priority, lock=True)

    def match_length(self, key: RadixKey, limit: int | None = None) -> int:
        """The `num_tokens` that `match_prefix` would give. Changes nothing, for comparing requests."""
        most = match_limit(key, limit)
        with self._lock:
            return self._tree.match_length(key, most)

    def cursor(self, key: RadixKey, limit: int | None = None) -> MatchCursor:
        """For a key whose `match_length` is asked again and again: `match_lengths` answers."""
        end = self._tree.whole_pages(match_limit(key, limit))
        return MatchCursor(self._tree.root, key, end, self._tree.stride)

    def match_lengths(self, cursors: Iterable[MatchCursor]) -> list[int]:
        """The `match_length` of each cursor's key now; 0.2 us where the tree along its path is as it was.

        Takes no lock: it only reads, and nobody but the thread that calls it writes.
        """
        return match_lengths(cursors, self._tree.root, self._tree.stride)

    def _match(self, key: RadixKey, limit: int | None, priority: int, lock: bool) -> Match:
        most = match_limit(key, limit)
        tree = self._tree
        with self._lock:
            node, num_tokens, num_settled, parts = tree.match_prefix(key, most, priority)
            if lock:
                tree.inc_lock_ref(node)
            self._lookup_tokens += len(key)
            self._hit_tokens += num_tokens
        return Match(node, num_tokens, to_array(parts), num_settled)

    def insert(
        self,
        key: RadixKey,
        pages: npt.NDArray[np.int32],
        pending: int | None = None,
        priority: int = 0,
    ) -> Insertion:
        """Add `key`, cut down to whole pages, as far as it is not there: one new node at most.

        Args:
            pages: `pages[i]` holds the tokens `[i * page_size, (i + 1) * page_size)` of the key; what stands
                behind the last whole page is not looked at.
            pending: the command whose step writes the new pages; None when they are written. Below a pending
                node the new one is pending too, at least until that one is settled.
            priority: of the request that inserts.

        Raises:
            ValueError: `pages` is not int32 of one dimension, or too short.
        """
        if not self._enabled:
            return Insertion(self._tree.root, 0, 0)
        page_bytes = self._to_bytes(key, pages)
        with self._lock:
            return Insertion(*self._tree.insert(key, page_bytes, pending, priority))

    def insert_and_lock(
        self,
        key: RadixKey,
        pages: npt.NDArray[np.int32],
        pending: int | None = None,
        unlock: TreeNode | None = None,
        priority: int = 0,
    ) -> Insertion:
        """`insert`, and where it took pages, the lock of `unlock` (None: a new one) moves to its node.

        Where nothing was taken, locks stay as they are: the caller does not read the pages that were there.

        Raises:
            ValueError: as `insert`.
            TreeStateError: `unlock` has no lock; nothing is changed.
        """
        tree = self._tree
        if not self._enabled:
            return Insertion(tree.root, 0, 0)
        page_bytes = self._to_bytes(key, pages)
        old = tree.root if unlock is None else unlock
        with self._lock:
            check_locked(old, tree.root)
            node, num_present, num_taken = tree.insert(key, page_bytes, pending, priority)
            if num_taken:
                tree.move_lock(old, node)
        return Insertion(node, num_present, num_taken)

    def _to_bytes(self, key: RadixKey, pages: npt.NDArray[np.int32]) -> bytes:
        num_pages = len(key) // self._tree.page_size
        if pages.dtype != np.int32 or pages.ndim != 1 or len(pages) < num_pages:
            raise ValueError(
                f"pages: {pages.dtype} of shape {pages.shape} given, one dimension of int32 wanted, at least "
                f"{num_pages} of them for {len(key)} tokens at page size {self._tree.page_size}"
            )
        return pages[:num_pages].tobytes()

    # ---- locks

    def lock(self, node: TreeNode) -> None:
        """Keep `node` and all above it from eviction until `unlock`; locks count. On the root: nothing.

        Raises:
            TreeStateError: `node` is no longer in the tree.
        """
        with self._lock:
            self._tree.inc_lock_ref(node)

    def unlock(self, node: TreeNode) -> None:
        """Undo one `lock`. On the root: nothing.

        Raises:
            TreeStateError: `node` has no lock.
        """
        with self._lock:
            self._tree.dec_lock_ref(node)

    def move_lock(self, old: TreeNode, new: TreeNode) -> None:
        """`lock(new)`, then `unlock(old)`, in one locked section; what both share is not touched.

        Raises:
            TreeStateError: `old` has no lock, or `new` is no longer in the tree; nothing is changed.
        """
        with self._lock:
            self._tree.move_lock(old, new)

    # ---- pending nodes

    def settle(self, applied: int) -> None:
        """The steps of all commands up to `applied` are done: what they wrote is settled."""
        with self._lock:
            self._tree.settle(applied)

    def remove_pending(self) -> npt.NDArray[np.int32]:
        """After a failed step: remove all pending nodes, and return their pages.

        Raises:
            TreeStateError: one of them is still locked; nothing is changed.
        """
        with self._lock:
            parts = self._tree.remove_pending()
        return to_array(parts)

    # ---- eviction

    def evict(self, num_pages: int) -> npt.NDArray[np.int32]:
        """Take pages out of the tree: exactly `num_pages`, or all evictable ones if there are fewer.

        Leaves go first, in the policy's order, the last of them only as far as needed, from its end.
        """
        with self._lock:
            before = self._tree.num_pages
            parts = self._tree.evict(num_pages)
            self._num_evicted += before - self._tree.num_pages
        return to_array(parts)

    def clear(self) -> npt.NDArray[np.int32]:
        """Forget everything (a flush), and return all pages.

        Raises:
            TreeStateError: something is locked or pending; nothing is changed.
        """
        with self._lock:
            old = self._tree.clear()
        return to_array(unlink(old))

    # ---- what guests see

    @property
    def root(self) -> TreeNode:
        return self._tree.root

    @property
    def enabled(self) -> bool:
        return self._enabled

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        return self._tree.page_size

    @property
    def num_pages(self) -> int:
        """Pages that the tree owns."""
        return self._tree.num_pages

    @property
    def num_evictable(self) -> int:
        """Pages that `evict` can free now."""
        return self._tree.num_evictable

    @property
    def num_protected(self) -> int:
        """Pages that are locked or pending."""
        with self._lock:
            return self._tree.num_pages - self._tree.num_evictable

    def stats(self) -> RadixStats:
        tree = self._tree
        with self._lock:
            return RadixStats(
                num_nodes=tree.num_nodes,
                num_pages=tree.num_pages,
                num_evictable=tree.num_evictable,
                num_protected=tree.num_pages - tree.num_evictable,
                num_pending=tree.pending.num_pages,
                lookup_tokens=self._lookup_tokens,
                hit_tokens=self._hit_tokens,
                num_evicted=self._num_evicted,
            )

    def snapshot(self, max_nodes: int = 256, head_tokens: int = 16, max_depth: int | None = None) -> TreeView:
        """The top of the tree: at most `max_nodes` nodes, with the first `head_tokens` token ids of each."""
        with self._lock:
            seen = sight(self._tree, max_nodes, max_depth)
            num_nodes, num_pages = self._tree.num_nodes, self._tree.num_pages
        return picture(self.page_size, num_nodes, num_pages, seen, head_tokens)

    def check_integrity(self) -> None:
        """Recount everything, under the lock.

        Raises:
            IntegrityError: the tree contradicts itself.
        """
        with self._lock:
            check_integrity(self._tree)

    def __repr__(self) -> str:
        return f"RadixCache({'on' if self._enabled else 'off'}, {self._eviction_policy}, {self._tree!r})"
