"""What becomes of a step's result: settled nodes, tokens to clients, and the only way by which a life ends."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from control_loop.cache_manager import CacheManager
from control_loop.commands import CommandSender
from control_loop.counters import Counters
from control_loop.outbox import Outbox
from control_loop.recovery import Recovery
from control_loop.req import Phase, Req
from control_loop.slots import SlotTable
from control_loop.waiting_queue import WaitingQueue
from srt.core.errors import Aborted, StepFailure
from srt.core.messages import FinishReason, Int32Array
from srt.core.step_messages import NO_TOKEN, Drop, Row, StepFault, StepResult

log = logging.getLogger(__name__)


class OutputProcessor:
    """Thread: control. Applies results to the tables, in the order in which compute sent them."""

    def __init__(
        self,
        manager: CacheManager,
        slots: SlotTable,
        waiting: WaitingQueue,
        commands: CommandSender,
        outbox: Outbox,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self._manager = manager
        self._slots = slots
        self._waiting = waiting
        self._commands = commands
        self._outbox = outbox
        self._counters = counters
        self._clock = clock
        self._leaving: list[Row] = []
        self.recovery = Recovery()

    def process(self, result: StepResult) -> None:
        if result.fault is not None:
            self._start_epoch(result.epoch, result.fault)
        self._commands.applied = result.applied
        self._manager.cache.settle(result.applied)
        self._counters.add_step(result)
        self._take_tokens(result)
        for finished in result.finished:
            req = self._slots.find((finished.slot, finished.generation))
            if req is not None:
                self._leave(req)
                self._finish(req, finished.reason)
        for row in result.dropped:
            req = self._slots.find(row)
            if req is not None:
                self._release(req)

    def abort(self, req: Req, keep_tokens: int | None, reason: FinishReason | None = None) -> None:
        """Ends a request in whatever phase it is; its pages come back when compute has dropped the row."""
        req.keep_tokens = keep_tokens
        if req.phase is Phase.WAITING:
            self._waiting.remove(req)
            req.phase = Phase.GONE
        elif req.phase is not Phase.LEAVING:
            self.ask_to_drop(req)
        if req.finish is None:
            self._counters.aborted_total += 1
            self._finish(
                req, reason or FinishReason("abort", error=Aborted("the request was aborted").info())
            )

    def retract(self, req: Req) -> None:
        """Takes a row's memory back. Tokens in flight are still delivered; then it waits again, in front."""
        req.num_retractions += 1
        self._counters.retracted_total += 1
        self.ask_to_drop(req)

    def ask_to_drop(self, req: Req) -> None:
        self._leave(req)
        self._leaving.append((req.slot, req.generation))

    def send_drops(self) -> bool:
        """One `Drop` for all rows that were asked to leave since the last call."""
        if not self._leaving:
            return False
        rows, self._leaving = tuple(self._leaving), []
        self._commands.send(lambda seq, epoch: Drop(seq, epoch, rows))
        return True

    def _take_tokens(self, result: StepResult) -> None:
        slots = self._slots
        alive = slots.generation[result.slots] == result.generations
        rows, kv_lens = result.slots[alive], result.kv_lens[alive]
        slots.kv_len[rows] = kv_lens
        slots.scheduled[rows] = np.maximum(slots.scheduled[rows], kv_lens)
        sampled = result.token_ids[alive] != NO_TOKEN
        rows, token_ids = rows[sampled], result.token_ids[alive][sampled]
        slots.tokens[rows, slots.num_tokens[rows]] = token_ids
        slots.num_tokens[rows] += 1
        # An aborted request has had its finish: what its last steps say is for nobody.
        wanted = ~slots.finished[rows]
        rows, token_ids = rows[wanted], token_ids[wanted]
        self._counters.generation_tokens_total += len(rows)
        self._outbox.add_tokens(slots.key[rows], token_ids, slots.cached[rows])

    def _leave(self, req: Req) -> None:
        req.phase = Phase.LEAVING
        slots = self._slots
        slots.decoding[req.slot] = slots.prefilling[req.slot] = slots.alive[req.slot] = False

    def _finish(self, req: Req, reason: FinishReason) -> None:
        """The one finish of a request; later ones are void."""
        if req.finish is not None:
            return
        req.finish = reason
        self._slots.finished[req.slot] = True
        self._counters.finished_total += 1
        self._outbox.add_finish(req.key, reason, self._cached_tokens(req), req.num_retractions)

    def _cached_tokens(self, req: Req) -> int:
        return int(self._slots.cached[req.slot]) if req.slot else req.cached_tokens or 0

    def _release(self, req: Req) -> None:
        """The only end of a life while steps succeed: compute has dropped the row, so nobody reads its pages."""
        slot = req.slot
        valid = int(self._slots.kv_len[slot])
        if req.keep_tokens is not None:
            valid = min(valid, req.prompt_len + req.keep_tokens)
        known = self._slots.known_tokens(slot)
        req.cached_tokens = self._cached_tokens(req)
        self._manager.release(slot, valid)
        self._after_life(req, known)

    def _after_life(self, req: Req, known: Int32Array) -> None:
        if req.finish is not None:
            req.phase = Phase.GONE
            return
        req.requeue(known, self._clock())
        self._waiting.push_front(req)

    def _start_epoch(self, epoch: int, fault: StepFault) -> None:
        """A step failed and compute has dropped every row: all lives end, the innocent come back."""
        self._commands.epoch = epoch
        self._counters.failed_steps_total += 1
        self._leaving.clear()
        lives = list(self._slots.reqs())
        known = {req.key: self._slots.known_tokens(req.slot) for req in lives}
        suspects = [
            req for req in lives if (req.slot, req.generation) in fault.suspects and req.finish is None
        ]
        log.warning(
            "a forward step failed (%s) with requests %s", fault.message, [req.rid for req in suspects]
        )
        for req in lives:
            req.cached_tokens = self._cached_tokens(req)
        self._manager.abandon({req.slot: int(self._slots.kv_len[req.slot]) for req in lives})
        for req in suspects:
            if self.recovery.is_guilty(req, len(suspects)):
                message = f"a forward step failed for this request alone: {fault.message}"
                log.error("request %s ends: %s", req.rid, message)
                self._finish(req, FinishReason("error", error=StepFailure(message).info()))
            else:
                self.recovery.suspect(req)
        for req in lives:
            self._after_life(req, known[req.key])
