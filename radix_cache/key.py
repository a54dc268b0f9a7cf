"""What the tree is searched by: token ids as compact bytes, inside a namespace."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

TOKEN_BYTES = 4
"""Bytes of one token id (int32)."""


@dataclass(frozen=True, slots=True, init=False)
class RadixKey:
    """Token ids of one sequence and the namespace in which they may match.

    `data` holds the ids as int32 in machine order, so that a run of tokens is compared by one memcmp and a
    slice of it is a dict key. `salt` is what the namespace adds to the first page's dict key: the page has a
    fixed length, so page plus salt is unambiguous, and the empty namespace differs from no namespace.
    """

    data: bytes
    namespace: str | None
    salt: bytes = field(repr=False, compare=False)

    def __init__(self, token_ids: npt.NDArray[np.int32], namespace: str | None = None) -> None:
        """Copy `token_ids` (one dimension, int32).

        Raises:
            ValueError: `token_ids` has another dtype or shape.
        """
        if token_ids.dtype != np.int32 or token_ids.ndim != 1:
            raise ValueError(
                f"token_ids: {token_ids.dtype} of shape {token_ids.shape} given, one dimension of int32 "
                "wanted; convert with np.asarray(ids, dtype=np.int32)"
            )
        object.__setattr__(self, "data", token_ids.tobytes())
        object.__setattr__(self, "namespace", namespace)
        object.__setattr__(self, "salt", b"" if namespace is None else encode_namespace(namespace))

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.data) // TOKEN_BYTES


def encode_namespace(namespace: str) -> bytes:
    """The salt of a namespace; never empty."""
    return b"\0" + namespace.encode("utf-8", "surrogatepass")


def decode_namespace(salt: bytes) -> str | None:
    """The namespace that a salt stands for (the inverse of `encode_namespace`; empty: no namespace)."""
    return salt[1:].decode("utf-8", "surrogatepass") if salt else None


def common_prefix_bytes(data: bytes, start: int, tokens: bytes, size: int) -> int:
    """How many leading bytes of `tokens` equal `data[start:]`, looking at `size` bytes, in whole tokens."""
    num_tokens = size // TOKEN_BYTES
    left = np.frombuffer(data, np.int32, num_tokens, start)
    differs = left != np.frombuffer(tokens, np.int32, num_tokens)
    first = int(differs.argmax()) if num_tokens else 0
    return (first if num_tokens and differs[first] else num_tokens) * TOKEN_BYTES
