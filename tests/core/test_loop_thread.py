"""A thread repeats a loop, and an exception in it reaches the one who must know."""

from __future__ import annotations

import threading

from srt.core.loop_thread import LoopThread
from srt.core.serial_loop import SerialLoop


class Countdown:
    """Steps down to zero; waits are counted, and `fail_at` raises."""

    def __init__(self, count: int, fail_at: int | None = None) -> None:
        self.count = count
        self.fail_at = fail_at
        self.waits = 0

    def step(self) -> bool:
        if self.count == self.fail_at:
            raise KeyError("broken")
        self.count -= 1
        return self.count % 2 == 0

    def wait(self) -> None:
        self.waits += 1

    @property
    def stopped(self) -> bool:
        return self.count <= 0


def test_a_thread_repeats_until_the_loop_has_stopped() -> None:
    loop = Countdown(10)
    thread = LoopThread("test", loop, lambda failure: None)
    thread.start()
    assert thread.join(30)
    assert loop.count == 0
    assert loop.waits == 5
    assert thread.failure is None


def test_an_exception_reaches_on_failure_in_the_thread_itself() -> None:
    caught: list[tuple[BaseException, str]] = []
    thread = LoopThread(
        "doomed", Countdown(5, fail_at=3), lambda e: caught.append((e, threading.current_thread().name))
    )
    thread.start()
    assert thread.join(30)
    assert isinstance(thread.failure, KeyError)
    assert caught == [(thread.failure, "doomed")]
    assert "failed" in repr(thread)


def test_a_serial_loop_steps_both_and_ends_with_both() -> None:
    first, second = Countdown(3), Countdown(5)
    loop = SerialLoop(first, second)
    while not loop.stopped:
        if not loop.step():
            loop.wait()
    assert (first.count, second.count) == (0, 0)
