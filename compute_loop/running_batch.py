"""The rows that compute is running, in columns by slot."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from srt.core.messages import Int32Array
from srt.core.step_messages import PageGrant, Row, ScheduledSeq

NO_STOP = -2
"""Fills the stop table; no token has this id, and neither is it `NO_TOKEN`."""


class RunningBatch:
    """Thread: compute. Columns by slot; nothing here loops over rows, but over rows that begin or end.

    ::

        KV positions:  [0 .......... kv_len)[........... limit)
                        done or launched     may be decoded without asking

    Attributes:
        generation: the life in the slot, 0 when there is none. decoding: its whole prompt is launched.
        generated: output tokens, those of launched steps included. ended: finished or dropped, no step may name it.
        last_step: the last launched step that names the slot.
    """

    def __init__(self, num_slots: int) -> None:
        rows = num_slots + 1
        self.generation = np.zeros(rows, np.int64)
        self.kv_len = np.zeros(rows, np.int32)
        self.limit = np.zeros(rows, np.int32)
        self.generated = np.zeros(rows, np.int32)
        self.max_new_tokens = np.zeros(rows, np.int32)
        self.last_step = np.zeros(rows, np.int64)
        self.decoding: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.ended: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self._stops: Int32Array = np.full((rows, 1), NO_STOP, np.int32)
        self._leaving: set[Row] = set()

    def begin(self, seq: ScheduledSeq) -> None:
        """A life begins in a slot that no launched step names any more."""
        if seq.init is None:
            raise RuntimeError(
                f"slot {seq.slot} got a chunk of generation {seq.generation}, which never began"
            )
        slot = seq.slot
        self.generation[slot] = seq.generation
        self.kv_len[slot] = seq.start
        self.generated[slot] = seq.init.generated
        self.max_new_tokens[slot] = seq.init.max_new_tokens
        self.decoding[slot] = self.ended[slot] = False
        self._set_stops(slot, seq.init.stop_token_ids)

    def grant(self, grant: PageGrant) -> npt.NDArray[np.bool_]:
        """Raises limits; returns which rows of the grant are alive (the others have ended: void)."""
        alive = self.is_alive(grant.slots, grant.generations)
        self.limit[grant.slots[alive]] = grant.limits[alive]
        return alive

    def is_alive(self, slots: Int32Array, generations: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        alive: npt.NDArray[np.bool_] = (self.generation[slots] == generations) & ~self.ended[slots]
        return alive

    def ready_to_decode(self) -> tuple[Int32Array, int]:
        """Slots whose next token can be computed now, and how many are parked for want of credit."""
        active = self.decoding & ~self.ended & (self.generated < self.max_new_tokens)
        has_credit = self.kv_len < self.limit
        ready = np.flatnonzero(active & has_credit).astype(np.int32)
        return ready, int(np.count_nonzero(active)) - len(ready)

    def end(self, row: Row) -> None:
        """No further step will name `row`; void when that life is over or has ended already."""
        slot, generation = row
        if self.generation[slot] == generation and not self.ended[slot]:
            self.ended[slot] = True
            self._leaving.add(row)

    def take_dropped(self, completed_step: int) -> tuple[Row, ...]:
        """Ended rows that no launched step names any more, now that `completed_step` is done; their slots are free."""
        dropped = tuple(row for row in self._leaving if self.last_step[row[0]] <= completed_step)
        for row in dropped:
            self._leaving.remove(row)
            self.generation[row[0]] = 0
            self.decoding[row[0]] = False
        return dropped

    def matches_stop(self, slots: Int32Array, token_ids: Int32Array) -> npt.NDArray[np.bool_]:
        """Which rows sampled one of their stop tokens."""
        hit: npt.NDArray[np.bool_] = (self._stops[slots] == token_ids[:, None]).any(axis=1)
        return hit

    def clear(self) -> None:
        """After a failed step: every life is over."""
        self.generation[:] = 0
        self.decoding[:] = self.ended[:] = False
        self._leaving.clear()

    def _set_stops(self, slot: int, stops: frozenset[int]) -> None:
        width = self._stops.shape[1]
        if len(stops) > width:
            wider = np.full((len(self._stops), len(stops)), NO_STOP, np.int32)
            wider[:, :width] = self._stops
            self._stops = wider
        self._stops[slot] = NO_STOP
        self._stops[slot, : len(stops)] = sorted(stops)

    def __repr__(self) -> str:
        alive = int(np.count_nonzero(self.generation))
        return f"RunningBatch({alive} rows, {int(np.count_nonzero(self.decoding))} decode, {len(self._leaving)} leave)"
