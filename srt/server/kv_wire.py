"""KV events as they stand on the wire: what subscribers of the field's servers already read.

A batch is the msgpack array ``[ts, events, data_parallel_rank]``; each event is a map whose ``type`` names it. A
message has three frames: the topic, the batch's number (8 bytes, big-endian, from 0 without a gap), and the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import orjson

from radix_cache.block_ledger import Block
from radix_cache.content_hash import block_number

NUMBER_BYTES = 8
MEDIUM = "GPU"
"""The field's word for the memory that a step reads from, whatever the device is."""


class KvEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True, frozen=True):
    """A block is a page; its hash is the first 8 bytes, big-endian, of its content hash (`content_hash.py`)."""


class BlockStored(KvEvent, frozen=True):
    """Blocks that follow one another, the first of them `parent_block_hash` (None: they begin a sequence).

    `token_ids` has `block_size` ids for each block. `cache_salt` and `extra_key` are those of the requests that may
    match the blocks. `lora_id` and `lora_name` are always None: readers expect the fields.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    cache_salt: str | None = None
    extra_key: str | None = None


class BlockRemoved(KvEvent, frozen=True):
    """Blocks that can no longer be matched."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(KvEvent, frozen=True):
    """Nothing can be matched any more."""


class KvEventBatch(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """`ts` in Unix seconds."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


_ENCODER = msgspec.msgpack.Encoder()


def encode_batch(ts: float, events: list[BlockStored | BlockRemoved | AllBlocksCleared]) -> bytes:
    return _ENCODER.encode(KvEventBatch(ts, events))


def number_frame(number: int) -> bytes:
    """The second frame; -1 is the end of a replay."""
    return number.to_bytes(NUMBER_BYTES, "big", signed=number < 0)


def stored(blocks: Sequence[Block], page_size: int) -> BlockStored:
    """One event for blocks of which each follows the one before."""
    first = blocks[0]
    extra_key, cache_salt = (None, None) if first.namespace is None else orjson.loads(first.namespace)
    return BlockStored(
        block_hashes=[block_number(block.hash) for block in blocks],
        parent_block_hash=None if first.parent is None else block_number(first.parent),
        token_ids=np.frombuffer(b"".join(block.tokens for block in blocks), np.int32).tolist(),
        block_size=page_size,
        lora_id=None,
        medium=MEDIUM,
        lora_name=None,
        cache_salt=cache_salt,
        extra_key=extra_key,
    )


def removed(hashes: Iterable[bytes]) -> BlockRemoved:
    return BlockRemoved([block_number(page_hash) for page_hash in hashes], MEDIUM)


def snapshot(blocks: Sequence[Block], page_size: int) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
    """Events that make any copy equal to `blocks`, in which parents stand before their children."""
    events: list[BlockStored | BlockRemoved | AllBlocksCleared] = [AllBlocksCleared()]
    begin = 0
    for place in range(1, len(blocks) + 1):
        if place == len(blocks) or blocks[place].parent != blocks[place - 1].hash:
            events.append(stored(blocks[begin:place], page_size))
            begin = place
    return events
