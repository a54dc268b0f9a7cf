"""Columns of the running batch: who may decode, who has ended, who is dropped when."""

from __future__ import annotations

import numpy as np
import pytest

from compute_loop.running_batch import RunningBatch
from srt.core.messages import empty_int32
from srt.core.sampling_params import SamplingParams
from srt.core.step_messages import PageGrant, ScheduledSeq, SeqInit


def begin(batch: RunningBatch, slot: int, *, stops: tuple[int, ...] = (), start: int = 0) -> None:
    init = SeqInit(4, 0, 8, frozenset(stops), SamplingParams())
    seq = ScheduledSeq(slot, 10 + slot, empty_int32(), start, 0, empty_int32(), 4, True, init)
    batch.begin(seq)
    batch.decoding[slot] = True


def grant(slot: int, generation: int, limit: int) -> PageGrant:
    def column(value: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.array([value], np.int32)

    offsets = np.array([0, 0], np.int32)
    return PageGrant(
        1, 0, column(slot), np.array([generation]), column(0), offsets, empty_int32(), column(limit)
    )


def test_a_row_without_credit_is_parked_and_a_grant_wakes_it() -> None:
    batch = RunningBatch(3)
    begin(batch, 1)
    begin(batch, 2, start=4)
    batch.limit[1], batch.limit[2] = 4, 4
    ready, parked = batch.ready_to_decode()
    assert (ready.tolist(), parked) == ([1], 1)
    assert batch.grant(grant(2, 12, 9)).all()
    assert batch.ready_to_decode()[0].tolist() == [1, 2]


def test_a_grant_for_another_life_is_void() -> None:
    batch = RunningBatch(3)
    begin(batch, 1)
    assert not batch.grant(grant(1, 99, 50)).any()
    assert batch.limit[1] != 50


def test_an_ended_row_is_dropped_once_when_no_launched_step_names_it() -> None:
    batch = RunningBatch(3)
    begin(batch, 1)
    batch.last_step[1] = 7
    batch.end((1, 11))
    batch.end((1, 11))
    assert not batch.is_alive(np.array([1], np.int32), np.array([11])).any()
    assert batch.take_dropped(6) == ()
    assert batch.take_dropped(7) == ((1, 11),)
    assert batch.take_dropped(8) == ()
    batch.end((1, 11))
    assert batch.take_dropped(9) == (), "void: that life is over"


def test_corner_19_stop_tokens_are_each_rows_own() -> None:
    batch = RunningBatch(3)
    begin(batch, 1, stops=(5,))
    begin(batch, 2, stops=(6, 7, 8))
    slots = np.array([1, 2, 1, 2], np.int32)
    assert batch.matches_stop(slots, np.array([5, 5, 8, 8], np.int32)).tolist() == [True, False, False, True]
    begin(batch, 2, stops=())
    assert not batch.matches_stop(slots, np.array([0, 8, -1, -1], np.int32)).any()


def test_a_chunk_of_a_life_that_never_began_is_an_error() -> None:
    batch = RunningBatch(1)
    seq = ScheduledSeq(1, 5, empty_int32(), 4, 1, empty_int32(), 8, False, None)
    with pytest.raises(RuntimeError, match="never began"):
        batch.begin(seq)
