"""Memory: nothing pinned, nothing left behind, no reference cycles."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from radix_cache.key import RadixKey
from radix_cache.radix_cache import RadixCache
from radix_cache.tree_node import TreeNode
from tests.radix_cache.model import key_of

SHARED = 64
NODE_BYTES = 730
"""What one node may cost beside its token and page ids."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def cyclic_garbage() -> list[object]:
    """What of the cache only the collector would have freed; pytest's own garbage does not count."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return [found for found in gc.garbage if type(found).__module__.startswith("radix_cache")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def traced() -> int:
    """Bytes in use, without what the interpreter keeps in its free lists (a full collection empties them)."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def make_prompts(
    seed: int, page_size: int, prefixes: int, leaves: int
) -> list[tuple[RadixKey, npt.NDArray[np.int32]]]:
    """Keys with their pages: `prefixes` shared beginnings of 64 tokens, each with `leaves` endings of 16 to 128."""
    rng = np.random.default_rng(seed)
    prompts = []
    next_page = 0
    for _ in range(prefixes):
        shared = rng.integers(0, 50_000, SHARED, dtype=np.int32)
        for length in rng.integers(16, 129, leaves):
            tokens = np.concatenate([shared, rng.integers(0, 50_000, length, dtype=np.int32)])
            count = len(tokens) // page_size
            prompts.append((RadixKey(tokens), np.arange(next_page, next_page + count, dtype=np.int32)))
            next_page += count
    return prompts


@pytest.mark.parametrize("policy", ["lru", "mru"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_eviction_returns_memory_to_the_baseline(page_size: int, policy: str) -> None:
    cache = RadixCache(page_size, policy)
    prompts = make_prompts(2, page_size, prefixes=50, leaves=20)
    tracemalloc.start()
    try:
        before = traced()
        for key, pages in prompts:
            cache.insert(key, pages)
        num_nodes, num_pages = cache.stats().num_nodes, cache.num_pages
        full = traced() - before
        while cache.num_evictable:
            cache.evict(97)
        left = traced() - before
    finally:
        tracemalloc.stop()
    assert num_nodes > 1000
    assert full - 4 * num_pages * (page_size + 1) < NODE_BYTES * num_nodes
    assert left < 2048


def test_a_split_or_cut_node_pins_no_big_array() -> None:
    cache = RadixCache(page_size=1)
    tokens = np.arange(100_000, dtype=np.int32)
    tracemalloc.start()
    try:
        before = traced()
        cache.insert(RadixKey(tokens), tokens)
        head = cache.match_and_lock(RadixKey(tokens), limit=100).node
        assert len(cache.evict(99_000)) == 99_000
        left = traced() - before
    finally:
        tracemalloc.stop()
    (tail,) = head.child_nodes()
    assert (head.num_tokens, tail.num_tokens) == (100, 900)
    assert sum(map(sys.getsizeof, (head.tokens, head.pages, tail.tokens, tail.pages))) < 9000
    assert left < 16_000


def linked_nodes() -> list[TreeNode]:
    return [node for node in gc.get_objects() if type(node) is TreeNode and node.parent is not None]


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("policy", ["lru", "mru"])
def test_nothing_is_left_for_the_collector(policy: str) -> None:
    strangers = {id(node) for node in linked_nodes()}  # of trees that other tests have left behind
    cache = RadixCache(1, policy)
    for key, pages in make_prompts(3, 1, prefixes=5, leaves=5):
        cache.insert(key, pages)
        cache.match_prefix(key, limit=len(key) // 2)
    cache.evict(cache.num_evictable // 2)
    cache.clear()

    cache.insert(key_of((1, 2, 3, 4)), np.arange(4, dtype=np.int32), pending=1)
    cache.insert(key_of((1, 2, 7, 8)), np.arange(10, 14, dtype=np.int32), pending=2)
    cache.insert(key_of((5, 6)), np.arange(20, 22, dtype=np.int32))
    cache.settle(1)
    cache.remove_pending()
    cache.snapshot()
    cache.check_integrity()
    cache.evict(cache.num_evictable)

    assert [node for node in linked_nodes() if id(node) not in strangers] == []
    assert cyclic_garbage() == []


@pytest.mark.usefixtures("no_collector")
def test_a_handle_to_a_removed_node_holds_that_node_alone() -> None:
    cache = RadixCache(page_size=1)
    cache.insert(key_of((1, 2, 3, 4)), np.arange(4, dtype=np.int32))
    upper = cache.match_prefix(key_of((1, 2, 9))).node
    cache.clear()
    assert upper.parent is None
    assert upper.is_leaf()
    assert cyclic_garbage() == []
