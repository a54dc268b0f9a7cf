"""Match, insert and split: whole pages, exact ends, namespaces."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from radix_cache.key import RadixKey, common_prefix_bytes
from radix_cache.radix_cache import RadixCache
from radix_cache.tree_node import split_node
from tests.radix_cache.model import contents, key_of


def ids(*numbers: int) -> npt.NDArray[np.int32]:
    return np.array(numbers, dtype=np.int32)


def run(start: int, stop: int) -> npt.NDArray[np.int32]:
    return np.arange(start, stop, dtype=np.int32)


def test_first_insert_takes_every_page() -> None:
    cache = RadixCache(page_size=1)
    inserted = cache.insert(key_of((1, 2, 3)), ids(7, 8, 9))
    assert (inserted.num_present, inserted.num_taken) == (0, 3)
    assert (cache.num_pages, cache.num_evictable, cache.num_protected) == (3, 3, 0)
    match = cache.match_prefix(key_of((1, 2, 3, 4)))
    assert match.node is inserted.node
    assert (match.num_tokens, match.num_settled, match.pages.tolist()) == (3, 3, [7, 8, 9])


def test_corner_15_a_prefix_hit_is_capped_at_len_minus_1() -> None:
    cache = RadixCache(page_size=1)
    cache.insert(key_of((1, 2, 3)), ids(7, 8, 9))
    assert cache.match_prefix(key_of((1, 2, 3))).num_tokens == 2
    assert cache.match_prefix(key_of((1, 2, 3)), limit=1).num_tokens == 1
    assert cache.match_prefix(key_of((1, 2, 3)), limit=0).num_tokens == 0
    assert cache.match_prefix(key_of((1, 2, 3)), limit=9).num_tokens == 2
    assert cache.match_prefix(key_of((1,))).num_tokens == 0
    assert cache.match_prefix(key_of(())).num_tokens == 0


@pytest.mark.parametrize(("page_size", "expected"), [(1, 999), (16, 992), (32, 992), (64, 960)])
def test_a_known_prompt_of_1000_tokens(page_size: int, expected: int) -> None:
    cache = RadixCache(page_size)
    prompt = RadixKey(run(0, 1000))
    cache.insert(prompt, run(0, 1000 // page_size))
    assert cache.match_prefix(prompt).num_tokens == expected


@pytest.mark.parametrize(("page_size", "length"), [(1, 5), (2, 5), (4, 6), (16, 40)])
def test_only_whole_pages_are_kept(page_size: int, length: int) -> None:
    cache = RadixCache(page_size)
    whole = length // page_size
    inserted = cache.insert(RadixKey(run(0, length)), run(50, 50 + whole))
    assert inserted.num_taken == whole * page_size == inserted.node.num_tokens
    match = cache.match_prefix(RadixKey(run(0, length + 1)))
    assert match.num_tokens == whole * page_size
    assert match.pages.tolist() == list(range(50, 50 + whole))
    cache.check_integrity()


@pytest.mark.parametrize(("page_size", "shared"), [(1, 6), (2, 6), (4, 4), (16, 0)])
def test_divergence_splits_at_the_last_shared_page(page_size: int, shared: int) -> None:
    """Two keys of 32 tokens that differ from token 6 on."""
    cache = RadixCache(page_size)
    first, second = run(0, 32), run(0, 32)
    second[6:] += 100
    pages = 32 // page_size
    cache.insert(RadixKey(first), run(0, pages))
    match = cache.match_prefix(RadixKey(second))
    assert (match.num_tokens, match.node.num_tokens) == (shared, shared)
    inserted = cache.insert(RadixKey(second), run(100, 100 + pages))
    assert (inserted.num_present, inserted.num_taken) == (shared, 32 - shared)
    assert cache.num_pages == 2 * pages - shared // page_size
    assert cache.match_prefix(RadixKey(np.append(first, np.int32(9)))).pages.tolist() == list(range(pages))
    own = list(range(100 + shared // page_size, 100 + pages))
    match = cache.match_prefix(RadixKey(np.append(second, np.int32(9))))
    assert match.pages.tolist() == list(range(shared // page_size)) + own
    cache.check_integrity()


def test_two_children_may_share_a_first_token_but_never_a_first_page() -> None:
    cache = RadixCache(page_size=4)
    cache.insert(key_of((1, 1, 1, 1, 5, 5, 5, 5)), ids(0, 1))
    cache.insert(key_of((1, 1, 1, 1, 5, 5, 5, 6)), ids(0, 2))
    (shared,) = cache.root.child_nodes()
    assert sorted(node.num_tokens for node in shared.child_nodes()) == [4, 4]
    cache.check_integrity()


def test_a_split_keeps_the_lower_node() -> None:
    cache = RadixCache(page_size=1)
    end = cache.insert_and_lock(key_of((1, 2, 3, 4)), ids(10, 11, 12, 13)).node
    upper = cache.match_prefix(key_of((1, 2, 9))).node
    assert upper is not end
    assert end.parent is upper
    assert (upper.num_tokens, end.num_tokens) == (2, 2)
    assert (upper.lock_ref, end.lock_ref) == (1, 1)
    cache.unlock(end)
    assert cache.num_evictable == 4
    cache.check_integrity()


def test_the_upper_part_of_a_split_inherits_counts_and_times() -> None:
    cache = RadixCache(page_size=1)
    lower = cache.insert_and_lock(key_of((1, 2, 3, 4)), ids(10, 11, 12, 13), pending=3).node
    cache.match_prefix(key_of((1, 2, 3, 4, 5)))
    upper = split_node(lower, size=4, page_size=1)
    copied = ("lock_ref", "pending", "created", "last_access", "hits")
    assert [getattr(upper, name) for name in copied] == [getattr(lower, name) for name in copied]
    assert (upper.num_tokens, lower.num_tokens) == (1, 3)


def test_an_insert_that_ends_inside_a_node_ends_at_a_node() -> None:
    cache = RadixCache(page_size=2)
    cache.insert(key_of((1, 2, 3, 4, 5, 6)), ids(10, 11, 12))
    inserted = cache.insert(key_of((1, 2, 3, 4, 5)), ids(20, 21))
    assert (inserted.num_present, inserted.num_taken) == (4, 0)
    assert inserted.node.num_tokens == 4
    assert cache.num_pages == 3


def test_corner_12_pages_of_the_present_part_stay_the_callers() -> None:
    cache = RadixCache(page_size=1)
    cache.insert(key_of((1, 2, 3)), ids(10, 11, 12))
    inserted = cache.insert(key_of((1, 2, 3, 4, 5)), ids(20, 21, 22, 23, 24))
    assert (inserted.num_present, inserted.num_taken) == (3, 2)
    held = {page.page for page in contents(cache).values()}
    assert held == {10, 11, 12, 23, 24}


def test_an_empty_insert_is_the_root() -> None:
    cache = RadixCache(page_size=16)
    for length in (0, 15):
        inserted = cache.insert_and_lock(RadixKey(run(0, length), "tenant"), run(0, 0))
        assert (inserted.node, inserted.num_present, inserted.num_taken) == (cache.root, 0, 0)
    cache.unlock(cache.root)
    assert cache.num_pages == 0
    cache.check_integrity()


def test_namespaces_never_match_each_other() -> None:
    cache = RadixCache(page_size=1)
    spaces = (None, "", "a", "b", "a\0")
    for place, space in enumerate(spaces):
        assert cache.match_prefix(key_of((1, 2, 3), space)).num_tokens == 0
        cache.insert(key_of((1, 2), space), ids(10 * place, 10 * place + 1))
    for place, space in enumerate(spaces):
        match = cache.match_prefix(key_of((1, 2, 3), space))
        assert match.pages.tolist() == [10 * place, 10 * place + 1]
    cache.check_integrity()


def test_tokens_cannot_imitate_a_namespace() -> None:
    """The namespace's bytes follow the first page in the look-up; a second page of these bytes is no namespace."""
    cache = RadixCache(page_size=1)
    cache.insert(key_of((1,), "abc"), ids(5))
    disguise = int(np.frombuffer(b"\0abc", np.int32)[0])
    assert cache.match_prefix(key_of((1, disguise, 2))).num_tokens == 0
    assert cache.match_prefix(key_of((1, disguise, 2), "abc")).num_tokens == 1


