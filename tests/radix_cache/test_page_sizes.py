"""Whole pages only, at every page size: a match rounds down and never loses the node above."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from radix_cache.key import RadixKey
from radix_cache.radix_cache import RadixCache

SIZES = [1, 16, 32, 64]


def ids(*runs: range) -> npt.NDArray[np.int32]:
    return np.concatenate([np.arange(run.start, run.stop, dtype=np.int32) for run in runs])


@pytest.mark.parametrize("size", SIZES)
def test_b10_lengths_around_a_page(size: int) -> None:
    for length in sorted({0, 1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1}):
        cache = RadixCache(size)
        whole = length // size * size
        inserted = cache.insert(RadixKey(ids(range(length))), ids(range(100, 103)))
        assert (inserted.num_present, inserted.num_taken) == (0, whole)
        for asked in range(3 * size + 2):
            match = cache.match_prefix(RadixKey(ids(range(asked))))
            assert match.num_tokens == min(max(asked - 1, 0) // size * size, whole)
            assert match.pages.tolist() == list(range(100, 100 + match.num_tokens // size))
        cache.check_integrity()
        assert len(cache.evict(99)) == whole // size
        assert cache.stats().num_nodes == 0


@pytest.mark.parametrize("size", SIZES)
def test_keys_that_part_inside_a_page_share_only_the_pages_before(size: int) -> None:
    trunk = 4 * size
    for parting in sorted({1, size - 1, size, size + 1, 2 * size, 3 * size - 1, 4 * size - 1}):
        cache = RadixCache(size)
        cache.insert(RadixKey(ids(range(trunk))), ids(range(10, 14)))
        other = ids(range(parting), range(1000, 1000 + trunk - parting))
        shared = parting // size * size
        match = cache.match_prefix(RadixKey(other))
        assert match.num_tokens == shared
        if shared:
            assert match.node is not cache.root and match.node.num_tokens == shared, (
                "the node above is the match's end"
            )
        inserted = cache.insert(RadixKey(other), ids(range(20, 24)))
        assert (inserted.num_present, inserted.num_taken) == (shared, trunk - shared)
        for key, pages in ((ids(range(trunk)), range(10, 14)), (other, range(20, 24))):
            found = cache.match_prefix(RadixKey(np.append(key, np.int32(5))))
            kept = shared // size
            assert found.pages.tolist() == [*range(10, 10 + kept), *list(pages)[kept:]]
        cache.check_integrity()


@pytest.mark.parametrize("size", SIZES)
def test_an_evicted_tail_is_whole_pages_and_the_rest_still_matches(size: int) -> None:
    cache = RadixCache(size)
    key = RadixKey(ids(range(8 * size + size // 2)))
    cache.insert(key, ids(range(8)))
    for left in range(7, -1, -1):
        assert cache.evict(1).tolist() == [left]
        assert cache.match_length(key) == left * size
        cache.check_integrity()
