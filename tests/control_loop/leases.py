"""Tree, allocator, slots and credits as the control loop uses them, with a device that remembers what is in a page.

No loop and no queue: a test commands chunks, runs steps and ends lives in any order that the protocol allows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from control_loop.cache_manager import CacheManager
from control_loop.page_credits import PageCredits, choose_victim
from control_loop.prefill_adder import PrefillAdder, Verdict
from control_loop.req import Phase, Req
from control_loop.slots import SlotTable
from mem_pool.page_allocator import PageAllocator
from radix_cache.radix_cache import RadixCache
from srt.core.messages import FinishReason, Int32Array, TokenizedReq
from srt.core.sampling_params import SamplingParams
from srt.core.step_messages import Row, ScheduledSeq
from tests.control_loop.ownership import check_ownership, pages_of, tokens_of, walk

UNWRITTEN = -1
ABORT = FinishReason("abort")
LENGTH = FinishReason("length")


@dataclass(slots=True)
class DeviceRow:
    """What compute knows of a life.

    ::

        KV:  [0 .... kv_len)[.... limit)
              launched       credit

    `tokens` are the known ones; a launched decode step that has not run leaves the next one open.
    """

    tokens: list[int]
    pages: list[int]
    kv_len: int
    limit: int
    decoding: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A launched step: half-open ranges of KV positions by row; `applied` is the newest command it executes."""

    applied: int
    writes: tuple[tuple[Row, int, int], ...]


