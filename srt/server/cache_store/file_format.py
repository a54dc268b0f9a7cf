"""The file of a saved prefix cache, byte by byte.

::

    file    head  run  run ...  end
    head    "TWINLPKV"  version u32  length u32  CacheIdentity as JSON  check
    run     "R"  parent i64  salt length u16  pages u32   salt  tokens int32   check
            then for each page   KV bytes  check
    end     "E"  runs u64  pages u64  check

Numbers are little-endian, tokens and KV in the byte order that the identity names. Pages are numbered through the
file; `parent` is the number of the page that a run follows, -1 at the beginning of a sequence. A check is 16 bytes of
SHA-256: over all bytes of the head, of a run's own part, of the end; for a page over its content hash, which names all
tokens up to it, and its KV bytes. So a page that lies in the wrong place fails as one with a wrong bit does.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Final

import msgspec

from radix_cache.key import TOKEN_BYTES
from srt.core.cache_identity import CacheIdentity
from srt.core.save_messages import SavedRun

FILE_NAME: Final = "prefix_cache.kv"
NEW_SUFFIX: Final = ".new"
MAGIC: Final = b"TWINLPKV"
VERSION: Final = 1
CHECK_BYTES: Final = 16
PREFIX: Final = struct.Struct("<8sII")
RUN: Final = struct.Struct("<cqHI")
END: Final = struct.Struct("<cQQ")
RUN_MARK: Final = b"R"
END_MARK: Final = b"E"
MOST_HEAD_BYTES: Final = 1 << 16


class UnusableFile(Exception):
    """The file cannot be read here: the message says why. Nothing of it may be used."""


def check_of(*parts: bytes | memoryview) -> bytes:
    """The check over `parts` in a row."""
    hashing = sha256()
    for part in parts:
        hashing.update(part)
    return hashing.digest()[:CHECK_BYTES]


def encode_head(identity: CacheIdentity) -> bytes:
    body = msgspec.json.encode(identity)
    head = PREFIX.pack(MAGIC, VERSION, len(body)) + body
    return head + check_of(head)


def encode_run(run: SavedRun) -> bytes:
    """A run's own part: what stands before its pages."""
    part = RUN.pack(RUN_MARK, run.parent, len(run.salt), run.num_pages) + run.salt + run.tokens
    return part + check_of(part)


def encode_end(num_runs: int, num_pages: int) -> bytes:
    end = END.pack(END_MARK, num_runs, num_pages)
    return end + check_of(end)


def run_tail_bytes(salt_length: int, num_pages: int, page_size: int) -> int:
    """Bytes of a run's own part behind its fixed ones."""
    return salt_length + num_pages * page_size * TOKEN_BYTES + CHECK_BYTES


def record_bytes(identity: CacheIdentity) -> int:
    """Bytes that a page takes in the file, without its share of the run's own part."""
    return identity.page_bytes + CHECK_BYTES + identity.page_size * TOKEN_BYTES
