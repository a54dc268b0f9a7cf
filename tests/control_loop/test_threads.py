"""The same loops on real threads: two of them, or both in turn on one."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from compute_loop.forward_batch import ForwardBatch
from compute_loop.runner.base import DeviceLost
from srt.core.loop_thread import Loop, LoopThread
from srt.core.serial_loop import SerialLoop
from tests.rig import Answer, Rig
from tests.schedules import Traffic, random_prompt

PATIENCE_SECONDS = 120


class Failures:
    """Thread: any. Takes in the exceptions of loops; `happened` is set by the first one."""

    def __init__(self) -> None:
        self.exceptions: list[BaseException] = []
        self.happened = threading.Event()

    def __call__(self, failure: BaseException) -> None:
        self.exceptions.append(failure)
        self.happened.set()


@contextmanager
def running(rig: Rig, overlap: bool, failures: Failures) -> Iterator[list[LoopThread]]:
    loops: list[Loop] = [rig.control, rig.compute] if overlap else [SerialLoop(rig.control, rig.compute)]
    threads = [LoopThread(f"loop{index}", loop, failures) for index, loop in enumerate(loops)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        rig.port.close()


def read_until_ended(rig: Rig, answers: list[Answer]) -> None:
    while not all(answer.ended for answer in answers):
        rig.read_message(rig.port.next())


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_corner_25_threads_give_the_oracle_s_tokens(overlap: bool, asynchronous: bool) -> None:
    rng, traffic, failures = random.Random(11), Traffic(max_prompt=12, max_new=40), Failures()
    rig = Rig(num_pages=18, max_running=6, vocab=101, asynchronous=asynchronous)
    with running(rig, overlap, failures) as threads:
        for _ in range(20):
            answers = [
                rig.submit(random_prompt(rng, traffic, rig.vocab), rng.randrange(40), ignore_eos=True)
                for _ in range(12)
            ]
            rig.abort(rng.choice(answers))
            read_until_ended(rig, answers)
    assert all(thread.join(PATIENCE_SECONDS) for thread in threads), threads
    assert not failures.exceptions
    rig.check_answers()
    rig.check_drained()
    assert rig.stats().retracted_total > 0


@pytest.mark.parametrize("overlap", [True, False])
def test_corner_23_a_lost_device_ends_the_loop_and_says_so(overlap: bool) -> None:
    def lose(batch: ForwardBatch) -> None:
        raise DeviceLost("the device is gone")

    failures = Failures()
    rig = Rig(fault=lose)
    with running(rig, overlap, failures) as threads:
        rig.submit([1, 2, 3])
        assert failures.happened.wait(PATIENCE_SECONDS)
        assert isinstance(failures.exceptions[0], DeviceLost)
        assert any(thread.failure is failures.exceptions[0] for thread in threads)


def test_corner_23_an_exception_in_control_says_so() -> None:
    failures = Failures()
    rig = Rig()

    def broken() -> bool:
        raise ZeroDivisionError("a bug in a verb")

    rig.control.schedule_prefill = broken  # type: ignore[method-assign]
    with running(rig, True, failures):
        rig.submit([1, 2, 3])
        assert failures.happened.wait(PATIENCE_SECONDS)
        assert isinstance(failures.exceptions[0], ZeroDivisionError)


def test_the_loops_make_no_reference_cycles() -> None:
    """The engine switches automatic collection off; what the loops leave behind must go by itself."""
    rig = Rig(num_pages=18, max_running=6, vocab=101)
    rng, traffic = random.Random(3), Traffic(max_prompt=12, max_new=20)

    def work() -> None:
        for _ in range(30):
            rig.submit(random_prompt(rng, traffic, rig.vocab), 12)
        rig.run(rng)
        rig.answers.clear()

    work()  # what is made once
    gc.collect()
    gc.disable()
    try:
        work()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        rooms = ("radix_cache", "control_loop", "compute_loop", "srt.core", "mem_pool")
        assert [type(found) for found in gc.garbage if type(found).__module__.startswith(rooms)] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
