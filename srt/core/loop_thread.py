"""The only place that starts a thread: it repeats one loop's `step` until told to stop."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Protocol

PR_SET_TIMERSLACK = 29
TIMER_SLACK_NS = 1
"""Linux adds 50 us to timed sleeps by default, and waiting for the GIL is a timed sleep."""


class Loop(Protocol):
    """What a thread repeats. One thread calls all three methods."""

    def step(self) -> bool:
        """Do what can be done now, without blocking; True when anything was done."""

    def wait(self) -> None:
        """Sleep until there may be something to do."""

    @property
    def stopped(self) -> bool:
        """True when the loop has ended by its own protocol."""


class LoopThread:
    """A named thread around a loop. An exception ends the loop and reaches `on_failure`, in this thread.

    `stop` is asked from outside by the loop's own protocol (a message that makes it `stopped`), so that a thread
    never ends between two halves of a step.
    """

    def __init__(self, name: str, loop: Loop, on_failure: Callable[[BaseException], None]) -> None:
        self._loop = loop
        self._on_failure = on_failure
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the end; True when the thread has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def failure(self) -> BaseException | None:
        """The exception that ended the loop, if one did."""
        return self._failure

    def _run(self) -> None:
        set_timer_slack()
        try:
            while not self._loop.stopped:
                if not self._loop.step():
                    self._loop.wait()
        except BaseException as failure:
            # Everything must reach the waiters, SystemExit from a native library too.
            self._failure = failure
            self._on_failure(failure)

    def __repr__(self) -> str:
        state = "failed" if self._failure else "running" if self.alive else "ended"
        return f"LoopThread({self._thread.name}, {state})"


def set_timer_slack(nanoseconds: int = TIMER_SLACK_NS) -> None:
    """Make timed sleeps of the calling thread precise. Linux only; elsewhere nothing happens."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_TIMERSLACK, nanoseconds, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # no prctl on this system: the default slack costs time, not correctness
