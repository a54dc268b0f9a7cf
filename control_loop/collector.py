"""Python's cycle collector as a part of the time budget.

A full collection over 100,000 tree nodes holds the GIL for about 100 ms. The loops make no cycles (a test says so), so
automatic collection is switched off in an engine process, the young generation is looked through between passes, and
everything only when there is nothing to do.
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
            self._passes = 0
            gc.collect(0)

    def when_idle(self) -> None:
        """A full collection, once for each stretch of work."""
        if self._passes and not gc.isenabled():
            self._passes = 0
            gc.collect()


def take_over_collection() -> None:
    """Called once by an engine process after loading: what exists now is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.disable()
