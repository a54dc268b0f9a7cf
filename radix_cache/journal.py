"""A radix cache that writes down what enters and leaves it, for those who keep a copy of it elsewhere."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radix_cache.key import RadixKey
from radix_cache.radix_cache import RadixCache
from radix_cache.results import Insertion
from radix_cache.tree_node import PAGE_ID_BYTES, TreeNode

NO_PAGE = -1
"""What the first page of a sequence has for a page before it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Pages that follow page `parent_page` (`NO_PAGE`: they begin a sequence) have entered the tree.

    `tokens` and `pages` are int32 bytes, `page_size` tokens for each page.
    """

    parent_page: int
    namespace: str | None
    tokens: bytes
    pages: bytes


@dataclass(frozen=True, slots=True)
class Removed:
    """These pages (int32) have left the tree. Whatever followed one of them is among them or has left before."""

    pages: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Cleared:
    """The tree is empty."""


Change = Stored | Removed | Cleared


class Journal:
    """Thread: control. What has changed since its reader looked last. Each reader has its own."""

    def __init__(self) -> None:
        self._changes: list[Change] = []

    def append(self, change: Change) -> None:
        self._changes.append(change)

    def drain(self) -> list[Change]:
        """What has changed since the last call, in its order."""
        changes, self._changes = self._changes, []
        return changes


class JournaledCache(RadixCache):
    """Thread: control. A page is in the tree once at most, so that its id names it for as long as it is there.

    That makes the journal cheap: splits, locks and settled steps change nothing that it speaks of, and an entry refers
    to bytes that exist already. A page that a step is still going to write counts: whoever matches it may lean on it.
    """

    def __init__(self, page_size: int = 16, eviction_policy: str = "lru", enabled: bool = True) -> None:
        super().__init__(page_size, eviction_policy, enabled)
        self._journals: list[Journal] = []

    def open_journal(self) -> Journal:
        """For a reader who sees everything from now on; it must be drained for as long as the cache lives."""
        self._journals.append(Journal())
        return self._journals[-1]

    def insert(
        self,
        key: RadixKey,
        pages: npt.NDArray[np.int32],
        pending: int | None = None,
        priority: int = 0,
    ) -> Insertion:
        return self._stored(super().insert(key, pages, pending, priority), key)

    def insert_and_lock(
        self,
        key: RadixKey,
        pages: npt.NDArray[np.int32],
        pending: int | None = None,
        unlock: TreeNode | None = None,
        priority: int = 0,
    ) -> Insertion:
        return self._stored(super().insert_and_lock(key, pages, pending, unlock, priority), key)

    def remove_pending(self) -> npt.NDArray[np.int32]:
        return self._removed(super().remove_pending())

    def evict(self, num_pages: int) -> npt.NDArray[np.int32]:
        return self._removed(super().evict(num_pages))

    def clear(self) -> npt.NDArray[np.int32]:
        pages = super().clear()
        self._write(Cleared())
        return pages

    def _stored(self, insertion: Insertion, key: RadixKey) -> Insertion:
        """An insertion that takes anything adds one leaf, which has just what is new."""
        node = insertion.node
        if insertion.num_taken and node.parent is not None:
            before = node.parent.pages[-PAGE_ID_BYTES:]
            parent_page = int.from_bytes(before, sys.byteorder) if before else NO_PAGE
            self._write(Stored(parent_page, key.namespace, node.tokens, node.pages))
        return insertion

    def _removed(self, pages: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        if len(pages):
            self._write(Removed(pages))
        return pages

    def _write(self, change: Change) -> None:
        for journal in self._journals:
            journal.append(change)
