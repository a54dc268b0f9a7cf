"""`twinloop bench`: the table of benches. A bench's module is imported when the bench runs, never before."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PROGRAM = "twinloop bench"
USAGE_ERROR = 2


@dataclass(frozen=True, slots=True)
class Bench:
    """One line of the table. `module` has a ``main(arguments)``, as a command's module has."""

    module: str
    summary: str


BENCHES = {
    "serving": Bench("bench.serving", "drive a server over HTTP: throughput, TTFT, ITL, cache hits"),
    "radix": Bench(
        "bench.radix", "time the prefix cache alone: match, insert, evict, and how long its lock is held"
    ),
    "control": Bench("bench.control", "time a pass of the control loop, by how many requests run and wait"),
    "long-prompt": Bench("bench.long_prompt", "the gap between tokens while a long prompt is computed"),
    "offline": Bench("bench.offline", "answer a list of prompts with the Python API: tokens per second"),
}

EXAMPLES = f"""\
examples:
  {PROGRAM} serving --quick                     a server of its own, a small run
  {PROGRAM} serving --base-url http://HOST:PORT  a server that runs already
  {PROGRAM} offline --preset single-stream      one stream, no HTTP
  {PROGRAM} serving --help                      the options of one bench"""


def main(arguments: Sequence[str]) -> int:
    """Runs one bench.

    Args:
        arguments: the bench's name and its words.

    Returns:
        The exit code: 0 done, 1 some request failed, 2 wrong usage.

    Raises:
        TwinloopError: the bench could not run.
    """
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0 if arguments else USAGE_ERROR
    bench = BENCHES.get(arguments[0])
    if bench is None:
        message = f"{PROGRAM}: there is no bench {arguments[0]!r}; there are: {', '.join(BENCHES)}"
        print(f"{message}\n`{PROGRAM} --help` says what each measures", file=sys.stderr)
        return USAGE_ERROR
    function: Callable[[Sequence[str]], int] = importlib.import_module(bench.module).main
    return function(arguments[1:])


def help_text() -> str:
    """What `twinloop bench --help` prints."""
    lines = [
        f"usage: {PROGRAM} NAME [options]",
        "",
        "Measures throughput and latency.",
        "",
        "benches:",
        *(f"  {name:<13}{bench.summary}" for name, bench in BENCHES.items()),
        "",
        EXAMPLES,
    ]
    return "\n".join(lines)
