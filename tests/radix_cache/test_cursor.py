"""Cursors find what a fresh match finds, whatever has happened to the tree since they were asked last."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radix_cache.key import RadixKey
from radix_cache.radix_cache import RadixCache
from radix_cache.tree_node import TreeNode

KEYS, ALPHABET, LONGEST = 40, 3, 24


def random_key(rng: random.Random) -> RadixKey:
    ids = np.array([rng.randrange(ALPHABET) for _ in range(rng.randrange(LONGEST))], np.int32)
    return RadixKey(ids, rng.choice([None, None, "a"]))


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(6))
def test_a_cursor_agrees_with_a_fresh_match_after_anything(seed: int, page_size: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    cache = RadixCache(page_size)
    keys = [random_key(rng) for _ in range(KEYS)]
    cursors = [cache.cursor(key) for key in keys]
    locked: list[TreeNode] = []
    next_page = 0
    changes = set()
    previous: list[int] = []
    for seq in range(1, 300):
        action = rng.choice(["insert", "insert", "match", "evict", "lock", "unlock", "fail", "clear"])
        key = rng.choice(keys)
        if action == "insert":
            pages = np.arange(next_page, next_page + LONGEST, dtype=np.int32)
            next_page += LONGEST
            cache.insert(key, pages, rng.choice([None, seq]))
            if rng.random() < 0.7:
                cache.settle(seq)
        elif action == "match":
            cache.match_prefix(key)
        elif action == "evict":
            cache.evict(rng.randrange(1, 6))
        elif action == "lock":
            locked.append(cache.match_and_lock(key).node)
        elif action == "unlock" and locked:
            cache.unlock(locked.pop(rng.randrange(len(locked))))
        elif action == "fail" and rng.random() < 0.3:
            while locked:
                cache.unlock(locked.pop())
            cache.remove_pending()
        elif action == "clear" and rng.random() < 0.1:
            cache.settle(seq)
            while locked:
                cache.unlock(locked.pop())
            cache.clear()
        lengths = cache.match_lengths(cursors)
        assert lengths == [cache.match_length(key) for key in keys], f"after {action} in step {seq}"
        if previous and lengths != previous:
            changes.add("grew" if sum(lengths) > sum(previous) else "shrank")
        previous = lengths
        for cursor, key in zip(cursors, keys, strict=True):
            assert path_of(cursor.node) == key.data[: len(path_of(cursor.node))], "its node is on the key"
    assert changes == {"grew", "shrank"}


def path_of(node: TreeNode) -> bytes:
    parts: list[bytes] = []
    current: TreeNode | None = node
    while current is not None:
        parts.append(current.tokens)
        current = current.parent
    return b"".join(reversed(parts))


def test_a_cursor_changes_nothing() -> None:
    cache = RadixCache(1)
    ids = np.arange(8, dtype=np.int32)
    cache.insert(RadixKey(ids), ids)
    before = cache.snapshot(), cache.stats()
    cursor = cache.cursor(RadixKey(ids[:5]))
    assert cache.match_lengths([cursor, cursor]) == [4, 4]
    assert cursor.node is cache.root, "the node that it is inside of is not split"
    assert (cache.snapshot(), cache.stats()) == before


def test_a_limit_is_kept() -> None:
    cache = RadixCache(2)
    ids = np.arange(9, dtype=np.int32)
    cache.insert(RadixKey(ids), ids)
    assert cache.match_lengths([cache.cursor(RadixKey(ids), limit) for limit in (0, 1, 2, 5, None)]) == [
        0,
        0,
        2,
        4,
        8,
    ]
