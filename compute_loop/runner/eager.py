"""Steps as torch operations called one by one: works wherever torch does, and is the twin of every native runner."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from compute_loop.forward_batch import ForwardBatch
from compute_loop.layers.rope import inverse_frequencies, rotation_of
from compute_loop.runner.base import StepTokens
from compute_loop.runner.executor import ProgramExecutor, StepInputs
from compute_loop.runner.workspace import Workspace
from compute_loop.sampler import SlotSampling, sample
from mem_pool.host_pool import HostPool
from mem_pool.page_table import PageTable
from srt.core.messages import Int32Array
from srt.core.step_messages import NO_TOKEN


@dataclass(slots=True, eq=False)
class EagerStep:
    """Thread: compute. A step that has run.

    `logits` has a row for each sampled row of the batch; `logit_row` says which, -1 for rows without. `busy` and `gap`
    are in seconds.
    """

    batch: ForwardBatch
    logits: torch.Tensor
    logit_row: Int32Array
    token_ids: Int32Array
    busy: float
    gap: float


class EagerRunner:
    """Thread: compute. A step is done when `launch` returns; it takes the GIL some hundred times."""

    name = "eager"
    one_call = False

    def __init__(
        self, executor: ProgramExecutor, num_slots: int, max_pages: int, host: HostPool | None = None
    ) -> None:
        """`num_slots` and `max_pages` are the sizes of the page table, dummy slot 0 included.

        `host` is the memory for `copy_pages`.
        """
        pool = executor.pool
        self.asynchronous = False
        self._executor = executor
        self._pool = pool
        self._host = host
        self._device = pool.layers[0].device
        self._frequencies = inverse_frequencies(executor.program.rope).to(self._device)
        self._workspace = Workspace(executor.program, pool.format.dtype, self._device)
        self._table = PageTable(num_slots, max_pages, self._device)
        self._last_token = torch.zeros(num_slots, dtype=torch.int64, device=self._device)
        self._sampling = SlotSampling(num_slots, executor.program.vocab_size, self._device)
        self._idle_since = time.perf_counter()

    @torch.inference_mode()
    def launch(self, batch: ForwardBatch) -> EagerStep:
        begin = time.perf_counter()
        self._table.apply(batch.table_slots, batch.table_index, batch.table_pages)
        for new in batch.new_seqs:
            self._sampling.set(new.slot, new.params)
        inputs = self._inputs(batch)
        self._executor.run(inputs)
        logit_row = np.where(batch.sampled, np.cumsum(batch.sampled) - 1, -1).astype(np.int32)
        token_ids = np.full(batch.num_rows, NO_TOKEN, np.int32)
        end = time.perf_counter()
        gap, self._idle_since = begin - self._idle_since, end
        return EagerStep(batch, inputs.registers["logits"], logit_row, token_ids, end - begin, gap)

    @torch.inference_mode()
    def sample(self, handle: EagerStep, rows: Int32Array, masks: npt.NDArray[Any] | None) -> None:
        begin = time.perf_counter()
        batch = handle.batch
        logits = self._logits_of(handle, rows)
        if masks is not None:
            logits = logits.masked_fill(torch.from_numpy(masks).to(self._device).logical_not(), -torch.inf)
        slots = self._to_device(batch.slots[rows])
        positions = self._to_device(batch.starts[rows] + batch.num_new_tokens[rows])
        token_ids = sample(logits, slots, positions, self._sampling, self._sampling.plan(batch.slots[rows]))
        self._last_token[slots] = token_ids.long()
        handle.token_ids[rows] = token_ids.cpu().numpy()
        self._idle_since = time.perf_counter()
        handle.busy += self._idle_since - begin

    def wait(self, handle: EagerStep) -> StepTokens:
        return StepTokens(handle.token_ids, handle.busy, handle.gap)

    @torch.inference_mode()
    def copy_pages(self, src: Int32Array, dst: Int32Array, to_host: bool) -> None:
        assert self._host is not None
        if to_host:
            self._pool.copy_to_host(src, self._host, dst)
        else:
            self._pool.copy_from_host(self._host, src, dst)

    def reset(self) -> None:
        self._table.clear()
        self._last_token.zero_()

    def close(self) -> None:
        """Nothing to release: memory goes with the object."""

    def _logits_of(self, handle: EagerStep, rows: Int32Array) -> torch.Tensor:
        """Logits of `rows`, in float32; the step's own memory where these are all rows that have any."""
        index = handle.logit_row[rows]
        if (index < 0).any():
            raise ValueError(
                f"step {handle.batch.step}: rows {rows[index < 0].tolist()} were not to be sampled"
            )
        logits = handle.logits
        if not np.array_equal(index, np.arange(len(logits))):
            logits = logits[self._to_device(index)]
        return logits.float()

    def _inputs(self, batch: ForwardBatch) -> StepInputs:
        """Where each token of the batch stands, and what it is."""
        rows = np.repeat(np.arange(batch.num_rows), batch.num_new_tokens)
        ends = np.cumsum(batch.num_new_tokens)
        positions = np.arange(len(rows)) + (batch.starts + batch.num_new_tokens - ends)[rows]
        page_index, offsets = np.divmod(positions, self._pool.page_size)
        slots = self._to_device(batch.slots)
        pages = self._table.pages[slots[self._to_device(rows)], self._to_device(page_index)].long()
        decoded = self._last_token[slots[batch.num_chunks :]]
        return StepInputs(
            input_ids=torch.cat((self._to_device(batch.chunk_ids), decoded)),
            kv_positions=pages * self._pool.page_size + self._to_device(offsets),
            rotation=rotation_of(self._to_device(positions), self._frequencies, self._pool.format.dtype),
            last_tokens=self._to_device(ends[batch.sampled] - 1),
            attention_plan=self._executor.attention.plan(batch, self._table),
            registers=self._workspace.views(len(rows), int(batch.sampled.sum())),
        )

    def _to_device(self, column: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(column).to(self._device, torch.int64)

    def __repr__(self) -> str:
        return f"EagerRunner({self._pool!r}, {self._table!r}, {self._workspace!r})"
