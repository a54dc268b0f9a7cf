"""The compute loop: one forward step after another, never waiting for control while a row can run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from compute_loop.batch_builder import BatchBuilder, LaunchedStep
from compute_loop.runner.base import DeviceLost, Runner, StepTokens
from compute_loop.running_batch import RunningBatch
from srt.core.messages import FinishReason
from srt.core.queues import Doorbell, SpscQueue
from srt.core.step_messages import (
    Command,
    CopyPages,
    Drop,
    Fence,
    PageGrant,
    PrefillBatch,
    Resume,
    Row,
    SeqFinish,
    Shutdown,
    StepFault,
    StepResult,
)


class ComputeLoop:
    """Thread: compute. Owns the running batch; only this thread calls the runner.

    Steps run strictly in order. With an asynchronous runner step N+1 is launched before N is waited for; its decode
    rows take N's tokens on the device. What N decides (an end, a drop) takes effect in N+2, and the row that has run
    once too often in N+1 is left out of that step's result.
    """

    def __init__(
        self,
        runner: Runner[Any],
        num_slots: int,
        commands: SpscQueue[Command],
        results: SpscQueue[StepResult],
        bell: Doorbell,
    ) -> None:
        self._runner = runner
        self._commands = commands
        self._results = results
        self._bell = bell
        self._running = RunningBatch(num_slots)
        self._builder = BatchBuilder(self._running)
        self._in_flight: deque[tuple[LaunchedStep, Any]] = deque()
        self._depth = 1 if runner.asynchronous else 0
        self._received: Command | None = None
        self._epoch = 0
        self._applied = 0
        self._num_parked = 0
        self._completed_step = 0
        self._fence: int | None = None
        self._copied: list[int] = []
        self._held = False
        self._unreported = False
        self.stopped = False
        self._apply: dict[type, Callable[[Command], None]] = {
            PrefillBatch: self._apply_prefill,
            PageGrant: self._apply_grant,
            Drop: self._apply_drop,
            Fence: self._apply_fence,
            Resume: self._apply_resume,
            CopyPages: self._apply_copy,
            Shutdown: self._apply_fence,
        }

    def step(self) -> bool:
        """Apply commands, launch the next step, finish the one before; True when anything was done."""
        changed = self.apply_commands()
        launched = self.launch()
        finished = self.finish(keep=self._depth if launched else 0)
        acknowledged = self.acknowledge()
        return changed or launched or finished or acknowledged

    def wait(self) -> None:
        """Sleeps, without the GIL, until control sends a command."""
        self._received = self._commands.get()

    # --- the verbs --------------------

    def apply_commands(self) -> bool:
        """Applies what control has sent, up to and including one `PrefillBatch`: each of those is one step."""
        changed = False
        while self._fence is None and (command := self._next_command()) is not None:
            changed = True
            self._applied = command.seq
            self._unreported = True
            if command.epoch == self._epoch or isinstance(command, Fence | Resume | CopyPages | Shutdown):
                self._apply[type(command)](command)
                if isinstance(command, PrefillBatch):
                    break
        return changed

    def launch(self) -> bool:
        """Starts the next step behind those in flight; False when no row can run."""
        if self._fence is not None or self._held:
            return False
        launched, self._num_parked = self._builder.build(self._applied)
        if launched is None:
            return False
        try:
            handle = self._runner.launch(launched.batch)
            rows = np.flatnonzero(launched.batch.sampled).astype(np.int32)
            if len(rows):
                self._runner.sample(handle, rows, None)
        except DeviceLost:
            raise
        except Exception as failure:
            self._fail(failure, launched)
            return False
        self._in_flight.append((launched, handle))
        return True

    def finish(self, keep: int) -> bool:
        """Waits for the oldest steps until `keep` are in flight, and reports each."""
        finished = False
        while len(self._in_flight) > keep:
            finished = True
            launched, handle = self._in_flight.popleft()
            try:
                tokens = self._runner.wait(handle)
            except DeviceLost:
                raise
            except Exception as failure:
                self._fail(failure, launched)
                break
            self._completed_step = launched.batch.step
            self._report(self._result(launched, tokens))
        return finished

    def acknowledge(self) -> bool:
        """With nothing in flight, says what has changed since the last result: control may be waiting for it."""
        if self._in_flight or not self._unreported:
            return False
        fence, self._fence = self._fence, None
        self._report(
            StepResult(
                step=self._completed_step,
                epoch=self._epoch,
                applied=self._applied,
                dropped=self._running.take_dropped(self._completed_step),
                num_parked=self._num_parked,
                fenced=fence,
                copied=self._take_copied(),
            )
        )
        return True

    # --- results --------------------

    def _result(self, launched: LaunchedStep, tokens: StepTokens) -> StepResult:
        batch, running = launched.batch, self._running
        alive = running.is_alive(batch.slots, batch.generations)
        slots, generations, token_ids = batch.slots[alive], batch.generations[alive], tokens.token_ids[alive]
        stopped = running.matches_stop(slots, token_ids)
        ends = stopped | launched.at_limit[alive]
        finished = []
        for index in np.flatnonzero(ends):
            row = int(slots[index]), int(generations[index])
            matched = int(token_ids[index]) if stopped[index] else None
            reason = FinishReason("stop", matched) if stopped[index] else FinishReason("length")
            finished.append(SeqFinish(*row, reason))
            running.end(row)
        return StepResult(
            step=batch.step,
            epoch=self._epoch,
            applied=launched.applied,
            slots=slots,
            generations=generations,
            kv_lens=launched.kv_lens[alive],
            token_ids=token_ids,
            finished=tuple(finished),
            dropped=running.take_dropped(self._completed_step),
            num_parked=launched.num_parked,
            copied=self._take_copied(),
            busy=tokens.busy,
            gap=tokens.gap,
        )

    def _report(self, result: StepResult) -> None:
        self._unreported = bool(self._in_flight) or result.applied != self._applied or self._fence is not None
        self._results.put(result)
        self._bell.ring()

    def _fail(self, failure: Exception, failed: LaunchedStep) -> None:
        """A step failed: a new epoch begins without any row; those of this step and of later ones are suspects."""
        suspects = _rows(failed)
        for launched, _ in self._in_flight:
            suspects |= _rows(launched)
        self._in_flight.clear()
        self._running.clear()
        self._builder.clear()
        self._runner.reset()
        self._epoch += 1
        self._completed_step = self._builder.last_step
        fault = StepFault(f"{type(failure).__name__}: {failure}", frozenset(suspects))
        # `applied` must not settle what the failed steps were to write: control removes that before it reads `applied`.
        copied = self._take_copied()
        self._report(StepResult(self._completed_step, self._epoch, self._applied, copied=copied, fault=fault))

    # --- commands --------------------

    def _next_command(self) -> Command | None:
        received, self._received = self._received, None
        return received or self._commands.get_nowait()

    def _apply_prefill(self, command: Command) -> None:
        assert isinstance(command, PrefillBatch)
        self._builder.add_chunks(command.rows)

    def _apply_grant(self, command: Command) -> None:
        assert isinstance(command, PageGrant)
        self._builder.add_grant(command)

    def _apply_drop(self, command: Command) -> None:
        assert isinstance(command, Drop)
        for row in command.rows:
            self._running.end(row)

    def _apply_fence(self, command: Command) -> None:
        """Nothing is applied or launched until the pipeline is drained and the fence acknowledged."""
        assert isinstance(command, Fence | Shutdown)
        self._fence = command.seq
        self._held |= isinstance(command, Fence) and command.hold
        self.stopped = isinstance(command, Shutdown)

    def _apply_copy(self, command: Command) -> None:
        """Steps in flight read what is copied out at most. A page of the pool that is copied to was freed a moment
        ago: a row that has run once too often may still write there, so that these steps end first."""
        assert isinstance(command, CopyPages)
        if not command.to_host:
            self.finish(keep=0)
        self._runner.copy_pages(command.src, command.dst, command.to_host)
        self._copied.append(command.seq)

    def _take_copied(self) -> tuple[int, ...]:
        copied, self._copied = tuple(self._copied), []
        return copied

    def _apply_resume(self, command: Command) -> None:
        self._held = False

    def __repr__(self) -> str:
        return f"ComputeLoop({self._running!r}, {len(self._in_flight)} steps in flight, epoch {self._epoch})"


def _rows(launched: LaunchedStep) -> set[Row]:
    batch = launched.batch
    return set(zip(batch.slots.tolist(), batch.generations.tolist(), strict=True))
