"""The simulated device: its clock, its costs, and both loops over it."""

from __future__ import annotations

import numpy as np
import pytest

from compute_loop.forward_batch import ForwardBatch
from compute_loop.runner.simulated import DeviceModel, SimulatedRunner
from srt.core.messages import empty_int32
from srt.core.step_messages import NO_TOKEN
from tests.rig import Rig


class FakeTime:
    """A clock that moves only by sleeping, and a little with each look at it."""

    def __init__(self, tick: float = 1e-6) -> None:
        self.now = 0.0
        self.tick = tick
        self.slept = 0.0

    def clock(self) -> float:
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def decode_batch(rows: int, context: int, step: int = 1) -> ForwardBatch:
    return ForwardBatch(
        step=step,
        num_chunks=0,
        slots=np.arange(1, rows + 1, dtype=np.int32),
        generations=np.arange(1, rows + 1),
        starts=np.full(rows, context - 1, np.int32),
        num_new_tokens=np.ones(rows, np.int32),
        sampled=np.ones(rows, np.bool_),
        chunk_ids=empty_int32(),
        table_slots=empty_int32(),
        table_index=empty_int32(),
        table_pages=empty_int32(),
    )


@pytest.mark.parametrize(
    ("rows", "context", "milliseconds"), [(1, 1024, 4.3), (64, 1024, 6.6), (256, 256, 9.3), (256, 1024, 16.3)]
)
def test_step_times_of_the_preset(rows: int, context: int, milliseconds: float) -> None:
    """Worked out by hand from bytes and operations of Llama-3.1-8B on an H200."""
    seconds = DeviceModel().step_seconds(decode_batch(rows, context))
    assert seconds * 1e3 == pytest.approx(milliseconds, rel=0.03)


def test_a_step_launched_ahead_leaves_no_gap_and_a_late_one_does() -> None:
    time = FakeTime()
    model = DeviceModel(launch_seconds=1e-4, launch_gil_takes=2)
    runner = SimulatedRunner(model, num_slots=4, clock=time.clock, sleep=time.sleep)
    busy = model.step_seconds(decode_batch(2, 100))
    first, second = runner.launch(decode_batch(2, 100)), runner.launch(decode_batch(2, 101, step=2))
    rows = np.arange(2, dtype=np.int32)
    for handle in (first, second):
        runner.sample(handle, rows, None)
    assert runner.wait(first).busy == pytest.approx(busy)
    assert second.gap == 0.0
    runner.wait(second)
    time.sleep(0.005)
    late = runner.launch(decode_batch(2, 102, step=3))
    assert late.gap == pytest.approx(0.005 + model.launch_seconds, rel=0.2)
    assert late.done_at == pytest.approx(time.now + busy, rel=0.01)


def test_tokens_depend_on_seed_and_position_and_unsampled_rows_have_none() -> None:
    time = FakeTime()
    runner = SimulatedRunner(DeviceModel(), num_slots=4, clock=time.clock, sleep=time.sleep)
    handle = runner.launch(decode_batch(3, 50))
    runner.sample(handle, np.array([0, 2], np.int32), None)
    token_ids = runner.wait(handle).token_ids
    assert token_ids[1] == NO_TOKEN
    assert token_ids[0] == token_ids[2] != NO_TOKEN, "greedy rows at one position agree"


def test_both_loops_over_the_device_finish_everything() -> None:
    time = FakeTime()
    model = DeviceModel()
    runner = SimulatedRunner(model, num_slots=8, clock=time.clock, sleep=time.sleep)
    rig = Rig(runner=runner, num_pages=256, max_running=8, chunk=64, vocab=model.vocab_size)
    answers = [rig.submit(range(1, 40 + index), 30, ignore_eos=True) for index in range(12)]
    rig.run()
    assert all(len(answer.token_ids) == 30 for answer in answers)
    rig.check_drained()
    stats = rig.stats()
    assert stats.device_busy_seconds_total == pytest.approx(time.slept, rel=0.2), (
        "the device was what took the time"
    )
