"""Chooses the prefill chunks of the next step: whose turn it is, how much, and in which company."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from control_loop.admission import Admission, NewTokenRatio
from control_loop.aging import Aging
from control_loop.page_credits import PageCredits, choose_victim
from control_loop.parts import LoopParts
from control_loop.policy import POLICIES, in_order
from control_loop.preemption import choose_preempted
from control_loop.prefill_adder import PrefillAdder, Verdict
from control_loop.req import Phase, Req
from srt.core.config import ScheduleOptions
from srt.core.step_messages import PrefillBatch

MAX_UNAPPLIED_BATCHES = 2
"""Prefill batches that may be on their way: one that runs, and one ready when it ends."""

PROBATION_CREDIT = 1
"""KV tokens beyond its prompt that a suspect may decode."""


class Scheduler:
    """Thread: control. One `PrefillBatch` a pass at most: requests that have begun go first, then new ones.

    What it takes back (a retraction, a preemption) it asks of the output processor; the caller sends the drops.
    """

    def __init__(self, options: ScheduleOptions, parts: LoopParts) -> None:
        self._options = options
        self._policy = POLICIES[options.schedule_policy]
        self._parts = parts
        self._manager = parts.manager
        self._slots = parts.slots
        self._waiting = parts.waiting
        self._commands = parts.commands
        self._counters = parts.counters
        self._recovery = parts.outputs.recovery
        self._credits = PageCredits(parts.manager, parts.slots)
        self._ratio = NewTokenRatio(options.schedule_conservativeness)
        self._admission = Admission(parts.slots, self._ratio, options.schedule_conservativeness)
        self._aging = Aging()
        self._unapplied: list[int] = []
        self._seen_step = 0

    def schedule_prefill(self) -> bool:
        """Sends the next chunks, if there are any and compute has not enough already; True when it did."""
        self._unapplied = [seq for seq in self._unapplied if seq > self._commands.applied]
        if len(self._unapplied) >= MAX_UNAPPLIED_BATCHES:
            return False
        self._learn()
        # What the rows write is settled by this number; the copies that admissions command have smaller ones.
        seq = self._commands.seq_behind(self._manager.max_copies)
        adder = PrefillAdder(self._manager, self._slots, seq, self._budget())
        suspect = self._recovery.candidate(self._slots)
        if suspect is not None:
            self._try_alone(adder, suspect)
        else:
            self._continue_prefills(adder)
            self._admit_waiting(adder)
        if not adder.rows:
            return False
        self._counters.computed_tokens_total += adder.num_tokens
        self._counters.prefill_chunks_total += len(adder.rows)
        rows = tuple(adder.rows)
        self._unapplied.append(self._commands.send(lambda seq, epoch: PrefillBatch(seq, epoch, rows), seq))
        return True

    def grant_pages(self) -> bool:
        """Grants decoding rows what is due, and retracts one when memory is short; True when it sent a grant."""
        suspect = self._recovery.candidate(self._slots)
        if suspect is None:
            grant, short = self._credits.grant()
        elif suspect.phase is Phase.DECODING:
            limit = int(self._slots.prefill_len[suspect.slot]) + PROBATION_CREDIT
            grant, short = self._credits.grant_exactly(suspect.slot, limit)
        else:
            return False
        if grant is not None:
            self._commands.send(grant)
        victim = choose_victim(self._slots.reqs(), self._slots) if short else None
        if victim is not None:
            self._ratio.on_retractions(1)
            self._parts.outputs.retract(victim)
        return grant is not None

    def _learn(self) -> None:
        """Tells the estimate of future memory how many steps went by."""
        steps, self._seen_step = self._counters.steps_total - self._seen_step, self._counters.steps_total
        if self._slots.num_in_use == 0:
            self._ratio.reset()
        else:
            self._ratio.on_steps(steps)

    def _budget(self) -> int:
        running = int(np.count_nonzero(self._slots.decoding))
        return min(self._options.chunked_prefill_size, self._options.max_step_tokens - running)

    def _try_alone(self, adder: PrefillAdder, suspect: Req) -> None:
        if suspect.phase is Phase.PREFILLING:
            adder.add_chunk(suspect, PROBATION_CREDIT)
        elif suspect.phase is Phase.WAITING:
            verdict = Verdict.NO_MEMORY
            if self._slots.num_free:
                verdict = adder.try_admit(suspect, 0, PROBATION_CREDIT)
            if verdict is Verdict.SCHEDULED:
                self._note_admitted([suspect])
            elif verdict is Verdict.NO_MEMORY:
                self._make_room_for_suspect()

    def _make_room_for_suspect(self) -> None:
        others = list(self._slots.reqs())
        if others and not any(req.phase is Phase.LEAVING for req in others):
            self._parts.outputs.retract(max(others, key=lambda req: req.arrival))

    def _continue_prefills(self, adder: PrefillAdder) -> None:
        for slot in self._slots.prefilling_slots():
            if adder.add_chunk(self._slots.req(slot)) is Verdict.NO_BUDGET:
                return

    def _admit_waiting(self, adder: PrefillAdder) -> None:
        if not len(self._waiting) or not (self._slots.num_free or self._may_preempt):
            return
        admitted: list[Req] = []
        headroom = self._admission.headroom()
        for req in in_order(self._policy, self._waiting, self._aging, self._manager):
            own = self._admission.own_pages(req)
            verdict = Verdict.NO_MEMORY
            if self._slots.num_free:
                verdict = adder.try_admit(req, headroom + own)
            if verdict is Verdict.SCHEDULED:
                admitted.append(req)
                headroom += own
                continue
            if verdict is Verdict.NO_MEMORY and self._may_preempt:
                self._preempt_for(req)
            break
        self._note_admitted(admitted)

    # --- preemption --------------------

    @property
    def _may_preempt(self) -> bool:
        return self._options.preemption_threshold is not None

    def _preempt_for(self, urgent: Req) -> None:
        threshold = self._options.preemption_threshold
        assert threshold is not None
        prompt_pages = -(-len(urgent.token_ids) // self._slots.page_size)
        cached_pages = self._manager.match_lengths([urgent])[0] // self._slots.page_size

        def suffices(num_pages: int, gone: Sequence[Req]) -> bool:
            staying = self._slots.alive.copy()
            staying[[req.slot for req in gone]] = False
            own = self._admission.own_pages(urgent) if staying.any() else 0
            needed = prompt_pages - cached_pages + own + self._admission.future_pages(staying)
            return self._manager.num_available + num_pages >= needed

        for req in choose_preempted(urgent, threshold, self._slots.reqs(), self._manager, suffices):
            self._counters.preempted_total += 1
            self._parts.outputs.retract(req)

    def _note_admitted(self, admitted: list[Req]) -> None:
        now = self._parts.clock()
        for req in admitted:
            self._waiting.remove(req)
            if req.started_at is None:
                req.started_at = now
            if req.cached_tokens is None:
                self._counters.prompt_tokens_total += req.prompt_len
                self._counters.cached_tokens_total += int(self._slots.cached[req.slot])
        self._aging.note_pass(admitted, self._waiting.returned)

    def __repr__(self) -> str:
        return (
            f"Scheduler({self._options.schedule_policy}, {len(self._unapplied)} prefill batches on their way, "
            f"{self._ratio!r})"
        )
