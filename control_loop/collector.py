"""Python's cycle collector as a part of the time budget.

A full collection over 100,000 tree nodes holds the GIL for about 100 ms, also when it comes just before a request does.
The loops make no cycles (a test says so), so automatic collection is switched off in an engine process. What is new is
looked through between passes and when there is nothing to do; what outlives that is frozen: it is freed when nobody
refers to it any more, and never looked at again.
"""

from __future__ import annotations

import gc

PASSES_BETWEEN = 256
"""Control passes between two looks at the young generation."""


class Collector:
    """Thread: control. Does nothing while automatic collection is on (tests, in-process engines)."""

    def __init__(self) -> None:
        self._passes = 0

    def between_passes(self) -> None:
        self._passes += 1
        if self._passes >= PASSES_BETWEEN and not gc.isenabled():
            self._collect_new()

    def when_idle(self) -> None:
        """Once for each stretch of work."""
        if self._passes and not gc.isenabled():
            self._collect_new()

    def _collect_new(self) -> None:
        self._passes = 0
        gc.collect()  # all generations: nothing older is in them
        gc.freeze()


def take_over_collection() -> None:
    """Called once by an engine process after loading: what exists now is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.disable()


def give_back_collection() -> None:
    """Undoes `take_over_collection`, for who does not end with the engine: benches and tests."""
    gc.unfreeze()
    gc.enable()
