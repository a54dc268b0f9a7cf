"""Both loops in turn on one thread: for runners whose step is many Python calls, where two threads would only fight."""

from __future__ import annotations

from srt.core.loop_thread import Loop


class SerialLoop:
    """A loop made of two: a step of `first`, then one of `second`; sleeps where `first` sleeps.

    `second` never sleeps by itself: when neither has work, only a message that `first` waits for can bring some.
    """

    def __init__(self, first: Loop, second: Loop) -> None:
        self._first = first
        self._second = second

    def step(self) -> bool:
        first = not self._first.stopped and self._first.step()
        return self._second.step() or first

    def wait(self) -> None:
        if not self._first.stopped:
            self._first.wait()

    @property
    def stopped(self) -> bool:
        return self._first.stopped and self._second.stopped

    def __repr__(self) -> str:
        return f"SerialLoop({self._first!r}, {self._second!r})"
