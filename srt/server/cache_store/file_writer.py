"""Writing the file of a saved cache: beside the old one, until it is whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from srt.core.cache_identity import CacheIdentity
from srt.core.save_messages import SavedRun
from srt.server.cache_store.file_format import (
    CHECK_BYTES,
    END,
    FILE_NAME,
    NEW_SUFFIX,
    check_of,
    encode_end,
    encode_head,
    encode_run,
    record_bytes,
)
from srt.server.cache_store.page_chain import PageChain

BUFFER_BYTES = 1 << 20


class CacheFileWriter:
    """Thread: helper. A new file under a name of its own; `finish` puts it in the place of the old one, `discard` not.

    The lock on the new file keeps two servers from writing in one directory at once; who is killed leaves a file that
    the next save overwrites. The file holds user's prompts: only its owner may read it.
    """

    def __init__(self, directory: Path, identity: CacheIdentity, max_bytes: int) -> None:
        """Raises:
        OSError: the file cannot be made, or another server is writing it (BlockingIOError).
        """
        self._path = directory / FILE_NAME
        self._new = directory / (FILE_NAME + NEW_SUFFIX)
        self._identity = identity
        self._max_bytes = max_bytes
        self._chain = PageChain(identity.page_size)
        self._num_runs = 0
        self._is_full = False
        self._file = _open_locked(self._new)
        head = encode_head(identity)
        self._num_bytes = len(head)
        self._file.write(head)

    @property
    def num_pages(self) -> int:
        return len(self._chain)

    def write(self, run: SavedRun, pages: Iterable[memoryview]) -> None:
        """Adds a run and its pages' KV bytes. From the first that goes over the limit on, runs are left out.

        Raises:
            OSError: the disk is full, or broken.
        """
        own = encode_run(run)
        size = len(own) + run.num_pages * (self._identity.page_bytes + CHECK_BYTES)
        if self._is_full or self._num_bytes + size + END.size + CHECK_BYTES > self._max_bytes:
            self._is_full = True  # what follows may lean on what was left out
            return
        self._file.write(own)
        for name, page in zip(self._chain.add(run), pages, strict=True):
            self._file.write(page)
            self._file.write(check_of(name, page))
        self._num_runs += 1
        self._num_bytes += size

    def finish(self) -> int:
        """Makes the file the saved cache; its size in bytes.

        Raises:
            OSError: it could not be written to the end. Call `discard`.
        """
        end = encode_end(self._num_runs, self.num_pages)
        self._file.write(end)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._new.replace(self._path)
        _sync_directory(self._path.parent)
        self._file.close()
        return self._num_bytes + len(end)

    def discard(self) -> None:
        """Removes the new file; the old one is as it was."""
        with contextlib.suppress(OSError):
            self._new.unlink()
        with contextlib.suppress(OSError):
            self._file.close()


def max_records(identity: CacheIdentity, max_bytes: int) -> int:
    """Pages that a file of `max_bytes` holds at most."""
    return max(0, (max_bytes - len(encode_head(identity))) // record_bytes(identity))


def _open_locked(path: Path) -> BinaryIO:
    """An empty file under this name that nobody else writes.

    Raises:
        BlockingIOError: another server has it.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it may have finished, and renamed it, between our open and our lock.
            if _is_at(descriptor, path):
                os.fchmod(descriptor, 0o600)
                os.ftruncate(descriptor, 0)
                return os.fdopen(descriptor, "wb", BUFFER_BYTES)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        there, here = path.stat(), os.fstat(descriptor)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
    return False


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
