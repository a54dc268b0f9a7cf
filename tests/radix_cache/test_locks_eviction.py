"""Locks, and what goes in which order when memory is short."""

from __future__ import annotations

import numpy as np
import pytest

from radix_cache.errors import TreeStateError
from radix_cache.eviction import EVICTION_POLICIES, EvictionQueue, mru
from radix_cache.key import TOKEN_BYTES, RadixKey
from radix_cache.radix_cache import RadixCache
from radix_cache.tree_node import CUT_BYTES, PAGE_ID_BYTES, TreeNode
from tests.radix_cache.model import contents, key_of


def fill(cache: RadixCache, *keys: tuple[int, ...]) -> None:
    """Insert keys of one common page size, page ids equal to the last token of the page."""
    for key in keys:
        cache.insert(key_of(key), np.array(key[cache.page_size - 1 :: cache.page_size], dtype=np.int32))


def use(cache: RadixCache, *keys: tuple[int, ...]) -> None:
    for key in keys:
        cache.match_prefix(key_of((*key, 0)))


def order(cache: RadixCache) -> list[int]:
    """The pages in the order in which they go, one at a time."""
    return [int(cache.evict(1)[0]) for _ in range(cache.num_evictable)]


def test_a_lock_moves_pages_from_evictable_to_protected() -> None:
    cache = RadixCache(page_size=1)
    fill(cache, (1, 2, 3))
    match = cache.match_and_lock(key_of((1, 2, 3, 4)))
    assert (cache.num_evictable, cache.num_protected) == (0, 3)
    cache.lock(match.node)
    cache.unlock(match.node)
    assert (cache.num_evictable, cache.num_protected) == (0, 3)
    assert len(cache.evict(3)) == 0
    cache.unlock(match.node)
    assert (cache.num_evictable, cache.num_protected) == (3, 0)
    assert len(cache.evict(3)) == 3


def test_a_lock_protects_the_path_and_nothing_else() -> None:
    cache = RadixCache(page_size=1)
    fill(cache, (1, 2, 3), (1, 2, 4), (5,))
    cache.match_and_lock(key_of((1, 2, 4, 0)))
    assert (cache.num_evictable, cache.num_protected) == (2, 3)
    assert sorted(cache.evict(9).tolist()) == [3, 5]
    cache.check_integrity()


def test_insert_and_lock_moves_the_lock() -> None:
    cache = RadixCache(page_size=1)
    match = cache.match_and_lock(key_of((1, 2, 3)))
    first = cache.insert_and_lock(
        key_of((1, 2, 3)), np.arange(3, dtype=np.int32), pending=None, unlock=match.node
    )
    second = cache.insert_and_lock(key_of((1, 2, 3, 4)), np.arange(4, dtype=np.int32), unlock=first.node)
    assert (first.node.lock_ref, second.node.lock_ref) == (1, 1)
    elsewhere = cache.insert_and_lock(key_of((9,)), np.array([9], dtype=np.int32), unlock=second.node)
    assert (second.node.lock_ref, elsewhere.node.lock_ref) == (0, 1)
    assert (cache.num_protected, cache.num_evictable) == (1, 4)
    cache.check_integrity()


def test_corner_12_insert_and_lock_of_what_is_there_moves_no_lock() -> None:
    """The tree's page is a duplicate of the caller's, who does not read it."""
    cache = RadixCache(page_size=1)
    fill(cache, (1, 2, 3))
    held = cache.match_and_lock(key_of((1, 2, 3))).node
    there = cache.insert_and_lock(key_of((1, 2, 3)), np.arange(3, dtype=np.int32), unlock=held)
    assert (there.num_present, there.num_taken) == (3, 0)
    assert (held.lock_ref, there.node.lock_ref) == (1, 0)
    assert cache.evict(9).tolist() == [3]


def test_a_lock_moves_up_down_and_across() -> None:
    cache = RadixCache(page_size=1)
    fill(cache, (1, 2, 3), (1, 2, 4))
    low = cache.match_and_lock(key_of((1, 2, 3, 0))).node
    high = cache.match_prefix(key_of((1, 2, 0))).node
    other = cache.match_prefix(key_of((1, 2, 4, 0))).node
    for old, new, protected in [(low, high, 2), (high, other, 3), (other, low, 3), (low, cache.root, 0)]:
        cache.move_lock(old, new)
        assert (new.lock_ref, cache.num_protected) == (int(new is not cache.root), protected)
        cache.check_integrity()
    with pytest.raises(TreeStateError, match="has no lock"):
        cache.move_lock(low, other)
    assert cache.num_protected == 0


