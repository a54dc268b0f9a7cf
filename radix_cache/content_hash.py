"""The name of a KV page by its content: a hash over its tokens and over all tokens before it."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

HASH_BYTES: Final = 16
"""Bytes of a page's hash: two of 2**50 pages share one with a chance of about 2**-29."""

_BLOCK_NUMBER_BYTES = 8
_ROOT: Final = b"namespace"
"""Keeps roots apart from pages: no name of a namespace, however chosen, has the hash of somebody's page."""


def root_hash(salt: bytes = b"") -> bytes:
    """What the first page of a namespace has for a parent; `salt` as `RadixKey.salt` (empty: no namespace)."""
    return blake2b(salt, digest_size=HASH_BYTES, person=_ROOT).digest()


def page_hashes(parent: bytes, tokens: bytes, stride: int) -> list[bytes]:
    """The hash of each page of `tokens`, chained: equal hashes mean equal tokens from the root on, and namespace.

    ::

        tokens   [0 ... stride)[stride ... 2 * stride)[...      int32 in machine order, whole pages
        hash      H(parent +    H(hash before +
                    page)         page)

    Args:
        parent: the hash of the page before the first one; `root_hash` where there is none.
        stride: bytes of the tokens of one page.

    Raises:
        ValueError: `tokens` is no whole number of pages.
    """
    if len(tokens) % stride:
        raise ValueError(f"tokens: {len(tokens)} bytes given, whole pages of {stride} bytes wanted")
    return list(chain_hashes(parent, tokens, stride))


def chain_hashes(parent: bytes, tokens: bytes, stride: int) -> Iterator[bytes]:
    """`page_hashes` one by one, for who may stop early; a page that is not whole is left out."""
    view = memoryview(tokens)
    for end in range(stride, len(tokens) + 1, stride):
        hashing = blake2b(parent, digest_size=HASH_BYTES)
        hashing.update(view[end - stride : end])
        parent = hashing.digest()
        yield parent


def block_number(page_hash: bytes) -> int:
    """A page's hash as an unsigned number of 64 bits, for protocols that name a block by a number."""
    return int.from_bytes(page_hash[:_BLOCK_NUMBER_BYTES], "big")
