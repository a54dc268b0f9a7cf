"""Makes the immutable snapshot of a step out of commands and running rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compute_loop.forward_batch import BoolArray, ForwardBatch, NewSeq
from compute_loop.running_batch import RunningBatch
from srt.core.messages import Int32Array, empty_int32
from srt.core.step_messages import PageGrant, ScheduledSeq


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedStep:
    """What compute must remember of a step until its tokens are there.

    `kv_lens` and `generated` are the columns after the step; `at_limit`: the row ends by length with it.
    """

    batch: ForwardBatch
    applied: int
    num_parked: int
    kv_lens: Int32Array
    generated: Int32Array
    at_limit: BoolArray


class BatchBuilder:
    """Thread: compute. Gathers chunks and page-table entries between two launches."""

    def __init__(self, running: RunningBatch) -> None:
        self._running = running
        self._chunks: list[ScheduledSeq] = []
        self._new_seqs: list[NewSeq] = []
        self._table: list[tuple[Int32Array, Int32Array, Int32Array]] = []
        self._step = 0

    def add_chunks(self, rows: tuple[ScheduledSeq, ...]) -> None:
        """All of them run in the next step, in this order."""
        for seq in rows:
            if seq.init is not None:
                self._running.begin(seq)
                self._new_seqs.append(NewSeq(seq.slot, seq.init.params))
            self._running.limit[seq.slot] = seq.limit
            count = len(seq.pages)
            index = np.arange(seq.first_page, seq.first_page + count, dtype=np.int32)
            self._table.append((np.full(count, seq.slot, np.int32), index, seq.pages))
            self._chunks.append(seq)

    def add_grant(self, grant: PageGrant) -> None:
        """New page-table entries for rows that are alive; void for the others."""
        alive = self._running.grant(grant)
        counts = np.diff(grant.offsets)
        keep = np.repeat(alive, counts)
        index = np.arange(len(grant.pages), dtype=np.int32) + np.repeat(
            grant.first_page - grant.offsets[:-1], counts
        )
        self._table.append(
            (np.repeat(grant.slots, counts)[keep], index[keep].astype(np.int32), grant.pages[keep])
        )

    def build(self, applied: int) -> tuple[LaunchedStep | None, int]:
        """The next step and its bookkeeping, None when no row can run; second: rows parked for want of credit."""
        running = self._running
        decodes, num_parked = running.ready_to_decode()
        if not self._chunks and len(decodes) == 0:
            return None, num_parked
        self._step += 1
        chunks, new_seqs = self._chunks, tuple(self._new_seqs)
        table_slots, table_index, table_pages = self._take_table()
        self._chunks, self._new_seqs = [], []
        slots = np.concatenate([_column([seq.slot for seq in chunks]), decodes])
        starts = np.concatenate([_column([seq.start for seq in chunks]), running.kv_len[decodes]])
        counts = np.concatenate(
            [_column([seq.num_new_tokens for seq in chunks]), np.ones(len(decodes), np.int32)]
        )
        is_last = np.ones(len(slots), np.bool_)
        is_last[: len(chunks)] = [seq.is_last for seq in chunks]
        sampled = is_last & (running.generated[slots] < running.max_new_tokens[slots])
        batch = ForwardBatch(
            step=self._step,
            num_chunks=len(chunks),
            slots=slots,
            generations=running.generation[slots],
            starts=starts,
            num_new_tokens=counts,
            sampled=sampled,
            chunk_ids=np.concatenate([empty_int32(), *(seq.token_ids for seq in chunks)]),
            table_slots=table_slots,
            table_index=table_index,
            table_pages=table_pages,
            new_seqs=new_seqs,
        )
        running.kv_len[slots] = starts + counts
        running.generated[slots] += sampled
        running.decoding[slots] = is_last
        running.last_step[slots] = self._step
        generated = running.generated[slots]
        at_limit = is_last & (generated >= running.max_new_tokens[slots])
        return LaunchedStep(batch, applied, num_parked, starts + counts, generated, at_limit), num_parked

    def clear(self) -> None:
        """After a failed step: what was gathered belongs to lives that are over."""
        self._chunks, self._new_seqs, self._table = [], [], []

    @property
    def last_step(self) -> int:
        return self._step

    def _take_table(self) -> tuple[Int32Array, Int32Array, Int32Array]:
        parts, self._table = self._table, []
        slots, index, pages = (
            (np.concatenate([empty_int32(), *column]) for column in zip(*parts, strict=True))
            if parts
            else (
                empty_int32(),
                empty_int32(),
                empty_int32(),
            )
        )
        return slots, index, pages


def _column(values: list[int]) -> Int32Array:
    return np.array(values, np.int32)
