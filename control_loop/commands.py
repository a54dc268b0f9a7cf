"""The road from control to compute: every command gets its number here."""

from __future__ import annotations

from collections.abc import Callable

from srt.core.queues import SpscQueue
from srt.core.step_messages import Command


class CommandSender:
    """Thread: control. Numbers commands from 1 and stamps them with the epoch.

    `applied` is the last command that a result has acknowledged. A new epoch begins when a step has failed: compute
    voids commands of an older one.
    """

    def __init__(self, queue: SpscQueue[Command]) -> None:
        self._queue = queue
        self.epoch = 0
        self.last_seq = 0
        self.applied = 0

    @property
    def next_seq(self) -> int:
        """The number that the next command will have."""
        return self.last_seq + 1

    def send(self, make: Callable[[int, int], Command]) -> int:
        """Puts ``make(seq, epoch)`` on the queue and returns its number."""
        self.last_seq += 1
        self._queue.put(make(self.last_seq, self.epoch))
        return self.last_seq

    def __repr__(self) -> str:
        return f"CommandSender(sent {self.last_seq}, applied {self.applied}, epoch {self.epoch})"
