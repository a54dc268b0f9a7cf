"""The helper that writes files, so that no loop ever waits for a disk."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt

from srt.core.cache_identity import CacheIdentity
from srt.core.save_messages import (
    BeginSave,
    BufferFree,
    CancelSave,
    EndSave,
    SaveEnded,
    SaveFailed,
    SaveJob,
    SaveLinks,
    SaveWord,
    StopSaving,
    WriteRuns,
)
from srt.server.cache_store.file_writer import CacheFileWriter

log = logging.getLogger(__name__)


class SaveHelper:
    """Thread: helper. Does the jobs of one control loop, in order.

    Args:
        pages: uint8 ``[host pages, page bytes]``: the KV that compute has copied out.
    """

    def __init__(
        self,
        directory: Path,
        identity: CacheIdentity,
        max_bytes: int,
        pages: npt.NDArray[np.uint8],
        links: SaveLinks,
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._max_bytes = max_bytes
        self._pages = pages
        self._links = links
        self._received: SaveJob | None = None
        self._writer: CacheFileWriter | None = None
        self.stopped = False

    def step(self) -> bool:
        """Does the next job; False when there is none."""
        job, self._received = self._received, None
        job = job or self._links.jobs.get_nowait()
        if job is None:
            return False
        if isinstance(job, StopSaving):
            self._discard()
            self.stopped = True
            return True
        try:
            self._do(job)
        except Exception as error:
            if not isinstance(error, OSError):
                log.exception("saving the prefix cache failed")
            self._discard()
            self._say(SaveFailed(job.save, _reason(error, self._directory)))
        if isinstance(job, WriteRuns):
            self._say(BufferFree(job.buffer))
        return True

    def wait(self) -> None:
        """Sleeps, without the GIL, until there is a job."""
        self._received = self._links.jobs.get()

    def _do(self, job: SaveJob) -> None:
        if isinstance(job, BeginSave):
            self._discard()
            self._writer = CacheFileWriter(self._directory, self._identity, self._max_bytes)
        elif isinstance(job, CancelSave):
            self._discard()
        elif self._writer is None:
            return  # it failed, and control has been told
        elif isinstance(job, WriteRuns):
            self._write(job, self._writer)
        elif isinstance(job, EndSave):
            num_bytes = self._writer.finish()
            ended = SaveEnded(job.save, self._writer.num_pages, num_bytes)
            self._writer = None
            log.info("saved %d KV pages (%.1f MB) in %s", ended.num_pages, num_bytes / 1e6, self._directory)
            self._say(ended)

    def _write(self, job: WriteRuns, writer: CacheFileWriter) -> None:
        first = self._links.first_page + job.buffer * self._links.buffer_pages
        for run in job.runs:
            writer.write(run, map(memoryview, self._pages[first : first + run.num_pages]))
            first += run.num_pages

    def _say(self, word: SaveWord) -> None:
        self._links.words.put(word)
        self._links.doorbell.ring()

    def _discard(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.discard()

    def __repr__(self) -> str:
        return f"SaveHelper({self._directory}, {'writing' if self._writer else 'idle'})"


def _reason(error: Exception, directory: Path) -> str:
    if isinstance(error, BlockingIOError):
        return f"another server is writing to {directory}; give each server a --cache-dir of its own"
    if isinstance(error, OSError):
        return f"{error.strerror} ({error.filename or directory})"
    return f"{directory}: {error!r}"
