"""Which KV pages are free. Numbers only: the tensors are in `kv_pool`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from srt.core.messages import Int32Array, empty_int32


class PageAllocator:
    """Thread: control. Hands out pages 1 ... num_pages; page 0 is the dummy that padding points to.

    Most recently freed pages go out first: their memory is the likeliest to be in a cache. A page freed twice, or one
    that was never handed out, is an error at once and not a wrong token later.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"num_pages is {num_pages}, a pool needs at least 1 page")
        self.num_pages = num_pages
        self._stack: Int32Array = np.arange(num_pages, 0, -1, dtype=np.int32)
        self._num_free = num_pages
        self._is_free: npt.NDArray[np.bool_] = np.ones(num_pages + 1, np.bool_)
        self._is_free[0] = False

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_used(self) -> int:
        return self.num_pages - self._num_free

    def alloc(self, count: int) -> Int32Array | None:
        """`count` page ids, or None (and no change) when fewer are free."""
        if count > self._num_free:
            return None
        if count == 0:
            return empty_int32()
        self._num_free -= count
        pages = self._stack[self._num_free : self._num_free + count].copy()
        self._is_free[pages] = False
        return pages

    def free(self, pages: Int32Array) -> None:
        """Takes pages back.

        Raises:
            ValueError: a page is free already, is named twice, or does not exist; nothing was changed.
        """
        if len(pages) == 0:
            return
        if int(pages.min()) < 1 or int(pages.max()) > self.num_pages:
            raise ValueError(f"pages {pages.tolist()} are not all within 1 to {self.num_pages}")
        in_order = np.sort(pages)
        if self._is_free[pages].any() or (in_order[1:] == in_order[:-1]).any():
            raise ValueError(f"a page of {pages.tolist()} was freed twice")
        self._is_free[pages] = True
        self._stack[self._num_free : self._num_free + len(pages)] = pages
        self._num_free += len(pages)

    def __repr__(self) -> str:
        return f"PageAllocator({self._num_free} of {self.num_pages} pages free)"
