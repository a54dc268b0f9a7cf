"""Random operations on the cache, each compared with a naive model and followed by the integrity check."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from radix_cache.errors import TreeStateError
from radix_cache.eviction import EVICTION_POLICIES
from radix_cache.radix_cache import RadixCache
from radix_cache.tree_node import CUT_BYTES, TreeNode
from tests.radix_cache.model import NaiveCache, Prefix, contents, key_of

NAMESPACES = (None, "", "a")
MAX_PAGES = 10
ROUNDS = 250


class Trial:
    """Thread: the test's. A cache and its model, driven by one seeded generator."""

    def __init__(self, seed: int, page_size: int, policy: str) -> None:
        self.random = random.Random(seed)
        self.cache = RadixCache(page_size, policy)
        self.model = NaiveCache(page_size, policy)
        self.handles: list[tuple[TreeNode, Prefix]] = []
        self.next_page = 0
        self.next_command = 0
        self.done: list[str] = []

    def tokens(self) -> tuple[int, ...]:
        """Tokens of a small alphabet; now and then an extension of something that is in the cache."""
        rng, page_size = self.random, self.cache.page_size
        fresh = tuple(rng.randrange(2) for _ in range(rng.randrange(MAX_PAGES * page_size + 2)))
        if self.model.pages and rng.random() < 0.5:
            known = rng.choice(list(self.model.pages))[1]
            return (known[: rng.randrange(len(known) + 1)] + fresh)[: MAX_PAGES * page_size + 1]
        return fresh

    def priority(self) -> int:
        return self.random.choice((0, 0, 0, -2, 1, 5))

    def new_pages(self, count: int) -> list[int]:
        self.next_page += count
        return list(range(self.next_page - count, self.next_page))

    def command(self) -> int | None:
        """None, or a command's number: usually the newest, sometimes one before it."""
        if self.random.random() < 0.4:
            return None
        self.next_command += self.random.randrange(2)
        return max(0, self.next_command - (self.random.random() < 0.1))

    def match(self, lock: bool) -> None:
        tokens, namespace = self.tokens(), self.random.choice(NAMESPACES)
        limit = self.random.choice((None, None, self.random.randrange(len(tokens) + 2)))
        key = key_of(tokens, namespace)
        expected = self.cache.match_length(key, limit)
        priority = self.priority()
        match = (self.cache.match_and_lock if lock else self.cache.match_prefix)(key, limit, priority)
        pages = self.model.match(namespace, tokens, len(tokens) if limit is None else limit, priority)
        assert match.pages.tolist() == [page.page for page in pages]
        assert match.num_tokens == expected == len(pages) * self.cache.page_size
        settled = [page for page in pages if page.pending is None]
        assert match.num_settled == len(settled) * self.cache.page_size
        if lock:
            self.hold(match.node, (namespace, tokens[: match.num_tokens]))

    def insert(self, lock: bool) -> None:
        tokens, namespace = self.tokens(), self.random.choice(NAMESPACES)
        unlock: tuple[TreeNode, Prefix] | None = None
        if lock and self.handles and self.random.random() < 0.7:
            unlock = self.handles.pop(self.random.randrange(len(self.handles)))
            if self.random.random() < 0.8:
                namespace, tokens = unlock[1][0], unlock[1][1] + tokens
        pages = self.new_pages(len(tokens) // self.cache.page_size)
        pending = self.command()
        key, array = key_of(tokens, namespace), np.array([*pages, -1], dtype=np.int32)
        priority = self.priority()
        if lock:
            found = self.cache.insert_and_lock(key, array, pending, unlock[0] if unlock else None, priority)
        else:
            found = self.cache.insert(key, array, pending, priority)
        present, taken = self.model.insert(namespace, tokens, pages, pending, priority)
        assert found.num_present == present * self.cache.page_size
        assert found.num_taken == taken * self.cache.page_size
        if lock and not taken:
            self.handles += [unlock] if unlock else []
        elif lock:
            if unlock:
                self.model.locks[unlock[1]] -= 1
            self.hold(found.node, (namespace, tokens[: found.num_present + found.num_taken]))

    def hold(self, node: TreeNode, prefix: Prefix) -> None:
        if prefix[1]:
            self.model.locks[prefix] += 1
        self.handles.append((node, prefix))

    def lock_again(self) -> None:
        if self.handles:
            node, prefix = self.random.choice(self.handles)
            self.cache.lock(node)
            self.hold(node, prefix)

    def unlock(self) -> None:
        if self.handles:
            node, prefix = self.handles.pop(self.random.randrange(len(self.handles)))
            self.cache.unlock(node)
            self.model.locks[prefix] -= 1

    def settle(self) -> None:
        applied = self.next_command - self.random.randrange(3)
        self.cache.settle(applied)
        self.model.settle(applied)

    def remove_pending(self) -> None:
        if not self.model.may_remove_pending():
            with pytest.raises(TreeStateError, match="still held"):
                self.cache.remove_pending()
            return
        assert set(self.cache.remove_pending().tolist()) == self.model.remove_pending()

    def evict(self) -> None:
        count = self.random.randrange(8)
        pages = self.cache.evict(count).tolist()
        assert set(pages) == self.model.evict(count)
        assert len(pages) == len(set(pages))

    def clear(self) -> None:
        if self.model.protected():
            with pytest.raises(TreeStateError, match="locked or pending"):
                self.cache.clear()
            return
        assert set(self.cache.clear().tolist()) == {page.page for page in self.model.pages.values()}
        self.model.pages.clear()

    def check(self) -> None:
        self.cache.check_integrity()
        assert contents(self.cache) == self.model.pages
        protected = len(self.model.protected())
        assert self.cache.num_pages == len(self.model.pages)
        assert self.cache.num_protected == protected
        assert self.cache.num_evictable == len(self.model.pages) - protected
        assert self.cache.stats().num_pending == len(self.model.pending())

    def run(self, rounds: int) -> None:
        operations: list[tuple[Callable[[], None], int]] = [
            (lambda: self.match(lock=False), 10),
            (lambda: self.match(lock=True), 10),
            (lambda: self.insert(lock=False), 10),
            (lambda: self.insert(lock=True), 10),
            (self.lock_again, 2),
            (self.unlock, 20),
            (self.settle, 8),
            (self.remove_pending, 2),
            (self.evict, 12),
            (self.clear, 1),
        ]
        verbs, weights = zip(*operations, strict=True)
        for _ in range(rounds):
            self.random.choices(verbs, weights)[0]()
            self.check()

    def finish(self) -> None:
        """Release everything: nothing may be left."""
        while self.handles:
            self.unlock()
        self.cache.settle(self.next_command)
        self.model.settle(self.next_command)
        self.check()
        assert self.cache.num_protected == 0
        assert len(self.cache.evict(self.cache.num_pages + 1)) == len(self.model.pages)
        self.model.pages.clear()
        self.check()
        assert len(self.cache.root.child_nodes()) == 0


@pytest.mark.parametrize("policy", EVICTION_POLICIES)
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize(("seed", "cut_bytes"), [(11, CUT_BYTES), (12, 0)])
def test_agrees_with_the_naive_model(
    seed: int, cut_bytes: int, page_size: int, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radix_cache.tree_node.CUT_BYTES", cut_bytes)  # 0: halves whatever it can
    trial = Trial(seed, page_size, policy)
    try:
        trial.run(ROUNDS)
        trial.finish()
    except BaseException as error:
        error.add_note(f"seed={seed} page_size={page_size} policy={policy} {trial.cache!r}")
        raise
