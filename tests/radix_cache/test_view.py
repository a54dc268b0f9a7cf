"""What guests see: counts and bounded pictures, taken while the owner works."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from radix_cache.radix_cache import RadixCache
from radix_cache.view import NodeView, RadixStats, TreeView
from tests.radix_cache.model import key_of


def insert(cache: RadixCache, tokens: tuple[int, ...], first: int, namespace: str | None = None) -> None:
    count = len(tokens) // cache.page_size
    cache.insert(key_of(tokens, namespace), np.arange(first, first + count, dtype=np.int32))


def test_stats() -> None:
    cache = RadixCache(page_size=2)
    insert(cache, (1, 2, 3, 4), 0)
    cache.insert(key_of((1, 2, 3, 4, 5, 6)), np.arange(3, dtype=np.int32), pending=1)
    insert(cache, (9, 9), 9)
    cache.match_prefix(key_of((1, 2, 3, 4, 5)))
    cache.match_and_lock(key_of((7, 7, 7)))
    cache.evict(1)
    assert cache.stats() == RadixStats(
        num_nodes=2,
        num_pages=3,
        num_evictable=0,
        num_protected=3,
        num_pending=1,
        lookup_tokens=8,
        hit_tokens=4,
        num_evicted=1,
    )
    assert "3 pages" in repr(cache)


def test_snapshot() -> None:
    cache = RadixCache(page_size=2)
    insert(cache, (1, 1, 2, 2, 3, 3), 0, "tenant")
    cache.match_and_lock(key_of((1, 1, 2, 2, 9), "tenant"))
    key = key_of((1, 1, 2, 2, 4, 4), "tenant")
    cache.insert(key, np.arange(10, 13, dtype=np.int32), pending=6)
    insert(cache, (5, 6), 20)
    view = cache.snapshot(head_tokens=2)
    assert (view.page_size, view.num_nodes, view.num_pages) == (2, 4, 5)
    assert view.nodes == (
        NodeView(-1, 1, "tenant", 4, lock_ref=2, hits=1, age=1, pending=False, num_children=2, head=(1, 1)),
        NodeView(-1, 1, None, 2, lock_ref=0, hits=0, age=0, pending=False, num_children=0, head=(5, 6)),
        NodeView(0, 2, "tenant", 2, lock_ref=0, hits=0, age=3, pending=False, num_children=0, head=(3, 3)),
        NodeView(0, 2, "tenant", 2, lock_ref=1, hits=0, age=1, pending=True, num_children=0, head=(4, 4)),
    )


def test_a_snapshot_is_bounded() -> None:
    cache = RadixCache(page_size=1)
    for token in range(50):
        insert(cache, (token, 1), 2 * token)
        insert(cache, (token, 2), 100 + 2 * token)
    view = cache.snapshot(max_nodes=60)
    assert view.num_nodes == 150
    assert [node.parent for node in view.nodes[:50]] == [-1] * 50
    assert [node.parent for node in view.nodes[50:]] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert cache.snapshot(max_nodes=0).nodes == ()


def test_a_snapshot_goes_as_deep_as_asked() -> None:
    cache = RadixCache(page_size=1)
    for length in range(1, 6):
        insert(cache, tuple(range(length)), 10 * length)
    insert(cache, (7,), 90)
    assert cache.snapshot().depths == (1, 1, 2, 3, 4, 5)
    view = cache.snapshot(max_depth=2)
    assert (view.depths, view.parents, view.num_nodes) == ((1, 1, 2), (-1, -1, 0), 6)
    assert [node.num_children for node in view.nodes] == [1, 0, 1], "those that are left out count"
    assert cache.snapshot(max_depth=0).nodes == ()


def check_view(view: TreeView) -> None:
    """Every path to a leaf has the three tokens of each key that the test below inserts."""
    depths: list[int] = []
    for node in view.nodes:
        depths.append(node.num_tokens + (depths[node.parent] if node.parent >= 0 else 0))
    assert {depth for depth, node in zip(depths, view.nodes, strict=True) if not node.num_children} <= {3}
    assert view.num_nodes == len(view.nodes)
    children = Counter(node.parent for node in view.nodes)
    assert all(node.num_children == children[place] for place, node in enumerate(view.nodes))


@pytest.fixture
def switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switch_interval")
def test_guests_always_see_a_consistent_tree() -> None:
    cache = RadixCache(page_size=1)
    watching, done = threading.Event(), threading.Event()
    faults: list[BaseException] = []

    def guest() -> None:
        try:
            while not done.is_set():
                stats = cache.stats()
                assert stats.num_pages == stats.num_evictable + stats.num_protected
                check_view(cache.snapshot())
                watching.set()
        except BaseException as error:
            faults.append(error)
            watching.set()

    thread = threading.Thread(target=guest)
    thread.start()
    watching.wait()
    for turn in range(600):
        insert(cache, (turn % 7, turn % 5, turn % 3), 3 * turn)
        cache.unlock(cache.match_and_lock(key_of((turn % 7, turn % 5, 9, 9))).node)
        if turn % 9 == 8:
            cache.clear()
    done.set()
    thread.join()
    assert faults == []


class CountingLock:
    """Thread: the test's. Counts the sections that it guards."""

    def __init__(self) -> None:
        self.sections = 0

    def __enter__(self) -> None:
        self.sections += 1

    def __exit__(self, *error: object) -> None:
        pass


def test_every_verb_is_one_locked_section(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, lock = RadixCache(page_size=1), CountingLock()
    monkeypatch.setattr(cache, "_lock", lock)
    key, pages = key_of((1, 2, 3)), np.arange(3, dtype=np.int32)
    node = cache.insert_and_lock(key, pages, pending=1, unlock=cache.root).node
    verbs: list[Callable[[], object]] = [
        lambda: cache.match_prefix(key),
        lambda: cache.match_length(key),
        lambda: cache.match_and_lock(key),
        lambda: cache.insert(key, pages),
        lambda: cache.insert_and_lock(key, pages, unlock=node),
        lambda: cache.lock(node),
        lambda: cache.unlock(node),
        lambda: cache.settle(1),
        cache.remove_pending,
        lambda: cache.evict(1),
        cache.stats,
        cache.snapshot,
        lambda: cache.num_protected,
        cache.check_integrity,
    ]
    for verb in verbs:
        verb()
    assert lock.sections == 1 + len(verbs)
