"""One operation of the radix cache at a time: long prompts, and a tree of 100,000 nodes."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from bench.radix_trace import random_tokens
from control_loop.collector import PASSES_BETWEEN, Collector, give_back_collection, take_over_collection
from radix_cache.key import TOKEN_BYTES, RadixKey
from radix_cache.radix_cache import RadixCache
from radix_cache.tree_node import PAGE_ID_BYTES, TreeNode
from srt.core.messages import Int32Array

CHAIN_NODES = 200
LEAF_TOKENS = (64, 192)
PREFIX_TOKENS = 1000
FRESH_TOKENS = 2000
OWN_TOKENS = 500
EVICT_TOKENS = 10_000


@dataclass(frozen=True, slots=True)
class TreeSizes:
    """`num_prefixes` nodes below the root with `num_leaves` leaves each; `repeats` of every timed operation."""

    prompt_tokens: int
    num_prefixes: int
    num_leaves: int
    repeats: int
    page_size: int
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class LongPrompt:
    """Medians in microseconds of matching `num_tokens`, and of one comparison of as many bytes."""

    num_tokens: int
    one_node_us: float
    chain_us: float
    memcmp_us: float


def long_prompt(sizes: TreeSizes) -> LongPrompt:
    """A long prompt against a warm tree that has it as one node, and as a chain of `CHAIN_NODES`."""
    page = sizes.page_size
    step = max(1, sizes.prompt_tokens // CHAIN_NODES // page) * page
    tokens = random_tokens(np.random.default_rng(sizes.seed), CHAIN_NODES * step + 1)
    key = RadixKey(tokens)  # one token more than is cached: the whole of it is found
    pages = np.arange(len(tokens) // page, dtype=np.int32)
    one, chain = RadixCache(page, sizes.policy), RadixCache(page, sizes.policy)
    one.insert(RadixKey(tokens[:-1]), pages)
    for end in range(step, len(tokens), step):
        chain.insert(RadixKey(tokens[:end]), pages)
    assert (one.stats().num_nodes, chain.stats().num_nodes) == (1, CHAIN_NODES)
    for cache in (one, chain):
        assert cache.match_prefix(key).num_tokens == len(tokens) - 1
    same = bytes(bytearray(key.data))
    return LongPrompt(
        len(tokens) - 1,
        _median_us(lambda: one.match_prefix(key), sizes.repeats),
        _median_us(lambda: chain.match_prefix(key), sizes.repeats),
        _median_us(lambda: key.data == same, sizes.repeats),
    )


class BigTree:
    """Thread: the bench's. A tree of many nodes, and its memory as the interpreter counts it.

    Attributes:
        bytes_per_node: beside token ids and page ids.
    """

    def __init__(self, sizes: TreeSizes) -> None:
        self._sizes = sizes
        self._rng = np.random.default_rng(sizes.seed)
        self._prefixes = [random_tokens(self._rng, PREFIX_TOKENS) for _ in range(sizes.num_prefixes)]
        self._next_page = 0
        gc.collect()
        tracemalloc.start()
        self.cache = RadixCache(sizes.page_size, sizes.policy)
        empty_bytes = tracemalloc.get_traced_memory()[0]
        for prefix in tqdm(self._prefixes, desc="tree", unit="prefix", disable=None, leave=False):
            self._add(prefix)
            for _ in range(sizes.num_leaves):
                self._add(
                    np.concatenate([prefix, random_tokens(self._rng, int(self._rng.integers(*LEAF_TOKENS)))])
                )
        self.num_nodes = self.cache.stats().num_nodes
        beside = tracemalloc.get_traced_memory()[0] - empty_bytes - _id_bytes(self.cache.root)
        tracemalloc.stop()
        self.bytes_per_node = beside / self.num_nodes

    def insert(self) -> list[float]:
        """Microseconds of inserting `FRESH_TOKENS` behind a prefix of the tree, where they stay."""
        seconds = []
        for prefix in self._some_prefixes():
            tokens = np.concatenate([prefix, random_tokens(self._rng, FRESH_TOKENS)])
            key, pages = RadixKey(tokens), self._pages(len(tokens))
            started = time.perf_counter()
            self.cache.insert(key, pages)
            seconds.append(time.perf_counter() - started)
        return [value * 1e6 for value in seconds]

    def match(self) -> list[float]:
        """Microseconds of matching a prefix of the tree with `OWN_TOKENS` behind it."""
        seconds = []
        for prefix in self._some_prefixes():
            key = RadixKey(np.concatenate([prefix, random_tokens(self._rng, OWN_TOKENS)]))
            started = time.perf_counter()
            found = self.cache.match_prefix(key)
            seconds.append(time.perf_counter() - started)
            assert found.num_tokens >= PREFIX_TOKENS // self._sizes.page_size * self._sizes.page_size
        return [value * 1e6 for value in seconds]

    def collector_pauses(self) -> tuple[float, float]:
        """Milliseconds: the longest pause as an engine collects, over many passes and when it gets idle; and that of
        one full collection, which is what Python would do by itself."""
        started = time.perf_counter()
        gc.collect()
        full = time.perf_counter() - started
        take_over_collection()
        collector, longest = Collector(), 0.0
        for prefix in self._some_prefixes():
            tokens = np.concatenate([prefix, random_tokens(self._rng, OWN_TOKENS)])
            self.cache.insert(RadixKey(tokens), self._pages(len(tokens)))
            for _ in range(PASSES_BETWEEN // 8):
                longest = max(longest, _seconds(collector.between_passes))
        longest = max(longest, _seconds(collector.when_idle))
        give_back_collection()
        return longest * 1e3, full * 1e3

    def evict(self) -> tuple[float, int]:
        """Takes everything out in calls of `EVICT_TOKENS`: microseconds a node, and nodes left."""
        num_nodes, seconds = self.cache.stats().num_nodes, 0.0
        count = max(1, EVICT_TOKENS // self._sizes.page_size)
        while self.cache.num_evictable:
            seconds += _seconds(lambda: self.cache.evict(count))
        return seconds / num_nodes * 1e6, self.cache.stats().num_nodes

    def _add(self, tokens: Int32Array) -> None:
        self.cache.insert(RadixKey(tokens), self._pages(len(tokens)))

    def _pages(self, num_tokens: int) -> Int32Array:
        count = num_tokens // self._sizes.page_size
        self._next_page += count
        return np.arange(self._next_page - count, self._next_page, dtype=np.int32)

    def _some_prefixes(self) -> list[Int32Array]:
        return [
            self._prefixes[index]
            for index in self._rng.integers(len(self._prefixes), size=self._sizes.repeats).tolist()
        ]


def memory_left(sizes: TreeSizes) -> int:
    """Bytes that a tree still holds after everything in it was split, locked, unlocked and evicted.

    Every node is split in the middle first: a part that stayed must not keep the whole.
    """
    rng = np.random.default_rng(sizes.seed)
    page = sizes.page_size
    cache = RadixCache(page, sizes.policy)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    _fill_and_empty(cache, rng, page, sizes.repeats)
    gc.collect()
    left = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return left


def _fill_and_empty(cache: RadixCache, rng: np.random.Generator, page: int, count: int) -> None:
    for _ in range(count):
        tokens = random_tokens(rng, PREFIX_TOKENS)
        pages = np.arange(len(tokens) // page, dtype=np.int32)
        cache.insert(RadixKey(tokens), pages)
        node = cache.match_and_lock(RadixKey(tokens[: PREFIX_TOKENS // 2])).node
        cache.unlock(node)
    while cache.num_evictable:
        cache.evict(max(1, EVICT_TOKENS // page))


def _id_bytes(top: TreeNode) -> int:
    total, stack = 0, [top]
    while stack:
        node = stack.pop()
        total += node.num_tokens * TOKEN_BYTES + node.num_pages * PAGE_ID_BYTES
        stack.extend(node.child_nodes())
    return total


def _median_us(call: Callable[[], object], repeats: int) -> float:
    return float(np.median([_seconds(call) for _ in range(repeats)])) * 1e6


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
