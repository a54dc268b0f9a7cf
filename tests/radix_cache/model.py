"""A naive cache to compare with: every cached page on its own, under the tokens from the root to its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from radix_cache.eviction import EVICTION_POLICIES
from radix_cache.key import TOKEN_BYTES, RadixKey
from radix_cache.radix_cache import RadixCache
from radix_cache.tree_node import TreeNode

Prefix = tuple[str | None, tuple[int, ...]]
"""Namespace and tokens from the root on."""


@dataclass(slots=True)
class Page:
    """What the model knows about one cached page."""

    page: int
    pending: int | None
    created: int
    last_access: int
    hits: int = 0
    priority: int = 0


class NaiveCache:
    """Thread: the test's. Follows the same rules as the tree, page by page and by brute force."""

    def __init__(self, page_size: int, policy: str) -> None:
        self.page_size = page_size
        self.policy = policy
        self.pages: dict[Prefix, Page] = {}
        self.locks: Counter[Prefix] = Counter()
        self.clock = 0

    def prefixes(self, namespace: str | None, tokens: tuple[int, ...], limit: int) -> list[Prefix]:
        """The page-aligned prefixes within `limit` tokens, shortest first."""
        ends = range(self.page_size, min(limit, len(tokens)) + 1, self.page_size)
        return [(namespace, tokens[:end]) for end in ends]

    def found(self, namespace: str | None, tokens: tuple[int, ...], limit: int) -> list[Page]:
        found = []
        for prefix in self.prefixes(namespace, tokens, limit):
            if prefix not in self.pages:
                break
            found.append(self.pages[prefix])
        return found

    def touch(self, pages: list[Page], hit: int, priority: int) -> None:
        self.clock += 1
        for page in pages:
            page.last_access = self.clock
            page.hits += hit
            page.priority = max(page.priority, priority)

    def match(
        self, namespace: str | None, tokens: tuple[int, ...], limit: int, priority: int = 0
    ) -> list[Page]:
        pages = self.found(namespace, tokens, min(limit, len(tokens) - 1))
        self.touch(pages, 1, priority)
        return pages

    def insert(
        self,
        namespace: str | None,
        tokens: tuple[int, ...],
        ids: list[int],
        pending: int | None,
        priority: int = 0,
    ) -> tuple[int, int]:
        """Returns how many pages were present and how many were taken."""
        present = self.found(namespace, tokens, len(tokens))
        self.touch(present, 0, priority)
        above = present[-1].pending if present else None
        if above is not None:
            pending = above if pending is None else max(above, pending)
        prefixes = self.prefixes(namespace, tokens, len(tokens))
        for prefix, page in list(zip(prefixes, ids, strict=True))[len(present) :]:
            self.pages[prefix] = Page(page, pending, self.clock, self.clock, priority=priority)
        return len(present), len(prefixes) - len(present)

    def protected(self) -> set[Prefix]:
        """Every page at or above a lock or an unwritten page."""
        ends = [prefix for prefix, count in self.locks.items() if count]
        ends += [prefix for prefix, page in self.pages.items() if page.pending is not None]
        return {above for end in ends for above in self.prefixes(end[0], end[1], len(end[1]))}

    def pending(self) -> set[Prefix]:
        return {prefix for prefix, page in self.pages.items() if page.pending is not None}

    def settle(self, applied: int) -> None:
        for page in self.pages.values():
            if page.pending is not None and page.pending <= applied:
                page.pending = None

    def may_remove_pending(self) -> bool:
        return not any(count and prefix in self.pending() for prefix, count in self.locks.items())

    def remove_pending(self) -> set[int]:
        return {self.pages.pop(prefix).page for prefix in self.pending()}

    def evict(self, count: int) -> set[int]:
        """One page at a time: of the unprotected pages that nothing follows, the policy's first."""
        freed: set[int] = set()
        protected = self.protected()
        while len(freed) < count:
            followed = {(namespace, tokens[: -self.page_size]) for namespace, tokens in self.pages}
            leaves = [prefix for prefix in self.pages if prefix not in followed and prefix not in protected]
            if not leaves:
                break
            freed.add(self.pages.pop(min(leaves, key=self._order)).page)
        return freed

    def _order(self, prefix: Prefix) -> int:
        page = self.pages[prefix]
        node = TreeNode(None, b"", b"", b"", None, page.created)
        node.last_access = page.last_access
        node.hits = page.hits
        node.priority = page.priority
        return EVICTION_POLICIES[self.policy](node)


def contents(cache: RadixCache) -> dict[Prefix, Page]:
    """What the tree holds, in the model's terms."""
    found: dict[Prefix, Page] = {}
    stack: list[tuple[TreeNode, Prefix]] = [(cache.root, (None, ()))]
    stride = cache.page_size * TOKEN_BYTES
    while stack:
        parent, (namespace, tokens) = stack.pop()
        for node in parent.child_nodes():
            if parent is cache.root:
                salt = node.edge[stride:]
                namespace = salt[1:].decode() if salt else None
            ids = np.frombuffer(node.pages, np.int32).tolist()
            own = tuple(np.frombuffer(node.tokens, np.int32).tolist())
            for place, page in enumerate(ids, start=1):
                prefix = (namespace, tokens + own[: place * cache.page_size])
                found[prefix] = Page(
                    page, node.pending, node.created, node.last_access, node.hits, node.priority
                )
            stack.append((node, (namespace, tokens + own)))
    return found


def key_of(tokens: tuple[int, ...], namespace: str | None = None) -> RadixKey:
    return RadixKey(np.array(tokens, dtype=np.int32), namespace)
