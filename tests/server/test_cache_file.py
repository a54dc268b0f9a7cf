"""The file of a saved cache: what is written is read, and nothing else is ever believed."""

from __future__ import annotations

import fcntl
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix_cache.key import encode_namespace
from srt.core.cache_identity import CacheIdentity
from srt.core.save_messages import NO_RECORD, SavedRun
from srt.server.cache_store.file_format import FILE_NAME, PREFIX, UnusableFile
from srt.server.cache_store.file_reader import CacheFileReader
from srt.server.cache_store.file_writer import CacheFileWriter, max_records

PAGE_SIZE = 2
PAGE_BYTES = 12
IDENTITY = CacheIdentity("1.0", "m", "abc", "float32", "rows", 1, 2, 3, PAGE_SIZE, PAGE_BYTES, "little")
ROOM = 10**9

Run = tuple[SavedRun, bytes]
"""A run and the KV of its pages."""


def make_run(rng: random.Random, parent: int, num_pages: int, namespace: str | None = None) -> Run:
    tokens = np.array([rng.randrange(5) for _ in range(num_pages * PAGE_SIZE)], np.int32).tobytes()
    salt = encode_namespace(namespace) if namespace is not None and parent == NO_RECORD else b""
    return SavedRun(parent, salt, tokens, num_pages), rng.randbytes(num_pages * PAGE_BYTES)


def write(directory: Path, runs: list[Run], max_bytes: int = ROOM) -> bytes:
    writer = CacheFileWriter(directory, IDENTITY, max_bytes)
    for run, kv in runs:
        writer.write(run, pages_of(kv))
    size = writer.finish()
    data = (directory / FILE_NAME).read_bytes()
    assert len(data) == size
    return data


def pages_of(kv: bytes) -> list[memoryview]:
    return [memoryview(kv[start : start + PAGE_BYTES]) for start in range(0, len(kv), PAGE_BYTES)]


def read(directory: Path, identity: CacheIdentity = IDENTITY, buffer_pages: int = 8) -> list[Run]:
    pages = np.zeros((buffer_pages, PAGE_BYTES), np.uint8)
    with CacheFileReader(directory / FILE_NAME, identity) as reader:
        return [(run, pages[: run.num_pages].tobytes()) for run in reader.runs(pages)]


