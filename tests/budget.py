"""All of `make test`, part by part, with the minutes of each part beside its budget.

Runs on a bare Python: its first part makes `.venv`. A failing part fails the whole, but the others still run.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv" / "bin"
PYTEST_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
PYTEST_SUMMARY = re.compile(r"^=*\s*\d+ \w+(, \d+ \w+)* in [\d.]+s")

Command = tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """A part of the suite: plain commands, then one pytest run over `tests` (paths below ``tests/``)."""

    name: str
    budget_minutes: float
    tests: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Counts of checks; a command that is no test run is one check."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    minutes: float = 0.0

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.minutes + other.minutes,
        )

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


PARTS = (
    Part(
        "install",
        6,
        tests=(
            "test_layers.py",
            "test_corner_numbers.py",
            "test_docs.py",
            "test_cli.py",
            "test_budget.py",
            "test_setup.py",
            "test_wheel.py",
        ),
        commands=((str(BIN / "ruff"), "check", "."), (str(BIN / "mypy"),)),
    ),
    Part("engine", 10, tests=("core", "compute_loop", "mem_pool")),
    Part("cache and control", 8, tests=("radix_cache", "control_loop")),
    Part("CPU", 10),
    Part("GPU", 8),
    Part("API", 8, tests=("server", "e2e")),
    Part("DSL", 5),
    Part("bench", 5, tests=("bench",)),
)
"""The budgets of CI, 60 minutes together. A part without commands is one whose code does not exist yet."""


def main(arguments: Iterable[str]) -> int:
    """Runs all parts; `arguments` go to the set-up. Returns 1 if anything failed."""
    setup = run((sys.executable, str(ROOT / ".ci" / "setup_venv.py"), "--dev", *arguments))
    outcomes = {}
    for part in PARTS:
        if setup.failed:
            break
        outcomes[part.name] = run_part(part)
    outcomes["install"] = setup + outcomes.get("install", Outcome())
    total = sum(outcomes.values(), Outcome())
    print("\n" + table(outcomes))
    print(total)
    return 1 if total.failed else 0


def run_part(part: Part) -> Outcome:
    outcome = sum(map(run, part.commands), Outcome())
    if part.tests:
        paths = (f"tests/{path}" for path in part.tests)
        outcome += run((str(BIN / "pytest"), "-q", "-m", "not long", *paths))
    return outcome


def run(command: Command) -> Outcome:
    """Runs one command, passing on what it prints."""
    print(f"\n$ {' '.join(command)}", flush=True)
    started = time.monotonic()
    summary = ""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            summary = line if PYTEST_SUMMARY.match(line) else summary
    minutes = (time.monotonic() - started) / 60
    is_pytest = Path(command[0]).name == "pytest"
    return judge(process.returncode, summary if is_pytest else None, minutes)


def judge(code: int, summary: str | None, minutes: float) -> Outcome:
    """The outcome of a command from its exit code and, for pytest, the last line that it printed."""
    if summary is None:
        return Outcome(passed=int(code == 0), failed=int(code != 0), minutes=minutes)
    counts: dict[str, int] = {}
    for number, word in PYTEST_COUNT.findall(summary):
        counts[word.rstrip("s") if word.startswith("error") else word] = int(number)
    failed = counts.get("failed", 0) + counts.get("error", 0)
    # No summary, or no test: pytest was ended, broke down or collected nothing. That is a failure like any other.
    passed = counts.get("passed", 0) + counts.get("xfailed", 0)
    if failed == 0 and (code != 0 or passed == 0):
        failed = 1
    return Outcome(passed, failed, counts.get("skipped", 0), minutes)


def table(outcomes: dict[str, Outcome]) -> str:
    """Minutes per part against the budget, one line a part and one for the sum."""
    lines = [f"{'part':<20}{'minutes':>8}{'budget':>8}  outcome"]
    for part in PARTS:
        outcome = outcomes.get(part.name)
        if outcome is None or not (part.tests or part.commands):
            lines.append(f"{part.name:<20}{'-':>8}{part.budget_minutes:>8.0f}  not run")
            continue
        over = "  over its budget" if outcome.minutes > part.budget_minutes else ""
        lines.append(f"{part.name:<20}{outcome.minutes:>8.1f}{part.budget_minutes:>8.0f}  {outcome}{over}")
    minutes = sum(outcome.minutes for outcome in outcomes.values())
    lines.append(f"{'all':<20}{minutes:>8.1f}{sum(part.budget_minutes for part in PARTS):>8.0f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
