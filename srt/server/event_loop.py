"""An asyncio event loop on a thread of its own, for programs that have none."""

from __future__ import annotations

import uvloop


class EventLoop:
    """Thread: its own (`stop` any). An asyncio event loop as a loop that a `LoopThread` repeats."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._stopped = False

    def step(self) -> bool:
        self.loop.run_forever()
        return True

    def wait(self) -> None:
        """`step` does the waiting."""

    @property
    def stopped(self) -> bool:
        if self._stopped:
            self.loop.close()
        return self._stopped

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._stopped = True
        self.loop.stop()
