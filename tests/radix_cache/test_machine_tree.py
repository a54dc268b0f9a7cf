"""The tree against the naive cache in any order that hypothesis can think of: each answer, and all that is in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from radix_cache.errors import TreeStateError
from radix_cache.eviction import EVICTION_POLICIES
from radix_cache.radix_cache import RadixCache
from radix_cache.tree_node import TreeNode
from tests.radix_cache.model import NaiveCache, Page, Prefix, contents, key_of
from tests.strategies import NAMESPACES, StepCount, run_machines, token_runs

MAX_PAGES = 6
MACHINES, STEPS = 25, 100
"""For each page size and policy."""

ORDER: Final[dict[str, Callable[[Page], tuple[int, ...]]]] = {
    "lru": lambda page: (page.last_access,),
    "mru": lambda page: (-page.last_access,),
    "fifo": lambda page: (page.created,),
    "filo": lambda page: (-page.created,),
    "lfu": lambda page: (page.hits, page.last_access),
    "slru": lambda page: (int(page.hits > 1), page.last_access),
    "priority": lambda page: (page.priority, page.last_access),
}
"""The policies written down once more, apart from the product's."""

limits = st.sampled_from((None, None, None, 0, 1, 3, 4, 5, 9))
which = st.integers(0, 7)
priorities = st.sampled_from((0, 0, 0, 3, -2))


class TreeMachine(RuleBasedStateMachine):
    """Thread: the test's. A cache, its model, and the locks that are held."""

    def __init__(self, page_size: int, policy: str, count: StepCount) -> None:
        super().__init__()
        self.policy = policy
        self.count = count
        self.cache = RadixCache(page_size, policy)
        self.model = NaiveCache(page_size, policy)
        self.held: list[tuple[TreeNode, Prefix]] = []
        self.next_page = 0
        self.next_command = 0
        self.checked = 0

    def tokens(self, data: st.DataObject) -> tuple[int, ...]:
        return data.draw(token_runs(self.cache.page_size, MAX_PAGES * self.cache.page_size + 1))

    def hold(self, node: TreeNode, prefix: Prefix) -> None:
        if prefix[1]:
            self.model.locks[prefix] += 1
        self.held.append((node, prefix))

    # --- rules --------------------

    @rule(data=st.data(), namespace=NAMESPACES, limit=limits, priority=priorities, lock=st.booleans())
    def match(
        self, data: st.DataObject, namespace: str | None, limit: int | None, priority: int, lock: bool
    ) -> None:
        tokens = self.tokens(data)
        key = key_of(tokens, namespace)
        length = self.cache.match_length(key, limit)
        found = (self.cache.match_and_lock if lock else self.cache.match_prefix)(key, limit, priority)
        pages = self.model.match(namespace, tokens, len(tokens) if limit is None else limit, priority)
        assert found.pages.tolist() == [page.page for page in pages]
        assert found.num_tokens == length == len(pages) * self.cache.page_size < len(tokens)
        settled = sum(page.pending is None for page in pages)
        assert found.num_settled == settled * self.cache.page_size
        if lock:
            self.hold(found.node, (namespace, tokens[:length]))

    @rule(
        data=st.data(),
        namespace=NAMESPACES,
        command=st.sampled_from((None, None, 0, 1, 1)),
        priority=priorities,
        lock=st.booleans(),
    )
    def insert(
        self, data: st.DataObject, namespace: str | None, command: int | None, priority: int, lock: bool
    ) -> None:
        tokens = self.tokens(data)
        count = len(tokens) // self.cache.page_size
        pages = list(range(self.next_page, self.next_page + count))
        self.next_page += count
        self.next_command += command or 0
        pending = None if command is None else self.next_command
        key = key_of(tokens, namespace)
        found = self.cache.insert(key, np.array([*pages, -1], np.int32), pending, priority)
        present, taken = self.model.insert(namespace, tokens, pages, pending, priority)
        assert (found.num_present, found.num_taken) == (
            present * self.cache.page_size,
            taken * self.cache.page_size,
        )
        if lock:
            self.cache.lock(found.node)
            self.hold(found.node, (namespace, tokens[: found.num_present + found.num_taken]))

    @precondition(lambda self: self.held)
    @rule(index=which)
    def unlock(self, index: int) -> None:
        node, prefix = self.held.pop(index % len(self.held))
        self.cache.unlock(node)
        self.model.locks[prefix] -= 1

    @precondition(lambda self: self.model.pending())
    @rule(behind=st.integers(0, 2))
    def settle(self, behind: int) -> None:
        self.cache.settle(self.next_command - behind)
        self.model.settle(self.next_command - behind)

    @precondition(lambda self: self.model.pending())
    @rule()
    def remove_pending(self) -> None:
        if self.model.may_remove_pending():
            assert set(self.cache.remove_pending().tolist()) == self.model.remove_pending()
        else:
            with pytest.raises(TreeStateError, match="still held"):
                self.cache.remove_pending()

    @precondition(lambda self: self.model.pages)
    @rule(count=st.integers(0, 6))
    def evict(self, count: int) -> None:
        expected = self.first_to_go(count)
        pages = self.cache.evict(count).tolist()
        assert len(pages) == len(expected)
        assert set(pages) == {self.model.pages[prefix].page for prefix in expected}
        for prefix in expected:
            del self.model.pages[prefix]

    def first_to_go(self, count: int) -> list[Prefix]:
        """One page at a time: of those that nothing follows and nobody protects, the policy's first."""
        left = {prefix for prefix in self.model.pages if prefix not in self.model.protected()}
        gone: list[Prefix] = []
        while left and len(gone) < count:
            followed = {
                (name, tokens[: -self.cache.page_size]) for name, tokens in self.model.pages.keys() - gone
            }
            first = min(left - followed, key=lambda prefix: ORDER[self.policy](self.model.pages[prefix]))
            gone.append(first)
            left.remove(first)
        return gone

    @rule()
    def clear(self) -> None:
        if self.model.protected():
            with pytest.raises(TreeStateError, match="locked or pending"):
                self.cache.clear()
        else:
            assert set(self.cache.clear().tolist()) == {page.page for page in self.model.pages.values()}
            self.model.pages.clear()

    # --- judging --------------------

    @invariant()
    def agrees(self) -> None:
        self.cache.check_integrity()
        assert contents(self.cache) == self.model.pages
        protected = len(self.model.protected())
        assert self.cache.num_pages == len(self.model.pages)
        assert self.cache.num_evictable == len(self.model.pages) - protected
        assert self.cache.stats().num_pending == len(self.model.pending())
        self.checked += 1

    def teardown(self) -> None:
        self.count.total += self.checked - 1
        while self.held:
            self.unlock(0)
        self.cache.settle(self.next_command)
        assert self.cache.num_protected == 0
        assert len(self.cache.clear()) == len(self.model.pages)


@pytest.mark.slow
@pytest.mark.timeout(900)  # hypothesis shrinks what fails
@pytest.mark.parametrize("policy", EVICTION_POLICIES)
@pytest.mark.parametrize("page_size", [1, 4])
def test_any_operations_equal_the_naive_cache(page_size: int, policy: str) -> None:
    count = StepCount()
    run_machines(lambda: TreeMachine(page_size, policy, count), MACHINES, STEPS)
    assert count.total >= MACHINES * STEPS // 2, count
