"""Chooses the prefill chunks of the next step: whose turn it is, how much, and in which company."""

from __future__ import annotations

import numpy as np

from control_loop.page_credits import PageCredits, choose_victim
from control_loop.parts import LoopParts
from control_loop.policy import POLICIES, note_overtaking
from control_loop.prefill_adder import PrefillAdder, Verdict
from control_loop.req import Phase, Req
from srt.core.config import ScheduleOptions
from srt.core.step_messages import PrefillBatch

MAX_UNAPPLIED_BATCHES = 2
"""Prefill batches that may be on their way: one that runs, and one ready when it ends."""

PROBATION_CREDIT = 1
"""KV tokens beyond its prompt that a suspect may decode."""


class Scheduler:
    """Thread: control. One `PrefillBatch` a pass at most: requests that have begun go first, then new ones."""

    def __init__(self, options: ScheduleOptions, parts: LoopParts) -> None:
        self._options = options
        self._order = POLICIES[options.schedule_policy]
        self._manager = parts.manager
        self._slots = parts.slots
        self._waiting = parts.waiting
        self._commands = parts.commands
        self._counters = parts.counters
        self._recovery = parts.outputs.recovery
        self._credits = PageCredits(parts.manager, parts.slots)
        self._unapplied: list[int] = []

    def schedule_prefill(self) -> bool:
        """Sends the next chunks, if there are any and compute has not enough already; True when it did."""
        self._unapplied = [seq for seq in self._unapplied if seq > self._commands.applied]
        if len(self._unapplied) >= MAX_UNAPPLIED_BATCHES:
            return False
        adder = PrefillAdder(self._manager, self._slots, self._commands.next_seq, self._budget())
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
        self._unapplied.append(self._commands.send(lambda seq, epoch: PrefillBatch(seq, epoch, rows)))
        return True

    def grant_pages(self) -> tuple[bool, Req | None]:
        """Grants decoding rows what is due. First: sent anything; second: whom to retract, memory being short."""
        suspect = self._recovery.candidate(self._slots)
        if suspect is None:
            grant, short = self._credits.grant()
        elif suspect.phase is Phase.DECODING:
            limit = int(self._slots.prefill_len[suspect.slot]) + PROBATION_CREDIT
            grant, short = self._credits.grant_exactly(suspect.slot, limit)
        else:
            return False, None
        if grant is not None:
            self._commands.send(grant)
        return grant is not None, choose_victim(self._slots.reqs(), self._slots) if short else None

    def blocked_suspect_victim(self) -> Req | None:
        """Whom to retract so that a suspect which finds no memory can be tried."""
        suspect = self._recovery.candidate(self._slots)
        if suspect is None or suspect.phase is not Phase.WAITING or self._slots.num_in_use == 0:
            return None
        others = list(self._slots.reqs())
        if any(req.phase is Phase.LEAVING for req in others):
            return None
        return max(others, key=lambda req: req.arrival)

    def _budget(self) -> int:
        running = int(np.count_nonzero(self._slots.decoding))
        return min(self._options.chunked_prefill_size, self._options.max_step_tokens - running)

    def _try_alone(self, adder: PrefillAdder, suspect: Req) -> None:
        if suspect.phase is Phase.PREFILLING:
            adder.add_chunk(suspect, PROBATION_CREDIT)
        elif suspect.phase is Phase.WAITING and self._slots.num_free:
            if adder.try_admit(suspect, 0, PROBATION_CREDIT) is Verdict.SCHEDULED:
                self._note_admitted([suspect])

    def _continue_prefills(self, adder: PrefillAdder) -> None:
        for req in self._slots.reqs():
            if req.phase is Phase.PREFILLING and adder.add_chunk(req) is Verdict.NO_BUDGET:
                return

    def _admit_waiting(self, adder: PrefillAdder) -> None:
        if not len(self._waiting):
            return
        admitted: list[Req] = []
        order = self._order(self._waiting, self._manager.match_length)
        for req in order:
            if self._slots.num_free == 0:
                break
            verdict = adder.try_admit(req, self._credits.headroom)
            if verdict is not Verdict.SCHEDULED:
                break
            admitted.append(req)
        self._note_admitted(admitted)

    def _note_admitted(self, admitted: list[Req]) -> None:
        for req in admitted:
            self._waiting.remove(req)
            if req.cached_tokens is None:
                self._counters.prompt_tokens_total += req.prompt_len
                self._counters.cached_tokens_total += int(self._slots.cached[req.slot])
        note_overtaking(self._waiting, admitted)

    def __repr__(self) -> str:
        return (
            f"Scheduler({self._options.schedule_policy}, {len(self._unapplied)} prefill batches on their way)"
        )
