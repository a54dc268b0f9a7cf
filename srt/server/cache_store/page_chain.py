"""The content hashes of a file's pages, by their number."""

from __future__ import annotations

from radix_cache.content_hash import HASH_BYTES, page_hashes, root_hash
from radix_cache.key import TOKEN_BYTES
from srt.core.save_messages import NO_RECORD, SavedRun


class PageChain:
    """One thread at a time. 16 bytes a page, in the order of the file."""

    def __init__(self, page_size: int) -> None:
        self._stride = page_size * TOKEN_BYTES
        self._hashes = bytearray()

    def __len__(self) -> int:
        """Pages so far."""
        return len(self._hashes) // HASH_BYTES

    def add(self, run: SavedRun) -> list[bytes]:
        """The hashes of the run's pages, which are the next in the file. Its parent must be in there already."""
        if run.parent == NO_RECORD:
            parent = root_hash(run.salt)
        else:
            start = run.parent * HASH_BYTES
            parent = bytes(self._hashes[start : start + HASH_BYTES])
        hashes = page_hashes(parent, run.tokens, self._stride)
        self._hashes += b"".join(hashes)
        return hashes
