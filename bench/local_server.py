"""A server of the bench's own: `twinloop serve` on a free port, for as long as a bench runs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from types import FrameType
from typing import IO

from tqdm import tqdm

from bench.environment import ROOT
from srt.core.config import Config
from srt.core.errors import EngineFailure
from srt.core.option import flag

READY = re.compile(r" is ready on (http://\S+)")
POLL_SECONDS = 0.1
START_SECONDS = 1800.0
"""A large model may have to be fetched first."""
STOP_SECONDS = 20.0
LOG_LINES = 15
ENGINE_GROUPS = ("model", "cache", "schedule")
"""The options of a server that a bench takes too; where it listens is the bench's own business."""


@contextlib.contextmanager
def local_server(config: Config) -> Iterator[str]:
    """Starts a server with these options and yields its URL once it is ready; then ends it.

    Raises:
        EngineFailure: it ended before it was ready; has the end of its log.
    """
    words = ["serve", "--host", "127.0.0.1", "--port", "0", "--log-level", "warning", *option_words(config)]
    with tempfile.TemporaryFile() as log, _terminate_as_interrupt():
        process = _start(words, log)
        try:
            yield _wait_ready(process, log)
        finally:
            _stop(process)


def option_words(config: Config) -> list[str]:
    """The engine's options that are not the default, as words of a command line."""
    words: list[str] = []
    for group in ENGINE_GROUPS:
        options, defaults = getattr(config, group), getattr(Config(), group)
        for option in fields(options):
            value = getattr(options, option.name)
            if value == getattr(defaults, option.name):
                continue
            name = flag(option.name)
            if isinstance(value, bool):
                words.append(name if value else name.replace("--", "--no-", 1))
            else:
                words += [name, str(value)]
    return words


def _start(words: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    # The packages are found where they were found here, whatever the working directory holds (-P).
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    code = "import sys; from srt.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, *words],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, "PYTHONPATH": path},
        # A key press in the terminal is for the bench, which then ends its server.
        start_new_session=True,
    )


def _wait_ready(process: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    deadline = time.monotonic() + START_SECONDS
    with tqdm(
        desc="starting the server", bar_format="{desc}: {elapsed}", disable=None, leave=False, miniters=1
    ) as bar:
        while True:
            code = process.poll()
            text = _read(log)
            if match := READY.search(text):
                return match[1]
            if code is not None:
                raise EngineFailure(
                    f"the server ended with exit code {code} before it was ready:\n{_end(text)}"
                )
            if time.monotonic() > deadline:
                raise EngineFailure(f"the server was not ready within {START_SECONDS:g} s:\n{_end(text)}")
            bar.update()
            time.sleep(POLL_SECONDS)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the server, and with it its engine, which never outlives it."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _read(log: IO[bytes]) -> str:
    # The server writes at the offset that both share: reading must not move it.
    size = os.fstat(log.fileno()).st_size
    return os.pread(log.fileno(), size, 0).decode("utf-8", "replace")


def _end(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines()[-LOG_LINES:]) or "  it said nothing"


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the bench as Ctrl-C does, so that its server ends too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