def small_file(rng: random.Random) -> list[Run]:
    return [
        make_run(rng, NO_RECORD, 2),
        make_run(rng, NO_RECORD, 1, "tenant"),
        make_run(rng, 1, 3),
        make_run(rng, 2, 1),
    ]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    runs = small_file(random.Random(1))
    write(tmp_path, runs)
    assert read(tmp_path) == runs
    write(tmp_path, [])
    assert read(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("buffer_pages", [1, 2, 3, 5])
def test_a_run_longer_than_the_buffer_comes_in_pieces_that_follow_each_other(
    tmp_path: Path, buffer_pages: int
) -> None:
    runs = [make_run(random.Random(2), NO_RECORD, 2, "a"), make_run(random.Random(3), 1, 7)]
    write(tmp_path, runs)
    pieces = read(tmp_path, buffer_pages=buffer_pages)
    assert b"".join(run.tokens for run, _ in pieces) == b"".join(run.tokens for run, _ in runs)
    assert b"".join(kv for _, kv in pieces) == b"".join(kv for _, kv in runs)
    number = 0
    for piece, _ in pieces:
        assert piece.parent == number - 1
        assert bool(piece.salt) == (number == 0)
        number += piece.num_pages


def test_every_wrong_bit_makes_the_file_unusable(tmp_path: Path) -> None:
    rng = random.Random(4)
    data = write(tmp_path, small_file(rng))
    for position in range(len(data)):
        wrong = bytearray(data)
        wrong[position] ^= 1 << rng.randrange(8)
        (tmp_path / FILE_NAME).write_bytes(wrong)
        with pytest.raises(UnusableFile, match=FILE_NAME):
            read(tmp_path)


def test_a_file_cut_anywhere_is_unusable_and_so_is_a_longer_one(tmp_path: Path) -> None:
    data = write(tmp_path, small_file(random.Random(5)))
    for length in range(len(data)):
        (tmp_path / FILE_NAME).write_bytes(data[:length])
        with pytest.raises(UnusableFile, match="damaged: it ends in"):
            read(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(data + b"x")
    with pytest.raises(UnusableFile, match="behind its end"):
        read(tmp_path)


def test_parts_of_other_files_do_not_pass_for_this_one_s(tmp_path: Path) -> None:
    """Whole runs with right checksums, in the wrong place."""
    rng = random.Random(6)
    first, second = make_run(rng, NO_RECORD, 2), make_run(rng, NO_RECORD, 2)
    child = make_run(rng, 1, 1)
    ours, theirs = write(tmp_path, [first, child]), write(tmp_path, [second, child])
    assert len(ours) == len(theirs)
    differs = [index for index in range(len(ours)) if ours[index] != theirs[index]]
    head_of_ours = ours[: differs[-1]]
    for cut in (differs[0], differs[len(differs) // 2], len(head_of_ours)):
        (tmp_path / FILE_NAME).write_bytes(ours[:cut] + theirs[cut:])
        if ours[:cut] + theirs[cut:] != theirs:
            with pytest.raises(UnusableFile):
                read(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_random_garbage_is_unusable(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    data = write(tmp_path, small_file(rng))
    start = rng.randrange(len(data))
    garbage = data[:start] + rng.randbytes(rng.randrange(1, 200))
    (tmp_path / FILE_NAME).write_bytes(garbage)
    with pytest.raises(UnusableFile):
        read(tmp_path)


@pytest.mark.parametrize("name", [field.name for field in fields(CacheIdentity)])
def test_a_file_of_another_server_is_named_with_what_differs(tmp_path: Path, name: str) -> None:
    write(tmp_path, small_file(random.Random(7)))
    value = getattr(IDENTITY, name)
    changed: dict[str, Any] = {name: value + 1 if isinstance(value, int) else value + "x"}
    other = replace(IDENTITY, **changed)
    if name == "model":
        assert read(tmp_path, other), "a name is not what counts, the weights are"
        return
    with pytest.raises(UnusableFile, match=f"another server: {name} is .* in the file and .* here"):
        read(tmp_path, other)


def test_another_version_and_another_kind_of_file_are_said_to_be_so(tmp_path: Path) -> None:
    data = bytearray(write(tmp_path, []))
    magic, version, length = PREFIX.unpack(data[: PREFIX.size])
    data[: PREFIX.size] = PREFIX.pack(magic, version + 1, length)
    (tmp_path / FILE_NAME).write_bytes(data)
    with pytest.raises(UnusableFile, match=f"version {version + 1}, this program knows {version}"):
        read(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(b"GIF89a" * 20)
    with pytest.raises(UnusableFile, match="not a saved prefix cache"):
        read(tmp_path)


def test_the_file_stays_within_its_limit_and_what_leans_on_the_rest_is_left_out(tmp_path: Path) -> None:
    rng = random.Random(8)
    runs = [make_run(rng, NO_RECORD, 2), make_run(rng, 1, 50), make_run(rng, 1, 1), make_run(rng, 51, 1)]
    limit = len(write(tmp_path, runs[:1])) + 100
    assert len(write(tmp_path, runs, limit)) <= limit
    assert read(tmp_path) == runs[:1]
    assert 2 <= max_records(IDENTITY, limit) < 52
    assert max_records(IDENTITY, 10) == 0


def test_a_save_that_is_given_up_leaves_the_old_file(tmp_path: Path) -> None:
    rng = random.Random(9)
    data = write(tmp_path, small_file(rng))
    writer = CacheFileWriter(tmp_path, IDENTITY, ROOM)
    writer.write(*with_pages(make_run(rng, NO_RECORD, 3)))
    writer.discard()
    assert (tmp_path / FILE_NAME).read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def with_pages(run: Run) -> tuple[SavedRun, list[memoryview]]:
    return run[0], pages_of(run[1])


def test_two_servers_do_not_write_one_file_and_what_a_killed_one_left_is_overwritten(tmp_path: Path) -> None:
    new = tmp_path / (FILE_NAME + ".new")
    new.write_bytes(b"x" * 5000)  # of a server that was killed: nobody holds it
    with new.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            CacheFileWriter(tmp_path, IDENTITY, ROOM)
    runs = small_file(random.Random(10))
    write(tmp_path, runs)
    assert read(tmp_path) == runs
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


@contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """No file may grow beyond this: a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_an_error_and_leaves_the_old_file(tmp_path: Path) -> None:
    rng = random.Random(11)
    data = write(tmp_path, small_file(rng))
    big = make_run(rng, NO_RECORD, 400_000)
    writer = CacheFileWriter(tmp_path, IDENTITY, ROOM)
    with room_for(1 << 20), pytest.raises(OSError, match="File too large"):
        writer.write(*with_pages(big))
    writer.discard()
    assert (tmp_path / FILE_NAME).read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