@dataclass(slots=True)
class Leases:
    """Thread: the test's. Control's parts, a queue of launched steps, and the pages of the device."""

    page_size: int
    num_pages: int
    num_slots: int
    max_tokens: int
    eviction_policy: str = "lru"
    steps: deque[Step] = field(default_factory=deque)
    rows: dict[Row, DeviceRow] = field(default_factory=dict)
    waiting: list[Req] = field(default_factory=list)
    seq: int = 0
    applied: int = 0
    arrivals: int = 0

    slots: SlotTable = field(init=False)
    manager: CacheManager = field(init=False)
    credits: PageCredits = field(init=False)
    kv: Int32Array = field(init=False)

    def __post_init__(self) -> None:
        self.slots = SlotTable(self.num_slots, self.max_tokens, self.page_size)
        cache = RadixCache(self.page_size, self.eviction_policy)
        self.manager = CacheManager(cache, PageAllocator(self.num_pages), self.slots)
        self.credits = PageCredits(self.manager, self.slots)
        self.kv = np.full((self.num_pages + 1, self.page_size), UNWRITTEN, np.int32)

    # --- requests --------------------

    def arrive(self, prompt: tuple[int, ...], namespace: str | None, max_new_tokens: int) -> Req | None:
        """A request that waits; None when the whole pool could not hold it."""
        self.arrivals += 1
        params = SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0)
        message = TokenizedReq(
            self.arrivals, f"r{self.arrivals}", np.array(prompt, np.int32), params, namespace
        )
        req = Req(message, max_new_tokens, frozenset(), self.arrivals, 0.0)
        if req.max_kv > self.num_pages * self.page_size:
            return None
        self.waiting.append(req)
        return req

    def lives(self, *phases: Phase) -> list[Req]:
        return [req for req in self.slots.reqs() if req.phase in phases]

    # --- commands and steps --------------------

    def schedule(self, budget: int, headroom: int, turn: int) -> int:
        """One prefill batch, launched at once; returns its tokens. `turn` is whose turn it is, those behind follow.

        Other than in the scheduler, those who have begun need not go first: two may compute the same tokens.
        """
        adder = PrefillAdder(self.manager, self.slots, self.seq + 1, budget)
        everybody = [*self.lives(Phase.PREFILLING), *self.waiting]
        start = turn % max(1, len(everybody))
        for req in everybody[start:] + everybody[:start]:
            if req.phase is Phase.PREFILLING:
                adder.add_chunk(req)
            elif self.slots.num_free and self._try_admit(adder, req, headroom) is Verdict.SCHEDULED:
                self.waiting.remove(req)
        if adder.rows:
            self.seq += 1
            self.launch(tuple(adder.rows))
        return adder.num_tokens

    def _try_admit(self, adder: PrefillAdder, req: Req, headroom: int) -> Verdict:
        before = self._resources()
        verdict = adder.try_admit(req, headroom)
        if verdict is not Verdict.SCHEDULED:
            assert self._resources() == before, f"{verdict} changed something"
        return verdict

    def _resources(self) -> tuple[int, int, int, int, int]:
        allocator, cache = self.manager.allocator, self.manager.cache
        return (
            allocator.num_free,
            cache.num_pages,
            cache.num_evictable,
            self.slots.num_free,
            self.manager.evicted_pages,
        )

    def launch(self, chunks: tuple[ScheduledSeq, ...] = ()) -> bool:
        """A step with these chunks and every row that has credit; False when there is nothing to run."""
        writes = [(chunk.row, chunk.start, chunk.start + chunk.num_new_tokens) for chunk in chunks]
        decoding = [
            (name, row.kv_len, row.kv_len + 1)
            for name, row in self.rows.items()
            if row.decoding and not row.ended and row.kv_len < row.limit
        ]
        for chunk in chunks:
            self._begin_chunk(chunk)
        for name, _, end in decoding:
            self.rows[name].kv_len = end
        if not writes and not decoding:
            return False
        self.steps.append(Step(self.seq, (*writes, *decoding)))
        return True

    def _begin_chunk(self, chunk: ScheduledSeq) -> None:
        if chunk.init is not None:
            req = self.slots.find(chunk.row)
            assert req is not None
            self.rows[chunk.row] = DeviceRow(req.token_ids.tolist(), [], 0, 0)
        row = self.rows[chunk.row]
        assert row.tokens[chunk.start : chunk.start + chunk.num_new_tokens] == chunk.token_ids.tolist()
        assert len(row.pages) == chunk.first_page, "page-table entries are sent once, in order"
        row.pages += chunk.pages.tolist()
        row.kv_len, row.limit, row.decoding = chunk.start + chunk.num_new_tokens, chunk.limit, chunk.is_last

    def run_step(self) -> None:
        """The oldest launched step runs: all rows write, then all rows read; control takes in the result."""
        step = self.steps.popleft()
        for name, start, end in step.writes:
            self._write(self.rows[name], start, end)
        for name, _, end in step.writes:
            self._read(name, end)
        self.applied = step.applied
        self.manager.cache.settle(step.applied)
        for name, _, end in step.writes:
            self._report(name, end)

    def _write(self, row: DeviceRow, start: int, end: int) -> None:
        for place in range(start, end):
            page, offset = row.pages[place // self.page_size], place % self.page_size
            self.kv[page, offset] = row.tokens[place]

    def _read(self, name: Row, end: int) -> None:
        row = self.rows[name]
        seen = self.kv[row.pages[: -(-end // self.page_size)]].reshape(-1)[:end].tolist()
        assert seen == row.tokens[:end], f"{name} reads {seen}, its tokens are {row.tokens[:end]}"

    def _report(self, name: Row, end: int) -> None:
        row, slots = self.rows[name], self.slots
        if end == len(row.tokens):
            row.tokens.append(1 + sum(row.tokens) % 2)
        if row.ended:
            return  # compute leaves the row out of the result
        slot = name[0]
        slots.kv_len[slot] = end
        slots.scheduled[slot] = max(int(slots.scheduled[slot]), end)
        if len(row.tokens) > slots.num_tokens[slot]:
            slots.tokens[slot, slots.num_tokens[slot]] = row.tokens[-1]
            slots.num_tokens[slot] += 1
        if end >= int(slots.max_kv[slot]):
            self.end(slots.req(slot))

    def grant(self) -> bool:
        """Memory for who decodes; retracts a row when it is short. True when somebody got anything."""
        make, short = self.credits.grant()
        if make is not None:
            self.seq += 1
            grant = make(self.seq, 0)
            for index, name in enumerate(zip(grant.slots.tolist(), grant.generations.tolist(), strict=True)):
                row = self.rows[name]
                assert len(row.pages) == grant.first_page[index]
                row.pages += grant.pages[grant.offsets[index] : grant.offsets[index + 1]].tolist()
                row.limit = int(grant.limits[index])
        victim = choose_victim(self.slots.reqs(), self.slots) if short else None
        if victim is not None:
            self.leave(victim, None)
        return make is not None

    # --- ends --------------------

    def leave(self, req: Req, reason: FinishReason | None) -> None:
        """Control wants a life to end: aborted with a reason, retracted without. Compute learns of it by `tell`."""
        req.finish = req.finish or reason
        if req.phase is Phase.WAITING:
            self.waiting.remove(req)
            req.phase = Phase.GONE
            return
        req.phase = Phase.LEAVING
        self.slots.decoding[req.slot] = self.slots.alive[req.slot] = False

    def end(self, req: Req) -> None:
        """Compute has decided that a request ends here; what it has launched since is an overrun."""
        self.leave(req, LENGTH)
        self.rows[req.slot, req.generation].ended = True

    def tell(self) -> None:
        """Compute applies the drops: no further step names these rows."""
        for req in self.lives(Phase.LEAVING):
            self.rows[req.slot, req.generation].ended = True

    def droppable(self) -> list[Req]:
        """Ended rows that no launched step names."""
        named = {name for step in self.steps for name, _, _ in step.writes}
        rows = {(req.slot, req.generation): req for req in self.lives(Phase.LEAVING)}
        return [req for name, req in rows.items() if self.rows[name].ended and name not in named]

    def drop(self, req: Req, keep_tokens: int | None = None) -> None:
        """Compute has acknowledged: the lease is released. `keep_tokens` outputs belong to the answer."""
        slot = req.slot
        del self.rows[slot, req.generation]
        valid = int(self.slots.kv_len[slot])
        if keep_tokens is not None:
            valid = min(valid, req.prompt_len + keep_tokens)
        known = self.slots.known_tokens(slot)
        req.cached_tokens = int(self.slots.cached[slot])
        assert self.manager.release(slot, valid) is req
        self._after_life(req, known)

    def fail(self) -> None:
        """The launched steps fail: compute forgets all rows, and what those steps wrote is void."""
        for step in self.steps:
            for name, start, end in step.writes:
                row = self.rows[name]
                for place in range(start, end):
                    self.kv[row.pages[place // self.page_size], place % self.page_size] = UNWRITTEN
        self.steps.clear()
        self.rows.clear()
        lives = list(self.slots.reqs())
        known = {req.key: self.slots.known_tokens(req.slot) for req in lives}
        ended, _ = self.manager.abandon({req.slot: int(self.slots.kv_len[req.slot]) for req in lives})
        assert ended == lives
        for req in lives:
            self._after_life(req, known[req.key])

    def drain(self) -> None:
        """Everything ends: then every page is free or cached, and nothing is locked."""
        for req in list(self.waiting) + self.lives(Phase.PREFILLING, Phase.DECODING):
            self.leave(req, ABORT)
        self.tell()
        while self.steps:
            self.run_step()
        for req in self.droppable():
            self.drop(req)
        self.check()
        cache = self.manager.cache
        assert self.slots.num_in_use == 0 and cache.num_protected == 0
        assert self.manager.num_available == self.num_pages
        self.manager.flush()
        assert self.manager.allocator.num_free == self.num_pages

    def _after_life(self, req: Req, known: Int32Array) -> None:
        if req.finish is not None:
            req.phase = Phase.GONE
            return
        req.requeue(known, 0.0)
        self.waiting.append(req)
        self.waiting.sort(key=lambda r: r.arrival)

    # --- judging --------------------

    def check(self) -> None:
        """Besides who owns what: every settled page has its tokens, and compute's rows are what their leases say."""
        check_ownership(self.manager, self.slots)
        launched = max((step.applied for step in self.steps), default=0)
        for node in walk(self.manager):
            if node.pending is None:
                written = self.kv[pages_of(node)].reshape(-1).tolist()
                assert written == tokens_of(node), f"{node!r} is settled and its pages hold {written}"
            else:
                assert self.applied < node.pending <= launched, f"{node!r}: no launched step will write it"
        for req in self.slots.reqs():
            row, slot = self.rows[req.slot, req.generation], req.slot
            assert row.pages == self.slots.pages[slot, : len(row.pages)].tolist(), (
                "a live row is never remapped"
            )
            assert row.kv_len <= row.limit == self.slots.limit[slot]
