"""The road from control to compute: every command gets its number here."""

from __future__ import annotations

from collections.abc import Callable

from srt.core.queues import SpscQueue
from srt.core.step_messages import Command


class CommandSender:
    """Thread: control. Numbers commands from 1, rising, and stamps them with the epoch.

    `applied` is the last command that a result has acknowledged. A new epoch begins when a step has failed: compute
    voids commands of an older one.
    """

    def __init__(self, queue: SpscQueue[Command]) -> None:
        self._queue = queue
        self.epoch = 0
        self.last_seq = 0
        self.applied = 0

    def seq_behind(self, others: int) -> int:
        """The number of a command that will be sent after `others` commands at most: numbers only have to rise."""
        return self.last_seq + 1 + others

    def send(self, make: Callable[[int, int], Command], seq: int | None = None) -> int:
        """Puts ``make(seq, epoch)`` on the queue and returns its number; `seq` is one from `seq_behind`.

        Raises:
            RuntimeError: a later number has been given out meanwhile.
        """
        if seq is not None and seq <= self.last_seq:
            raise RuntimeError(f"command {seq} comes behind command {self.last_seq}")
        self.last_seq = self.last_seq + 1 if seq is None else seq
        self._queue.put(make(self.last_seq, self.epoch))
        return self.last_seq

    def __repr__(self) -> str:
        return f"CommandSender(sent {self.last_seq}, applied {self.applied}, epoch {self.epoch})"
