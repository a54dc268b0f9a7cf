"""A saved cache comes back: pages for its KV, and a tree over them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

import numpy as np

from control_loop.cache_manager import CacheManager
from radix_cache.key import TOKEN_BYTES, RadixKey, decode_namespace
from srt.core.messages import Int32Array, empty_int32
from srt.core.save_messages import NO_RECORD, SavedRun

CopyIn = Callable[[Int32Array], None]
"""Copies the KV of the run that came last, its first pages, to these pages of the pool."""


def restore(manager: CacheManager, runs: Iterable[SavedRun], copy_in: CopyIn) -> int:
    """Fills the pool with saved pages, as many as fit, and enters them into the tree; how many tokens.

    Nothing is in the tree before `runs` has come to its end: when it raises, every page is given back, and the
    exception goes on. Called before the loops start.
    """
    records = _Records(manager.cache.page_size)
    parts: list[Int32Array] = []
    try:
        for run in runs:
            pages = manager.allocator.alloc(min(run.num_pages, manager.allocator.num_free))
            assert pages is not None
            copy_in(pages)
            parts.append(pages)
            records.add(run, len(pages))
            if len(pages) < run.num_pages:
                break
    except BaseException:
        for pages in parts:
            manager.allocator.free(pages)
        raise
    pages = np.concatenate(parts) if parts else empty_int32()
    return _enter(manager, records, pages) * manager.cache.page_size


def _enter(manager: CacheManager, records: _Records, pages: Int32Array) -> int:
    """Inserts every path once, the most recently used one last; pages that the tree did not take are freed."""
    taken = np.zeros(len(pages), np.bool_)
    for end in reversed(records.ends()):
        path, key = records.path(end)
        inserted = manager.cache.insert(key, pages[path])
        first = inserted.num_present // manager.cache.page_size
        taken[path[first : first + inserted.num_taken // manager.cache.page_size]] = True
    manager.allocator.free(pages[~taken])
    return int(taken.sum())


class _Records:
    """Runs by the numbers of their pages.

    ::

        run k     [first[k] ...... first[k] + number of its pages)     follows page `parent`
    """

    def __init__(self, page_size: int) -> None:
        self._stride = page_size * TOKEN_BYTES
        self._runs: list[SavedRun] = []
        self._first: list[int] = []
        self._num_pages = 0

    def add(self, run: SavedRun, num_pages: int) -> None:
        """Of the run only the first `num_pages` pages are there."""
        if num_pages:
            self._runs.append(run)
            self._first.append(self._num_pages)
            self._num_pages += num_pages

    def ends(self) -> list[int]:
        """The last page of each run that no other run follows there."""
        followed = {run.parent for run in self._runs}
        ends = [first - 1 for first in [*self._first[1:], self._num_pages]]
        return [end for end in ends if end not in followed and end >= 0]

    def path(self, end: int) -> tuple[Int32Array, RadixKey]:
        """The pages from the beginning of a sequence to page `end`, and their tokens."""
        pages: list[Int32Array] = []
        tokens: list[bytes] = []
        salt = b""
        while end != NO_RECORD:
            index = bisect_right(self._first, end) - 1
            run, first = self._runs[index], self._first[index]
            pages.append(np.arange(first, end + 1, dtype=np.int32))
            tokens.append(run.tokens[: (end + 1 - first) * self._stride])
            end, salt = run.parent, run.salt
        ids = np.frombuffer(b"".join(reversed(tokens)), np.int32)
        return np.concatenate(pages[::-1]), RadixKey(ids, decode_namespace(salt))
