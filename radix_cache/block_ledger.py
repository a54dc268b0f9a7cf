"""A copy of the tree that is kept from its journal: each page with its name by content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from radix_cache.content_hash import page_hashes, root_hash
from radix_cache.key import TOKEN_BYTES, encode_namespace


class LedgerError(Exception):
    """A change speaks of a page that is not here, or already here: something before it was lost."""


class Block(NamedTuple):
    """One page of the tree. `parent` is the hash of the page before it, None where a sequence begins."""

    hash: bytes
    parent: bytes | None
    tokens: bytes
    namespace: str | None


class BlockLedger:
    """Thread: its maker's. Follows the changes of one tree, in their order; the tree itself may be anywhere.

    It holds a block for each page, about 0.3 kB with its tokens at page size 16: never more than the pool has pages.
    """

    def __init__(self, page_size: int) -> None:
        self._stride = page_size * TOKEN_BYTES
        # In the order of arrival: a page that comes back is entered anew, so that parents stand before their children.
        self._blocks: dict[int, Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def store(
        self, parent_page: int, namespace: str | None, tokens: bytes, pages: Sequence[int]
    ) -> list[Block]:
        """Enter pages that follow one another, the first of them `parent_page` (negative: nothing).

        Raises:
            LedgerError: `parent_page` is not here, or one of `pages` is; nothing is changed.
        """
        above = self._blocks.get(parent_page)
        if above is None and parent_page >= 0:
            raise LedgerError(f"page {parent_page} is not here, though others follow it")
        if not self._blocks.keys().isdisjoint(pages):
            raise LedgerError(f"one of the pages {list(pages)} is here already")
        stride = self._stride
        parent = None if above is None else above.hash
        start = root_hash(b"" if namespace is None else encode_namespace(namespace))
        blocks = []
        for place, page_hash in enumerate(page_hashes(parent or start, tokens, stride)):
            blocks.append(
                Block(page_hash, parent, tokens[place * stride : place * stride + stride], namespace)
            )
            parent = page_hash
        self._blocks.update(zip(pages, blocks, strict=True))
        return blocks

    def hash_of(self, page: int) -> bytes:
        """Raises:
        LedgerError: the page is not here.
        """
        block = self._blocks.get(page)
        if block is None:
            raise LedgerError(f"page {page} is not here")
        return block.hash

    def remove(self, pages: Sequence[int]) -> list[bytes]:
        """Forget pages; their hashes.

        Raises:
            LedgerError: one of them is not here.
        """
        try:
            return [self._blocks.pop(page).hash for page in pages]
        except KeyError as error:
            raise LedgerError(f"page {error} is not here, though it is to be removed") from None

    def clear(self) -> None:
        self._blocks.clear()

    def blocks(self) -> list[Block]:
        """All that is here; a block stands behind its parent."""
        return list(self._blocks.values())

    def __repr__(self) -> str:
        return f"BlockLedger({len(self._blocks)} blocks)"
