"""Tree and allocator together: the lease of each slot, from admission to release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from control_loop.host_tier import HostTier
from control_loop.req import Req
from control_loop.slots import SlotTable
from mem_pool.page_allocator import PageAllocator
from radix_cache.cursor import MatchCursor
from radix_cache.key import RadixKey
from radix_cache.radix_cache import RadixCache
from radix_cache.radix_tree import TreeNode
from srt.core.messages import Int32Array


class CacheManager:
    """Thread: control. Who owns which page of a sequence, half-open and in tokens::

        [0 ............ path)[path ........... scheduled)[scheduled ........ num_pages * page_size)
         tree's, locked       the lease's, written or      the lease's, reserved
                              commanded; the whole pages
                              go to the tree at `publish`

    Inside ``[0, path)`` a page may still be the lease's: the tree had the same tokens in a page of its own when ours
    was published. Compute keeps reading ours, so it stays private until `release`.
    """

    def __init__(
        self,
        cache: RadixCache,
        allocator: PageAllocator,
        slots: SlotTable,
        tier: HostTier | None = None,
    ) -> None:
        self.cache = cache
        self.allocator = allocator
        self.tier = tier
        self._slots = slots
        self._page_size = slots.page_size
        self._nodes: list[TreeNode] = [cache.root] * (slots.num_slots + 1)
        self.evicted_pages = 0

    @property
    def root(self) -> TreeNode:
        return self.cache.root

    @property
    def num_available(self) -> int:
        """Pages that `reserve` can deliver now."""
        return self.allocator.num_free + self.cache.num_evictable

    @property
    def max_copies(self) -> int:
        """Copies that one pass over the waiting requests can command: no page is moved twice in it, out or in."""
        return 0 if self.tier is None else 2 * self.allocator.num_pages

    def reserve(self, count: int) -> Int32Array | None:
        """`count` pages, evicting what nobody uses; None and no change when there are not so many."""
        short = count - self.allocator.num_free
        if short > 0:
            if short > self.cache.num_evictable:
                return None
            evicted = self.cache.evict(short)
            self.evicted_pages += len(evicted)
            if self.tier is not None:
                self.tier.keep(evicted)
            self.allocator.free(evicted)
        return self.allocator.alloc(count)

    def match_lengths(self, reqs: Sequence[Req]) -> list[int]:
        """How many cached tokens `admit` would find for each; for ordering only, so it is no use of the prefixes."""
        return self.cache.match_lengths([req.cursor or self._cursor(req) for req in reqs])

    def match_nodes(self, reqs: Sequence[Req]) -> list[TreeNode]:
        """The deepest node of the tree that is wholly on each prompt; the root where there is none."""
        self.match_lengths(reqs)
        return [self._cursor(req).node for req in reqs]

    def _cursor(self, req: Req) -> MatchCursor:
        if req.cursor is None:
            req.cursor = self.cache.cursor(req.radix_key)
        return req.cursor

    def num_owned(self, slot: int) -> int:
        """Pages of a lease that the tree has not taken."""
        return len(self._slots.owned_pages(slot))

    def locked_path(self, slot: int) -> Iterator[TreeNode]:
        """The tree's nodes that the row of a slot has locked, from the end of its path up, without the root."""
        node = self._nodes[slot]
        while node.parent is not None:
            yield node
            node = node.parent

    def admit(self, req: Req, headroom: int) -> bool:
        """Takes a slot for `req`, locks its cached prefix and reserves pages for all the rest of its tokens.

        False, and no change, when fewer than `headroom` pages would remain available. A slot must be free.
        """
        match = self.cache.match_and_lock(req.radix_key, priority=req.priority)
        cached = len(match.pages)
        needed = -(-len(req.token_ids) // self._page_size) - cached
        pages = None
        if self.num_available >= needed + headroom:
            pages = self.reserve(needed)
        if pages is None:
            self.cache.unlock(match.node)
            return False
        slot = self._slots.take(req)
        self._nodes[slot] = match.node
        self._slots.pages[slot, :cached] = match.pages
        self._slots.owned[slot, :cached] = False
        self._slots.num_pages[slot] = cached
        self.extend(slot, pages)
        self._slots.kv_len[slot] = self._slots.scheduled[slot] = match.num_tokens
        if self.tier is not None:
            self._bring_back(self.tier, slot, req.radix_key)
        return True

    def _bring_back(self, tier: HostTier, slot: int, key: RadixKey) -> None:
        """Fills the first reserved pages of a new lease from host memory, and enters them into the tree.

        ::

            [0 ..... match)[match ........... found)[found ..........
             tree's         reserved, and now copied  reserved, to be
             before         to: the tree's, pending   computed
        """
        cached = int(self._slots.scheduled[slot]) // self._page_size
        host_pages = tier.find(key, self._slots.pages[slot, :cached])
        if len(host_pages):
            whole = cached + len(host_pages)
            seq = tier.bring_back(host_pages, self._slots.pages[slot, cached:whole].copy())
            self._slots.kv_len[slot] = self._slots.scheduled[slot] = whole * self._page_size
            self.publish(slot, whole * self._page_size, seq)

    def extend(self, slot: int, pages: Int32Array) -> None:
        """Adds pages of our own to the end of a lease."""
        have = int(self._slots.num_pages[slot])
        self._slots.pages[slot, have : have + len(pages)] = pages
        self._slots.owned[slot, have : have + len(pages)] = True
        self._slots.num_pages[slot] = have + len(pages)

    def rematch(self, slot: int) -> int:
        """Before a chunk: skips tokens that others have computed since; returns how many.

        ::

            [0 .... scheduled)[scheduled .... match)[match ......
             not remapped      reserved pages freed   still ours
                               the tree's come in
        """
        slots = self._slots
        req = slots.req(slot)
        scheduled = int(slots.scheduled[slot])
        match = self.cache.match_prefix(req.radix_key, priority=req.priority)
        if match.num_tokens <= scheduled:
            return 0
        self.cache.move_lock(self._nodes[slot], match.node)
        self._nodes[slot] = match.node
        skipped = slice(scheduled // self._page_size, len(match.pages))
        reserved = slots.pages[slot, skipped].copy()
        slots.pages[slot, skipped] = match.pages[skipped]
        slots.owned[slot, skipped] = False
        self.allocator.free(reserved)
        slots.scheduled[slot] = match.num_tokens
        return match.num_tokens - scheduled

    def publish(self, slot: int, end: int, seq: int) -> None:
        """Enters tokens ``[0, end)``, commanded by `seq`, into the tree: pending until that step reports."""
        whole = end // self._page_size
        priority = self._slots.req(slot).priority
        key = self._key(slot, whole * self._page_size)
        pages = self._slots.pages[slot, :whole]
        inserted = self.cache.insert_and_lock(key, pages, seq, unlock=self._nodes[slot], priority=priority)
        if inserted.num_taken:  # else the lock has stayed: this row does not read somebody else's duplicate
            self._nodes[slot] = inserted.node
            self._disown(slot, inserted.num_present, inserted.num_taken)

    def release(self, slot: int, valid: int) -> Req:
        """The end of a life: whole pages of tokens ``[0, valid)`` go to the tree, everything else is freed.

        `valid` tokens have KV that a settled step wrote.
        """
        self._offer(slot, valid)
        self.cache.unlock(self._nodes[slot])
        return self._return_slot(slot)

    def abandon(self, valid: dict[int, int]) -> tuple[list[Req], int]:
        """After a failed step: ends all lives at once. Nothing that an unsettled step wrote stays matchable.

        `valid[slot]` is how many tokens a settled step wrote KV for. Returns the requests in their order of admission
        and how many pages pending nodes held.
        """
        settled = {slot for slot in valid if self._nodes[slot].pending is None}
        for slot in valid:
            self.cache.unlock(self._nodes[slot])
        lost = self.cache.remove_pending()
        self.allocator.free(lost)
        for slot in settled:
            # The path of a settled node is settled, and with no pending node left the rest of it hangs below safely.
            self._offer(slot, valid[slot])
        return [self._return_slot(slot) for slot in valid], len(lost)

    def flush(self) -> int:
        """Empties the tree; nothing may be locked. Returns the pages freed."""
        pages = self.cache.clear()
        self.allocator.free(pages)
        if self.tier is not None:
            self.tier.clear()
        return len(pages)

    def _offer(self, slot: int, valid: int) -> None:
        whole = valid // self._page_size
        key = self._key(slot, whole * self._page_size)
        priority = self._slots.req(slot).priority
        inserted = self.cache.insert(key, self._slots.pages[slot, :whole], priority=priority)
        self._disown(slot, inserted.num_present, inserted.num_taken)

    def _disown(self, slot: int, present: int, taken: int) -> None:
        """The tree has taken the pages of tokens ``[present, present + taken)``."""
        first = present // self._page_size
        self._slots.owned[slot, first : first + taken // self._page_size] = False

    def _return_slot(self, slot: int) -> Req:
        self.allocator.free(self._slots.owned_pages(slot))
        self._nodes[slot] = self.cache.root
        return self._slots.give_back(slot)

    def _key(self, slot: int, length: int) -> RadixKey:
        return RadixKey(self._slots.tokens[slot, :length].copy(), self._slots.req(slot).namespace)

    def __repr__(self) -> str:
        return f"CacheManager({self.allocator!r}, {self.cache.num_pages} pages cached)"