def test_unlock_below_zero_is_an_error_that_changes_nothing() -> None:
    cache = RadixCache(page_size=1)
    fill(cache, (1, 2))
    node = cache.match_prefix(key_of((1, 2, 3))).node
    with pytest.raises(TreeStateError, match="has no lock"):
        cache.unlock(node)
    with pytest.raises(TreeStateError, match="has no lock"):
        cache.insert_and_lock(key_of((1, 2, 3)), np.arange(3, dtype=np.int32), unlock=node)
    assert cache.num_pages == cache.num_evictable == 2


def test_the_root_can_be_locked_and_unlocked_at_will() -> None:
    cache = RadixCache(page_size=1)
    for _ in range(3):
        cache.unlock(cache.root)
    cache.lock(cache.root)
    assert len(cache.clear()) == 0


def test_a_node_that_left_the_tree_cannot_be_locked() -> None:
    cache = RadixCache(page_size=1)
    fill(cache, (1, 2))
    node = cache.match_prefix(key_of((1, 2, 3))).node
    cache.evict(2)
    with pytest.raises(TreeStateError, match="left the tree"):
        cache.lock(node)


def test_eviction_is_exact_and_cuts_the_tail() -> None:
    cache = RadixCache(page_size=2)
    fill(cache, (1, 2, 3, 4, 5, 6, 7, 8))
    assert cache.evict(1).tolist() == [8]
    assert cache.evict(2).tolist() == [4, 6]
    assert cache.match_prefix(key_of((1, 2, 3, 4))).pages.tolist() == [2]
    assert cache.evict(5).tolist() == [2]
    assert cache.evict(1).tolist() == []
    assert cache.stats().num_evicted == 4
    cache.check_integrity()


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_long_leaf_goes_page_by_page_without_being_copied_each_time(page_size: int) -> None:
    """Counts the bytes of ids that calls copied into nodes: whatever is another object than before."""
    num_pages = 20_000
    cache = RadixCache(page_size)
    cache.insert(
        RadixKey(np.arange(num_pages * page_size, dtype=np.int32)), np.arange(num_pages, dtype=np.int32)
    )
    size = num_pages * (page_size * TOKEN_BYTES + PAGE_ID_BYTES)
    known = [held for node in cache.root.child_nodes() for held in (node.tokens, node.pages)]
    copied = 0
    for page in reversed(range(num_pages)):
        assert cache.evict(1).tolist() == [page]
        present = [held for node in chain_of(cache) for held in (node.tokens, node.pages)]
        ids = set(map(id, known))
        copied += sum(len(held) for held in present if id(held) not in ids)
        known = present
        if page % 1000 == 0:
            cache.check_integrity()
            assert cache.stats().num_nodes <= num_pages.bit_length()
    assert cache.num_pages == 0
    # One copy a halving, and a cut for each call; in one piece it would be size * num_pages / 2.
    assert copied < size * num_pages.bit_length() + num_pages * CUT_BYTES


def chain_of(cache: RadixCache) -> list[TreeNode]:
    """The nodes of a tree without branches."""
    nodes: list[TreeNode] = []
    parent = cache.root
    while not parent.is_leaf():
        (parent,) = parent.child_nodes()
        nodes.append(parent)
    return nodes


def test_eviction_of_nothing() -> None:
    cache = RadixCache(page_size=1)
    fill(cache, (1, 2))
    assert cache.evict(0).tolist() == cache.evict(-3).tolist() == []
    assert cache.num_pages == 2


def test_a_parent_goes_after_its_children() -> None:
    cache = RadixCache(page_size=1)
    fill(cache, (1, 2), (1, 3))
    assert order(cache) == [2, 3, 1]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("lru", [2, 4, 3, 1]),
        ("mru", [1, 3, 4, 2]),
        ("fifo", [1, 2, 3, 4]),
        ("filo", [4, 3, 2, 1]),
        ("lfu", [2, 4, 3, 1]),
        ("slru", [2, 4, 1, 3]),
    ],
)
def test_order_of_each_policy(policy: str, expected: list[int]) -> None:
    cache = RadixCache(page_size=1, eviction_policy=policy)
    fill(cache, (1,), (2,), (3,), (4,))
    if policy == "lfu":
        use(cache, (1,), (1,), (1,), (3,), (3,), (2,), (4,))
    elif policy == "slru":
        use(cache, (1,), (1,), (3,), (3,), (2,), (4,))
    else:
        use(cache, (2,), (4,), (3,), (1,))
    assert order(cache) == expected