def test_match_length_changes_nothing() -> None:
    cache = RadixCache(page_size=1)
    end = cache.insert(key_of((1, 2, 3, 4)), ids(0, 1, 2, 3)).node
    before = (end.last_access, end.hits, cache.stats())
    assert cache.match_length(key_of((1, 2, 9))) == 2
    assert cache.match_length(key_of((1, 2, 3, 4)), limit=1) == 1
    assert (end.last_access, end.hits, cache.stats()) == before


def test_disabled_finds_and_takes_nothing() -> None:
    cache = RadixCache(page_size=1, enabled=False)
    inserted = cache.insert(key_of((1, 2)), ids(0, 1))
    assert (inserted.node, inserted.num_present, inserted.num_taken) == (cache.root, 0, 0)
    inserted = cache.insert_and_lock(key_of((1, 2)), ids(0, 1), pending=3, unlock=inserted.node)
    assert (inserted.node, inserted.num_taken) == (cache.root, 0)
    match = cache.match_and_lock(key_of((1, 2, 3)))
    assert (match.node, match.num_tokens, match.pages.tolist()) == (cache.root, 0, [])
    cache.unlock(match.node)
    cache.settle(9)
    assert len(cache.remove_pending()) == len(cache.evict(5)) == len(cache.clear()) == 0


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ValueError, match="page_size: 0 given, at least 1"):
        RadixCache(page_size=0)
    with pytest.raises(ValueError, match="eviction_policy: 'best' is unknown; choose one of lru, lfu, fifo"):
        RadixCache(eviction_policy="best")
    with pytest.raises(ValueError, match="token_ids: int64"):
        RadixKey(np.arange(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shape"):
        RadixKey(np.zeros((2, 2), dtype=np.int32))
    cache = RadixCache(page_size=1)
    with pytest.raises(ValueError, match="limit: -1"):
        cache.match_prefix(key_of((1,)), limit=-1)
    with pytest.raises(ValueError, match="at least 3 of them for 3 tokens"):
        cache.insert(key_of((1, 2, 3)), ids(1, 2))
    with pytest.raises(ValueError, match="pages: int64"):
        cache.insert(key_of((1,)), np.arange(1))  # type: ignore[arg-type]
    assert cache.num_pages == 0


def test_keys_compare_by_tokens_and_namespace() -> None:
    tokens = run(0, 4)
    key = RadixKey(tokens)
    tokens[0] = 9
    assert key == key_of((0, 1, 2, 3))
    assert key != key_of((0, 1, 2, 3), "")
    assert len({key, key_of((0, 1, 2, 3)), key_of((0, 1, 2))}) == 2
    assert len(key) == 4


def test_common_prefix_counts_whole_tokens() -> None:
    data = ids(1, 2, 3, 4).tobytes()
    assert common_prefix_bytes(data, 4, ids(2, 3, 4).tobytes(), 12) == 12
    assert common_prefix_bytes(data, 4, ids(2, 3 + 256, 4).tobytes(), 12) == 4
    assert common_prefix_bytes(data, 4, ids(9).tobytes(), 4) == 0
    assert common_prefix_bytes(data, 4, ids(2).tobytes(), 0) == 0
