"""Which host page holds which content: what the KV pool had no room for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile


class HostIndex:
    """Thread: control. Host pages ``[first_page, first_page + num_pages)`` by the hash of their content, in LRU order.

    A hash stands for all tokens from the root on (see `content_hash`), so that a page is right wherever it is found.
    Who uses pages again and writes others does both by commands in one queue: a page may be given to another content
    at once.
    """

    def __init__(self, first_page: int, num_pages: int) -> None:
        self._pages: dict[bytes, int] = {}  # the least recently used first
        self._free = list(range(first_page + num_pages - 1, first_page - 1, -1))
        self.num_pages = num_pages

    def __len__(self) -> int:
        return len(self._pages)

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The host pages of the longest run of `hashes`, from its first on, that is here; they count as used.

        Takes no more of `hashes` than the run and the one behind it.
        """
        run = list(takewhile(self._pages.__contains__, hashes))
        self._touch(run)
        return [self._pages[page_hash] for page_hash in run]

    def place(self, hashes: Sequence[bytes]) -> tuple[list[int], list[int]]:
        """Room for contents that are to be kept, the least recently used ones leaving for them.

        Returns:
            Which of `hashes` must be copied, as indices, and the host page of each. What is here already needs no
            copy. Of more than `num_pages`, the first ones are kept: what lies behind a gap would never be found.
        """
        hashes = hashes[: self.num_pages]
        self._touch([page_hash for page_hash in hashes if page_hash in self._pages])
        places, pages = [], []
        for place in reversed(range(len(hashes))):
            if hashes[place] in self._pages:
                continue
            page = self._free.pop() if self._free else self._pages.pop(next(iter(self._pages)))
            self._pages[hashes[place]] = page
            places.append(place)
            pages.append(page)
        return places, pages

    def clear(self) -> None:
        self._free.extend(self._pages.values())
        self._pages.clear()

    def _touch(self, hashes: Sequence[bytes]) -> None:
        """The first of them goes last: without it the others are of no use."""
        for page_hash in reversed(hashes):
            self._pages[page_hash] = self._pages.pop(page_hash)

    def __repr__(self) -> str:
        return f"HostIndex({len(self._pages)} of {self.num_pages} pages)"