def test_priority_evicts_what_only_unimportant_requests_have_used() -> None:
    cache = RadixCache(page_size=1, eviction_policy="priority")
    for token, priority in ((1, 5), (2, -1), (3, 0), (4, 0)):
        cache.insert(key_of((token,)), np.array([token], np.int32), priority=priority)
    cache.match_prefix(key_of((3, 0)), priority=2)
    cache.match_prefix(key_of((1, 0)), priority=0)
    assert order(cache) == [2, 4, 3, 1], "the highest priority that has used it counts"


def test_a_split_keeps_the_priority_above_and_below() -> None:
    cache = RadixCache(page_size=1, eviction_policy="priority")
    cache.insert(key_of((1, 2, 3)), np.array([1, 2, 3], np.int32), priority=4)
    cache.match_prefix(key_of((1, 9)), priority=0)
    cache.insert(key_of((7,)), np.array([7], np.int32), priority=3)
    assert order(cache) == [7, 3, 2, 1]


@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_output_tokens_go_before_prompt_tokens_of_the_same_age(policy: str) -> None:
    """An output hangs below its prompt, and a leaf is cut from its end: under every policy."""
    cache = RadixCache(page_size=1, eviction_policy=policy)
    prompt, output = (1, 2, 3), (4, 5, 6)
    cache.insert(key_of(prompt), np.array(prompt, np.int32))
    cache.insert(key_of(prompt + output), np.array(prompt + output, np.int32))
    whole = (7, 8, 9)
    cache.insert(key_of(whole), np.array(whole, np.int32))
    gone = order(cache)
    assert [page for page in gone if page < 7] == [6, 5, 4, 3, 2, 1]
    assert [page for page in gone if page >= 7] == [9, 8, 7]


def test_use_between_evictions_counts() -> None:
    cache = RadixCache(page_size=1)
    fill(cache, (1,), (2,), (3,))
    assert cache.evict(1).tolist() == [1]
    use(cache, (2,))
    assert order(cache) == [3, 2]


def test_use_while_locked_counts() -> None:
    cache = RadixCache(page_size=1)
    fill(cache, (1,), (2,))
    node = cache.match_and_lock(key_of((1, 0))).node
    use(cache, (2,), (1,))
    cache.unlock(node)
    assert order(cache) == [2, 1]


@pytest.mark.parametrize("policy", ["lru", "mru"])
def test_the_queue_does_not_grow_with_use(policy: str) -> None:
    """Keys that rise leave no entries behind; keys that fall leave at most as many as count."""
    cache = RadixCache(page_size=1, eviction_policy=policy)
    fill(cache, *((token,) for token in range(1, 9)))
    for turn in range(1000):
        use(cache, (1 + turn % 8,))
        cache.unlock(cache.match_and_lock(key_of((1 + turn % 3, 0))).node)
    assert len(cache._tree.queue.entries()) <= 2 * 8
    cache.check_integrity()


def test_a_key_that_falls_and_rises_again_counts_once() -> None:
    """No policy here does so, but one may: two entries of one node with the same key are one leaf."""
    queue = EvictionQueue(mru)
    node = TreeNode(None, b"", b"", b"", None, 0)
    for last_access in (1, 2, 1, 3, 1):
        node.last_access = last_access
        queue.push(node)
        assert queue.first() is node
    queue.pop_first()
    assert queue.first() is None


def test_clear_returns_every_page_and_refuses_while_locked() -> None:
    cache = RadixCache(page_size=1)
    fill(cache, (1, 2, 3), (1, 2, 4), (7, 8))
    node = cache.match_and_lock(key_of((7, 8, 9))).node
    with pytest.raises(TreeStateError, match="clear: 2 of 6 pages are locked"):
        cache.clear()
    assert len(contents(cache)) == 6
    cache.unlock(node)
    assert sorted(cache.clear().tolist()) == [1, 2, 3, 4, 7, 8]
    assert (cache.num_pages, cache.num_evictable, contents(cache)) == (0, 0, {})
    fill(cache, (1, 2))
    assert order(cache) == [2, 1]
    cache.check_integrity()
