"""What the cache answers: arrays, and nodes to lock."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radix_cache.key import RadixKey
from radix_cache.tree_node import TreeNode


class Match(NamedTuple):
    """A cached prefix. (A tuple, as `Insertion` is: made in half of a frozen dataclass's time, at every operation.)

    `node` ends it (the root when nothing matched) and is what to lock. `pages` are its KV pages in order,
    read only, `num_tokens / page_size` of them. The first `num_settled` tokens are written; the others will
    be by steps that have been commanded already.
    """

    node: TreeNode
    num_tokens: int
    pages: npt.NDArray[np.int32]
    num_settled: int


class Insertion(NamedTuple):
    """What became of an inserted key.

    `node` ends it, cut down to whole pages. Its first `num_present` tokens were in the tree: the pages given
    for them stay the caller's. The next `num_taken` tokens are new: their pages are the tree's from now on.
    """

    node: TreeNode
    num_present: int
    num_taken: int


def match_limit(key: RadixKey, limit: int | None) -> int:
    """How many tokens of `key` may come from the cache."""
    most = len(key) - 1
    if limit is None:
        return most
    if limit < 0:
        raise ValueError(f"limit: {limit} given, at least 0 tokens wanted")
    return min(most, limit)


def to_array(parts: list[bytes]) -> npt.NDArray[np.int32]:
    """Page ids in one read-only array; a single part is not copied."""
    return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), np.int32)
