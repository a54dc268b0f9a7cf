"""A router's copy of a server's cache, made from nothing but what stands on the wire."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

Prefix = tuple[str | None, str | None, tuple[int, ...]]
"""extra_key, cache_salt, and the tokens from the beginning to the end of a block."""


@dataclass
class Replica:
    """Reads batches as plain msgpack, and fails on whatever does not fit what came before.

    `blocks[hash]` has the prefix that ends with the block. Batches are numbered from `next_number` on; a first one may
    have any number.
    """

    page_size: int
    blocks: dict[int, Prefix] = field(default_factory=dict)
    next_number: int | None = None
    num_events: int = 0

    def read(self, number: int, batch: bytes) -> bool:
        """Takes in one batch; False, and nothing is done, when those before it are missing or it is known."""
        if self.next_number is not None and number != self.next_number:
            return False
        self.next_number = number + 1
        ts, events, rank = msgspec.msgpack.decode(batch)
        assert isinstance(ts, float) and rank is None
        for event in events:
            self.num_events += 1
            getattr(self, "on_" + event.pop("type"))(**event)
        return True

    def read_whole(self, number: int, batch: bytes) -> None:
        """Takes in a batch that begins anew, whatever its number is."""
        self.next_number = number
        assert self.read(number, batch)

    def on_BlockStored(  # noqa: N802
        self,
        block_hashes: list[int],
        parent_block_hash: int | None,
        token_ids: list[int],
        block_size: int,
        medium: str,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        **unused: Any,
    ) -> None:
        assert block_size == self.page_size and len(token_ids) == block_size * len(block_hashes) > 0
        assert medium == "GPU" and unused == {"lora_id": None, "lora_name": None}
        before: Prefix = (extra_key, cache_salt, ())
        if parent_block_hash is not None:
            before = self.blocks[parent_block_hash]
        assert before[:2] == (extra_key, cache_salt)
        for place, block_hash in enumerate(block_hashes, start=1):
            assert 0 <= block_hash < 2**64 and block_hash not in self.blocks
            self.blocks[block_hash] = (
                extra_key,
                cache_salt,
                before[2] + tuple(token_ids[: place * block_size]),
            )

    def on_BlockRemoved(self, block_hashes: list[int], medium: str) -> None:  # noqa: N802
        assert medium == "GPU" and block_hashes
        for block_hash in block_hashes:
            del self.blocks[block_hash]

    def on_AllBlocksCleared(self) -> None:  # noqa: N802
        self.blocks.clear()

    def prefixes(self) -> set[Prefix]:
        found = set(self.blocks.values())
        assert len(found) == len(self.blocks), "two hashes for the same tokens"
        return found
