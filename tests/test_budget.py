"""`make test` leaves nothing out and counts right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.budget import PARTS, ROOT, Outcome, judge, run, table

TESTS = ROOT / "tests"


def test_every_test_file_belongs_to_one_part() -> None:
    parts = [path for part in PARTS for path in part.tests]
    for file in sorted(TESTS.rglob("test_*.py")):
        inside = file.relative_to(TESTS).as_posix()
        owners = [path for path in parts if inside == path or inside.startswith(path + "/")]
        assert len(owners) == 1, f"{inside} belongs to {owners}"


def test_every_part_names_what_exists() -> None:
    assert [path for part in PARTS for path in part.tests if not (TESTS / path).exists()] == []


def test_budgets_make_an_hour() -> None:
    assert sum(part.budget_minutes for part in PARTS) == 60


@pytest.mark.parametrize(
    ("code", "summary", "expected"),
    [
        (0, "12 passed in 0.10s", Outcome(12, 0, 0)),
        (0, "== 10 passed, 2 skipped, 1 xfailed in 61.20s (0:01:01) ==", Outcome(11, 0, 2)),
        (1, "3 failed, 9 passed, 1 error in 2.00s", Outcome(9, 4, 0)),
        (5, "4 deselected in 0.01s", Outcome(0, 1, 0)),
        (1, "", Outcome(0, 1, 0)),
        (0, "", Outcome(0, 1, 0)),
        (0, None, Outcome(1, 0, 0)),
        (2, None, Outcome(0, 1, 0)),
    ],
)
def test_outcome_of_a_command(code: int, summary: str | None, expected: Outcome) -> None:
    assert judge(code, summary, 0.0) == expected


@pytest.mark.parametrize(
    ("body", "passed", "failed"),
    [
        ("def test_a(): pass\ndef test_b(): assert False", 1, 1),
        ("import os\ndef test_a(): os._exit(0)", 0, 1),
        ("x = 1", 0, 1),
    ],
)
def test_counts_of_a_real_run(tmp_path: Path, body: str, passed: int, failed: int) -> None:
    file = tmp_path / "test_sample.py"
    file.write_text(body, encoding="utf-8")
    pytest_here = str(Path(sys.executable).with_name("pytest"))
    outcome = run((pytest_here, "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(file)))
    assert (outcome.passed, outcome.failed) == (passed, failed)


def test_table_shows_what_is_over() -> None:
    text = table({"install": Outcome(3, 0, 0, 7.0), "engine": Outcome(5, 1, 0, 1.0)})
    rows = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert "over its budget" in rows["install"]
    assert "over its budget" not in rows["engine"]
    assert "5 passed, 1 failed" in rows["engine"]
    assert rows["DSL"].endswith("not run")
    assert rows["all"].split() == ["all", "8.0", "60"]


def test_closing_line_has_no_skips_when_there_are_none() -> None:
    assert str(Outcome(3, 1)) == "3 passed, 1 failed"
    assert str(Outcome(3, 1, 2)) == "3 passed, 1 failed, 2 skipped"


def test_ci_runs_make_test() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert commands[0] == "set -euo pipefail"
    assert commands[-1] == "exec make test </dev/null"
    planned = subprocess.run(
        ["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "tests/budget.py" in planned
