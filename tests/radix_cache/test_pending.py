"""Nodes that are scheduled and not written yet (pending), written ones (settled), and failed steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from radix_cache.errors import TreeStateError
from radix_cache.radix_cache import RadixCache
from radix_cache.results import Insertion
from tests.radix_cache.model import contents, key_of


def pages(*numbers: int) -> npt.NDArray[np.int32]:
    return np.array(numbers, dtype=np.int32)


def insert(
    cache: RadixCache, tokens: tuple[int, ...], first_page: int, pending: int | None = None
) -> Insertion:
    count = len(tokens) // cache.page_size
    return cache.insert(
        key_of(tokens), np.arange(first_page, first_page + count, dtype=np.int32), pending=pending
    )


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_pending_node_matches_and_is_not_settled(page_size: int) -> None:
    cache = RadixCache(page_size)
    first, second = (1,) * 8, (1,) * 8 + (2,) * 8
    insert(cache, first, 0)
    insert(cache, second, 0, pending=5)
    match = cache.match_prefix(key_of((*second, 3)))
    assert (match.num_tokens, match.num_settled) == (16, 8)
    cache.settle(4)
    assert cache.match_prefix(key_of((*second, 3))).num_settled == 8
    cache.settle(5)
    assert cache.match_prefix(key_of((*second, 3))).num_settled == 16


def test_a_pending_node_is_never_evicted_nor_what_leads_to_it() -> None:
    cache = RadixCache(page_size=1)
    insert(cache, (1, 2), 0)
    insert(cache, (1, 2, 3), 0, pending=1)
    insert(cache, (9,), 9)
    assert (cache.num_evictable, cache.num_protected, cache.stats().num_pending) == (1, 3, 1)
    assert cache.evict(5).tolist() == [9]
    cache.settle(1)
    assert (cache.num_evictable, cache.stats().num_pending) == (3, 0)
    assert sorted(cache.evict(5).tolist()) == [0, 1, 2]


def test_a_split_of_a_pending_node_settles_as_a_whole() -> None:
    cache = RadixCache(page_size=1)
    end = insert(cache, (1, 2, 3, 4), 0, pending=7).node
    upper = cache.match_and_lock(key_of((1, 2, 9))).node
    top = cache.match_prefix(key_of((1, 8))).node
    assert [node.pending for node in (top, upper, end)] == [7, 7, 7]
    cache.check_integrity()
    cache.settle(7)
    assert [node.pending for node in (top, upper, end)] == [None, None, None]
    assert [node.lock_ref for node in (top, upper, end)] == [1, 1, 0]
    cache.check_integrity()


def test_a_node_is_never_settled_before_its_parent() -> None:
    """A request ends with tokens that another one's unwritten prompt repeats: what follows waits for it."""
    cache = RadixCache(page_size=1)
    insert(cache, (1, 2), 0, pending=7)
    below = insert(cache, (1, 2, 3), 10).node
    older = insert(cache, (1, 2, 4), 20, pending=5).node
    newer = insert(cache, (1, 2, 5), 30, pending=8).node
    assert [node.pending for node in (below, older, newer)] == [7, 7, 8]
    cache.settle(6)
    assert cache.stats().num_pending == 5
    cache.settle(7)
    assert [node.pending for node in (below, older, newer)] == [None, None, 8]
    cache.check_integrity()


def test_one_command_may_write_several_nodes_of_one_path() -> None:
    cache = RadixCache(page_size=1)
    insert(cache, (1, 2), 0, pending=3)
    insert(cache, (1, 2, 3, 4), 0, pending=3)
    insert(cache, (5,), 9, pending=3)
    cache.check_integrity()
    cache.settle(3)
    assert (cache.stats().num_pending, cache.num_protected) == (0, 0)
    cache.check_integrity()


def test_corner_14_remove_pending_leaves_nothing_unwritten_to_match() -> None:
    cache = RadixCache(page_size=1)
    insert(cache, (1, 2), 0)
    insert(cache, (1, 2, 3, 4), 10, pending=3)
    insert(cache, (1, 2, 3, 4, 5), 20, pending=4)
    insert(cache, (1, 2, 3, 6), 30, pending=4)
    insert(cache, (8, 9), 40, pending=4)
    assert sorted(cache.remove_pending().tolist()) == [12, 13, 24, 33, 40, 41]
    assert [page.page for page in contents(cache).values()] == [0, 1]
    assert (cache.num_evictable, cache.num_protected, cache.stats().num_pending) == (2, 0, 0)
    cache.check_integrity()
    assert cache.evict(2).tolist() == [0, 1]


def test_remove_pending_keeps_what_settled() -> None:
    cache = RadixCache(page_size=1)
    insert(cache, (1, 2), 0, pending=3)
    insert(cache, (1, 2, 3), 0, pending=4)
    cache.settle(3)
    assert cache.remove_pending().tolist() == [2]
    assert cache.num_evictable == 2
    assert cache.remove_pending().tolist() == []


def test_remove_pending_refuses_while_a_request_leans_on_it() -> None:
    cache = RadixCache(page_size=1)
    end = cache.insert_and_lock(key_of((1, 2, 3, 4)), pages(0, 1, 2, 3), pending=3).node
    upper = cache.match_and_lock(key_of((1, 2, 9))).node
    for node in (upper, end):
        with pytest.raises(TreeStateError, match="locks are still held"):
            cache.remove_pending()
        assert cache.num_pages == 4
        cache.unlock(node)
    assert cache.remove_pending().tolist() == [0, 1, 2, 3]
    cache.check_integrity()


def test_a_lock_above_the_pending_nodes_is_no_obstacle() -> None:
    cache = RadixCache(page_size=1)
    settled = cache.insert_and_lock(key_of((1, 2)), pages(0, 1)).node
    insert(cache, (1, 2, 3), 0, pending=1)
    assert cache.remove_pending().tolist() == [2]
    assert (settled.lock_ref, cache.num_protected) == (1, 2)
    cache.unlock(settled)
    assert cache.num_evictable == 2


def test_unlock_before_settle_keeps_the_pages_until_they_are_written() -> None:
    """A leader dropped early still writes and settles its chunk."""
    cache = RadixCache(page_size=1)
    node = cache.insert_and_lock(key_of((1, 2)), pages(0, 1), pending=3).node
    cache.unlock(node)
    assert (cache.num_evictable, len(cache.evict(2))) == (0, 0)
    with pytest.raises(TreeStateError, match="pending"):
        cache.clear()
    cache.settle(3)
    assert len(cache.evict(2)) == 2


def test_settle_before_anything_is_pending() -> None:
    cache = RadixCache(page_size=1)
    cache.settle(100)
    insert(cache, (1,), 0, pending=50)
    assert cache.stats().num_pending == 1
    cache.settle(100)
    assert cache.stats().num_pending == 0
