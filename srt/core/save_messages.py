"""What the control loop and the helper that writes files say to each other while a cache is saved.

* control -> helper: the *jobs* `BeginSave`, `WriteRuns`, `EndSave`, `CancelSave`, `StopSaving`
* helper -> control: `BufferFree`, `SaveEnded`, `SaveFailed`

KV bytes do not travel: they lie in host pages. A save has a number; what a helper hears of another save than the one
that is on, it ignores, but it gives every buffer back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from srt.core.messages import Int32Array
from srt.core.queues import Doorbell, SpscQueue

NO_RECORD = -1
"""The parent of a page that begins a sequence."""


@dataclass(frozen=True, slots=True)
class SavedRun:
    """Pages that follow one another in the tree.

    Pages of a save are numbered in the order in which they are written: its *records*. The first page of the run
    follows record `parent`. `tokens` are its ids, int32 in machine order; `salt` names the namespace, and is there
    only where there is no parent.
    """

    parent: int
    salt: bytes
    tokens: bytes
    num_pages: int


@dataclass(frozen=True, slots=True)
class BeginSave:
    save: int


@dataclass(frozen=True, slots=True)
class WriteRuns:
    """The pages of `runs` lie one after another in the host pages of `buffer`."""

    save: int
    buffer: int
    runs: tuple[SavedRun, ...]


@dataclass(frozen=True, slots=True)
class EndSave:
    """All is said: the file takes the place of the one before."""

    save: int


@dataclass(frozen=True, slots=True)
class CancelSave:
    """Forget what was written."""

    save: int


@dataclass(frozen=True, slots=True)
class StopSaving:
    """End the helper."""


SaveJob = BeginSave | WriteRuns | EndSave | CancelSave | StopSaving


@dataclass(frozen=True, slots=True)
class BufferFree:
    """The helper has read the host pages of `buffer`."""

    buffer: int


@dataclass(frozen=True, slots=True)
class SaveEnded:
    """The file is on disk, `num_bytes` long."""

    save: int
    num_pages: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """Nothing has changed on disk; `message` says which file and why."""

    save: int
    message: str


SaveWord = BufferFree | SaveEnded | SaveFailed


@dataclass(frozen=True, slots=True)
class SaveLinks:
    """The two queues between control and the helper, and how the host memory between them is cut.

    Buffer b is the host pages ``[first_page + b * buffer_pages, first_page + (b + 1) * buffer_pages)``. A file holds
    `max_pages` at most. The helper rings `doorbell` behind each word.
    """

    jobs: SpscQueue[SaveJob]
    words: SpscQueue[SaveWord]
    doorbell: Doorbell
    num_buffers: int
    buffer_pages: int
    max_pages: int
    first_page: int = 0

    def pages_of(self, buffer: int, count: int) -> Int32Array:
        """The first `count` host pages of a buffer."""
        first = self.first_page + buffer * self.buffer_pages
        return np.arange(first, first + count, dtype=np.int32)
