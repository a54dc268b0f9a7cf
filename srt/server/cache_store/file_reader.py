"""Reading the file of a saved cache: nothing in it is believed before it is checked."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec
import numpy as np
import numpy.typing as npt

from radix_cache.key import TOKEN_BYTES
from srt.core.cache_identity import CacheIdentity
from srt.core.save_messages import NO_RECORD, SavedRun
from srt.server.cache_store.file_format import (
    CHECK_BYTES,
    END,
    END_MARK,
    MAGIC,
    MOST_HEAD_BYTES,
    PREFIX,
    RUN,
    RUN_MARK,
    VERSION,
    UnusableFile,
    check_of,
    run_tail_bytes,
)
from srt.server.cache_store.page_chain import PageChain

BUFFER_BYTES = 1 << 20


class CacheFileReader:
    """One thread at a time. A saved cache that fits `identity`; a context manager.

    Raises:
        UnusableFile: it is damaged, or another model's.
        FileNotFoundError: there is none.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, identity: CacheIdentity) -> None:
        self._path = path
        self._identity = identity
        self._file = io.BufferedReader(io.FileIO(path), BUFFER_BYTES)
        try:
            self._size = path.stat().st_size
            self._read_head()
        except BaseException:
            self._file.close()
            raise
        self._chain = PageChain(identity.page_size)

    def __enter__(self) -> CacheFileReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def runs(self, pages: npt.NDArray[np.uint8]) -> Iterator[SavedRun]:
        """The runs in order; the KV of each lies in the first rows of `pages` ``[n, page bytes]`` until the next one.

        A run longer than `pages` comes in pieces. What has come is right, but only after the last one is it known that
        the file is whole.

        Raises:
            UnusableFile: something in the file is not right.
        """
        num_runs = 0
        while (mark := self._take(1, "a run")) == RUN_MARK:
            run = self._read_run(mark)
            yield from self._read_pages(run, pages)
            num_runs += 1
        self._read_end(mark, num_runs)

    def _read_head(self) -> None:
        prefix = self._take(PREFIX.size, "the head")
        magic, version, length = PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise self._unusable("it is not a saved prefix cache")
        if version != VERSION:
            raise self._unusable(f"its format is version {version}, this program knows {VERSION}")
        if length > MOST_HEAD_BYTES:
            raise self._unusable(f"it is damaged: a head of {length} bytes")
        body = self._take(length, "the head")
        self._check(self._take(CHECK_BYTES, "the head"), "the head", prefix, body)
        try:
            saved = msgspec.json.decode(body, type=CacheIdentity)
        except msgspec.MsgspecError as error:
            raise self._unusable(f"its head is not understood: {error}") from error
        differences = self._identity.differences(saved)
        if differences:
            raise self._unusable(f"it was saved by another server: {'; '.join(differences)}")

    def _read_run(self, mark: bytes) -> SavedRun:
        where = f"the run behind page {len(self._chain)}"
        fixed = mark + self._take(RUN.size - 1, where)
        _, parent, salt_length, num_pages = RUN.unpack(fixed)
        if num_pages < 1 or not NO_RECORD <= parent < len(self._chain):
            raise self._unusable(f"it is damaged: {where} has {num_pages} pages behind page {parent}")
        tail = self._take(run_tail_bytes(salt_length, num_pages, self._identity.page_size), where)
        own, check = tail[:-CHECK_BYTES], tail[-CHECK_BYTES:]
        self._check(check, where, fixed, own)
        return SavedRun(parent, own[:salt_length], own[salt_length:], num_pages)

    def _read_pages(self, run: SavedRun, pages: npt.NDArray[np.uint8]) -> Iterator[SavedRun]:
        stride = self._identity.page_size * TOKEN_BYTES
        parent, salt = run.parent, run.salt
        for first in range(0, run.num_pages, len(pages)):
            count = min(len(pages), run.num_pages - first)
            piece = SavedRun(parent, salt, run.tokens[first * stride : (first + count) * stride], count)
            number = len(self._chain)
            for row, name in zip(pages[:count], self._chain.add(piece), strict=True):
                kv = memoryview(row)
                where = f"page {number}"
                if self._file.readinto(kv) != len(kv):
                    raise self._ends_in(where)
                self._check(self._take(CHECK_BYTES, where), where, name, kv)
                number += 1
            yield piece
            parent, salt = number - 1, b""

    def _read_end(self, mark: bytes, num_runs: int) -> None:
        end = mark + self._take(END.size - 1, "the end")
        self._check(self._take(CHECK_BYTES, "the end"), "the end", end)
        if END.unpack(end) != (END_MARK, num_runs, len(self._chain)):
            raise self._unusable("it is damaged: runs are missing")
        if self._file.read(1):
            raise self._unusable("it is damaged: something stands behind its end")

    def _take(self, count: int, where: str) -> bytes:
        if count > self._size:  # a damaged length must not become an allocation
            raise self._ends_in(where)
        data = self._file.read(count)
        if len(data) != count:
            raise self._ends_in(where)
        return data

    def _check(self, check: bytes, where: str, *parts: bytes | memoryview) -> None:
        if check_of(*parts) != check:
            raise self._unusable(f"it is damaged: the checksum of {where} is wrong")

    def _ends_in(self, where: str) -> UnusableFile:
        return self._unusable(f"it is damaged: it ends in {where}")

    def _unusable(self, why: str) -> UnusableFile:
        return UnusableFile(f"{self._path} is not used: {why}")
