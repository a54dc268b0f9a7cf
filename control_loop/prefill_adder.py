"""One pass of prefill scheduling: which chunks join the next step."""

from __future__ import annotations

from enum import Enum

from control_loop.cache_manager import CacheManager
from control_loop.req import Phase, Req
from control_loop.slots import SlotTable
from srt.core.step_messages import ScheduledSeq, SeqInit


class Verdict(Enum):
    """What became of a request in a pass."""

    SCHEDULED = "scheduled"
    NO_BUDGET = "no budget"
    NO_MEMORY = "no memory"


class PrefillAdder:
    """Thread: control. Collects the rows of one `PrefillBatch`; made anew for each pass.

    A prefix is computed once even among requests that arrive together. A chunk's pages enter the tree when the chunk
    is scheduled, so that a later row, of this step too, may lean on them; and every chunk matches again first. A
    request whose next page another one, the *leader*, has not come to yet follows it by itself: a leader is cut short
    only where less than a page of the budget is left, with which nobody can begin that page, and in the next pass
    those who have begun go first.
    """

    def __init__(self, manager: CacheManager, slots: SlotTable, seq: int, budget: int) -> None:
        self._manager = manager
        self._slots = slots
        self._page_size = slots.page_size
        self._seq = seq
        self._budget = budget
        self.rows: list[ScheduledSeq] = []
        self.num_tokens = 0

    def add_chunk(self, req: Req, credit: int | None = None) -> Verdict:
        """The next chunk of a request that holds a lease.

        `credit` is how many KV tokens it may decode beyond its prompt, all that its pages hold when None.
        """
        jumped = self._manager.rematch(req.slot)
        if req.cached_tokens is None:
            self._slots.cached[req.slot] += jumped
        return self._take_chunk(req, credit)

    def try_admit(self, req: Req, headroom: int, credit: int | None = None) -> Verdict:
        """Admits a waiting request with its first chunk, or leaves everything as it was."""
        if self._chunk_end(0, min(len(req.token_ids), self._page_size)) == 0:
            return Verdict.NO_BUDGET
        if not self._manager.admit(req, headroom):
            return Verdict.NO_MEMORY
        if req.cached_tokens is None:
            self._slots.cached[req.slot] = self._slots.scheduled[req.slot]
        return self._take_chunk(req, credit)

    def _take_chunk(self, req: Req, credit: int | None) -> Verdict:
        start = int(self._slots.scheduled[req.slot])
        end = self._chunk_end(start, int(self._slots.prefill_len[req.slot]))
        if end == start:
            return Verdict.NO_BUDGET
        self._schedule(req, start, end, credit)
        return Verdict.SCHEDULED

    def _chunk_end(self, start: int, prefill_len: int) -> int:
        """Where a chunk from `start` ends: the end of the prompt, or a page boundary within the budget."""
        end = min(prefill_len, start + self._budget)
        return end if end == prefill_len else max(start, end // self._page_size * self._page_size)

    def _schedule(self, req: Req, start: int, end: int, credit: int | None) -> None:
        slots, slot = self._slots, req.slot
        is_last = end == int(slots.prefill_len[slot])
        limit = end
        if is_last:
            reserved = int(slots.num_pages[slot]) * self._page_size
            limit = min(reserved if credit is None else min(reserved, end + credit), int(slots.max_kv[slot]))
        first_page = int(slots.sent_pages[slot])
        last_page = -(-end // self._page_size)
        self.rows.append(
            ScheduledSeq(
                slot=slot,
                generation=req.generation,
                token_ids=slots.tokens[slot, start:end].copy(),
                start=start,
                first_page=first_page,
                pages=slots.pages[slot, first_page:last_page].copy(),
                limit=limit,
                is_last=is_last,
                init=self._init(req) if first_page == 0 else None,
            )
        )
        slots.sent_pages[slot] = last_page
        slots.scheduled[slot] = end
        slots.limit[slot] = limit
        self._manager.publish(slot, end, self._seq)
        if is_last:
            req.phase = Phase.DECODING
            slots.decoding[slot] = True
            slots.prefilling[slot] = False
        self._budget -= end - start
        self.num_tokens += end - start

    @staticmethod
    def _init(req: Req) -> SeqInit:
        return SeqInit(req.prompt_len, req.generated, req.max_new_tokens, req.stop_token_ids, req.params)
