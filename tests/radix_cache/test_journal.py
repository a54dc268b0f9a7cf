"""The journal tells all that a copy needs, and the ledger is that copy."""

from __future__ import annotations

import inspect
import random
from itertools import chain

import numpy as np
import pytest

from radix_cache.block_ledger import BlockLedger, LedgerError
from radix_cache.content_hash import page_hashes, root_hash
from radix_cache.eviction import EVICTION_POLICIES
from radix_cache.journal import Change, Cleared, JournaledCache, Removed, Stored
from radix_cache.key import encode_namespace
from radix_cache.radix_cache import RadixCache
from radix_cache.tree_node import TreeNode
from tests.radix_cache.model import contents, key_of

KEEPS_THE_PAGES = {
    *("check_integrity", "cursor", "lock", "match_and_lock", "match_length", "match_lengths", "match_prefix"),
    "move_lock",
    *("settle", "snapshot", "stats", "unlock"),
}
"""Methods after which the tree has the pages that it had."""


def follow(ledger: BlockLedger, journal: list[Change]) -> None:
    for change in journal:
        if isinstance(change, Stored):
            pages = np.frombuffer(change.pages, np.int32).tolist()
            ledger.store(change.parent_page, change.namespace, change.tokens, pages)
        elif isinstance(change, Removed):
            ledger.remove(change.pages.tolist())
        else:
            ledger.clear()


def expected_hashes(cache: RadixCache) -> set[bytes]:
    """The hash of each page of the tree, from its tokens from the root on."""
    stride = cache.page_size * 4
    hashes = set()
    for namespace, tokens in contents(cache):
        start = root_hash(b"" if namespace is None else encode_namespace(namespace))
        hashes.add(page_hashes(start, np.array(tokens, np.int32).tobytes(), stride)[-1])
    return hashes


class Walk:
    """Thread: the test's. Random operations on one cache, which takes its pages from a small pool."""

    def __init__(self, seed: int, page_size: int, policy: str) -> None:
        self.rng = random.Random(seed)
        self.cache = JournaledCache(page_size, policy)
        self.journal = self.cache.open_journal()
        self.free = list(range(40))
        self.held: list[TreeNode] = []
        self.command = 0

    def step(self) -> None:
        rng = self.rng
        deed = rng.choices(
            (self.insert, self.match, self.unlock, self.settle, self.fail, self.evict, self.clear),
            (10, 4, 4, 4, 1, 5, 0.3),
        )[0]
        deed()

    def key(self) -> tuple[tuple[int, ...], str | None]:
        size = self.rng.randint(1, 6 * self.cache.page_size)
        return tuple(self.rng.choices((1, 2), k=size)), self.rng.choice((None, "", "tenant"))

    def insert(self) -> None:
        tokens, namespace = self.key()
        count = len(tokens) // self.cache.page_size
        if len(self.free) < count:
            return
        self.rng.shuffle(self.free)
        pages = np.array([*self.free[:count], -1], np.int32)
        self.command += 1
        pending = self.rng.choice((None, self.command))
        if self.rng.random() < 0.5:
            found = self.cache.insert_and_lock(key_of(tokens, namespace), pages, pending)
            if found.num_taken:  # otherwise there is no new lock
                self.held.append(found.node)
        else:
            found = self.cache.insert(key_of(tokens, namespace), pages, pending)
        first = found.num_present // self.cache.page_size
        taken = pages[first : first + found.num_taken // self.cache.page_size].tolist()
        self.free = [page for page in self.free if page not in taken]

    def match(self) -> None:
        tokens, namespace = self.key()
        self.held.append(self.cache.match_and_lock(key_of(tokens, namespace)).node)

    def unlock(self) -> None:
        if self.held:
            self.cache.unlock(self.held.pop(self.rng.randrange(len(self.held))))

    def settle(self) -> None:
        self.cache.settle(self.command - self.rng.randint(0, 2))

    def fail(self) -> None:
        while self.held:
            self.unlock()
        self.free += self.cache.remove_pending().tolist()

    def evict(self) -> None:
        self.free += self.cache.evict(self.rng.randint(0, 6)).tolist()

    def clear(self) -> None:
        while self.held:
            self.unlock()
        self.cache.settle(self.command)
        self.free += self.cache.clear().tolist()


@pytest.mark.parametrize("policy", EVICTION_POLICIES)
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_ledger_that_follows_the_journal_has_the_pages_of_the_tree(page_size: int, policy: str) -> None:
    kinds: set[type] = set()
    for seed in range(4):
        walk, ledger = Walk(seed, page_size, policy), BlockLedger(page_size)
        for turn in range(150):
            walk.step()
            if turn % 3 == 2:
                journal = walk.journal.drain()
                kinds |= {type(change) for change in journal}
                follow(ledger, journal)
                blocks = ledger.blocks()
                assert len(blocks) == walk.cache.num_pages, f"seed {seed}, turn {turn}"
                assert {block.hash for block in blocks} == expected_hashes(walk.cache)
                places = {block.hash: place for place, block in enumerate(blocks)}
                assert all(
                    places[block.parent] < place
                    for place, block in enumerate(blocks)
                    if block.parent is not None
                )
        assert walk.journal.drain() == []
        walk.cache.check_integrity()
    assert kinds == {Stored, Removed, Cleared}


def test_every_method_that_changes_the_pages_is_journaled() -> None:
    """A new method of the cache must be written down in one of both places."""
    methods = {
        name for name, _ in inspect.getmembers(RadixCache, inspect.isfunction) if not name.startswith("_")
    }
    assert methods - KEEPS_THE_PAGES == set(vars(JournaledCache)) & methods


def test_what_changes_no_page_is_not_written_down() -> None:
    cache = JournaledCache(page_size=2)
    journal = cache.open_journal()
    pages = np.arange(10, dtype=np.int32)
    cache.insert(key_of((1, 2, 3, 4)), pages)
    (stored,) = journal.drain()
    assert stored == Stored(-1, None, key_of((1, 2, 3, 4)).data, pages[:2].tobytes())
    cache.match_prefix(key_of((1, 2, 9)))  # a split
    cache.insert(key_of((1, 2, 3, 4, 5)), pages)  # nothing new
    cache.insert(key_of((7,)), pages)  # less than a page
    cache.evict(0)
    assert journal.drain() == []
    cache.insert(key_of((1, 2, 3, 4, 5, 6)), pages)
    (stored,) = journal.drain()
    assert isinstance(stored, Stored)
    assert (stored.parent_page, stored.pages) == (1, pages[2:3].tobytes())
    off = JournaledCache(page_size=2, enabled=False)
    journal = off.open_journal()
    off.insert(key_of((1, 2)), pages)
    assert journal.drain() == []


def test_a_ledger_refuses_what_does_not_fit() -> None:
    ledger = BlockLedger(page_size=1)
    tokens = key_of((1, 2)).data
    ledger.store(-1, None, tokens, [5, 6])
    for parent, pages in ((7, [8, 9]), (6, [6, 9]), (-1, [9, 5])):
        with pytest.raises(LedgerError, match="here"):
            ledger.store(parent, None, tokens, pages)
    assert len(ledger) == 2
    with pytest.raises(LedgerError, match="7"):
        ledger.remove([7])
    assert len(set(chain(*(block[:1] for block in ledger.blocks())))) == 2
