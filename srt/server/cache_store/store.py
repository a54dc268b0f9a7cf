"""The saved cache of one engine: read before its loops start, written by a helper while they run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mem_pool.sizing import NUM_SAVE_BUFFERS
from srt.core.cache_identity import CacheIdentity
from srt.core.errors import ConfigError
from srt.core.messages import Int32Array
from srt.core.queues import Doorbell, SpscQueue
from srt.core.save_messages import SavedRun, SaveLinks, StopSaving
from srt.server.cache_store.file_format import FILE_NAME, UnusableFile
from srt.server.cache_store.file_reader import CacheFileReader
from srt.server.cache_store.file_writer import max_records
from srt.server.cache_store.save_helper import SaveHelper

log = logging.getLogger(__name__)

BYTES_PER_GB = 10**9

Restore = Callable[[Iterable[SavedRun], Callable[[Int32Array], None]], int]
"""`ControlLoop.restore`."""
CopyPages = Callable[[Int32Array, Int32Array, bool], None]
"""`Runner.copy_pages`."""


class CacheStore:
    """One directory, one engine. Thread: whoever builds the engine; `helper` is the loop of a thread of its own."""

    def __init__(
        self,
        directory: str,
        max_gb: float,
        identity: CacheIdentity,
        pages: npt.NDArray[np.uint8],
        doorbell: Doorbell,
    ) -> None:
        """`pages`: uint8 ``[host pages, page bytes]``, all of them for saving.

        Raises:
            ConfigError: the directory cannot be made.
        """
        self._path = Path(directory) / FILE_NAME
        self._identity = identity
        self._pages = pages
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--cache-dir {directory} cannot be used: {error.strerror}") from error
        max_bytes = int(max_gb * BYTES_PER_GB)
        self.links = SaveLinks(
            jobs=SpscQueue(),
            words=SpscQueue(),
            doorbell=doorbell,
            num_buffers=NUM_SAVE_BUFFERS,
            buffer_pages=len(pages) // NUM_SAVE_BUFFERS,
            max_pages=max_records(identity, max_bytes),
        )
        self.helper = SaveHelper(self._path.parent, identity, max_bytes, pages, self.links)

    def restore(self, restore: Restore, copy_pages: CopyPages) -> int:
        """Brings the saved cache back, before the loops start; how many tokens, 0 when there is none that fits."""
        started = time.monotonic()
        try:
            with CacheFileReader(self._path, self._identity) as reader:
                tokens = restore(
                    reader.runs(self._pages),
                    lambda pages: copy_pages(np.arange(len(pages), dtype=np.int32), pages, False),
                )
        except FileNotFoundError:
            log.info("no saved prefix cache in %s yet", self._path.parent)
            return 0
        except (UnusableFile, OSError) as error:
            log.warning("%s; the prefix cache starts empty", error)
            return 0
        log.info("%d tokens of prefix cache read in %.1f s", tokens, time.monotonic() - started)
        return tokens

    def stop(self) -> None:
        """Lets the helper end, after the loops have: nobody else puts jobs then."""
        self.links.jobs.put(StopSaving())

    def __repr__(self) -> str:
        return f"CacheStore({self._path}, {self.links.max_pages} pages at most)"
