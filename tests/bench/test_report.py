"""The table for people and the JSON for programs say the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import orjson
import pytest

from bench.environment import ROOT, Environment, commit_of
from bench.records import RequestRecord, errors_of, failed, streaming_distributions, throughput_figures
from bench.report import WIDTH, Report, check_writable, publish
from srt.core.errors import ConfigError

QUIET = Environment(
    started_utc="2026-01-01T00:00:00+00:00",
    commit="abc",
    versions={"python": "3.11"},
    cpu="Some CPU",
    cores=2,
    memory_gib=8.0,
    load_1min=0.1,
    system="Linux",
)
RECORDS = [
    RequestRecord(
        seconds=1.5,
        prompt_tokens=1200,
        cached_tokens=300,
        output_ids=(1, 2),
        first_token_seconds=1.25,
        token_gaps=(0.25,),
    ),
    failed("queue_full", "the queue holds 1 request"),
]


def report(records: list[RequestRecord], environment: Environment = QUIET) -> Report:
    return Report(
        bench="sample",
        environment=environment,
        options={"seed": 3, "base_url": None, "long": "word " * 40},
        engine={"model": "m", "dtype": "float32", "vocab_size": 99},
        figures=throughput_figures(records, 2.0),
        distributions=streaming_distributions(records),
        errors=errors_of(records),
    )


def line_of(table: str, start: str) -> str:
    (line,) = [line for line in table.splitlines() if line.startswith(start)]
    return line.removeprefix(start)


def test_table() -> None:
    table = report(RECORDS).table()
    assert line_of(table, "Successful requests:").strip() == "1"
    assert line_of(table, "Total input tokens:").strip() == "1,200"
    assert line_of(table, "Output token throughput (tok/s):").strip() == "1.00"
    assert line_of(table, "Cache hit rate:").strip() == "25.0%"
    assert line_of(table, " " * 16).split() == ["mean", "median", "p90", "p95", "p99", "max"]
    assert line_of(table, "TTFT (ms)").split() == ["1,250.00"] * 6
    assert line_of(table, "ITL (ms)").split() == ["250.00"] * 6
    assert line_of(table, "  queue_full").split(maxsplit=1) == ["1", "the queue holds 1 request"]
    assert "model m, dtype float32\n" in table
    assert "base_url" not in table, "what was not given is not shown"
    assert "commit abc" in table
    assert max(map(len, table.splitlines())) == WIDTH


def test_a_table_without_a_success_has_dashes() -> None:
    table = report(RECORDS[1:]).table()
    assert line_of(table, "Output token throughput (tok/s):").strip() == "-"
    assert line_of(table, "TTFT (ms)").split() == ["-"] * 6


def test_a_table_without_a_failure_names_none() -> None:
    assert "by kind" not in report(RECORDS[:1]).table()


def test_a_busy_machine_is_named() -> None:
    assert "busy" not in report(RECORDS).table()
    environment = Environment(*[*(getattr(QUIET, n) for n in QUIET.__slots__[:6]), 5.0, "Linux"])
    assert "busy before the run (load 5 on 2 cores)" in report(RECORDS, environment).table()


def test_json_has_every_number_with_its_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    assert publish(report(RECORDS), path) == 1, "a request failed"
    assert publish(report(RECORDS[:1]), None) == 0
    assert capsys.readouterr().out.count("twinloop bench sample") == 2
    written = orjson.loads(path.read_bytes())
    assert written["bench"] == "sample"
    assert written["environment"]["commit"] == "abc"
    assert written["options"]["seed"] == 3
    assert written["engine"]["vocab_size"] == 99
    assert written["errors"] == {"queue_full": 1}
    assert written["error_examples"] == {"queue_full": "the queue holds 1 request"}
    results = written["results"]
    assert results["output_tok_s"] == 1.0
    assert results["ttft_p50_ms"] == 1250.0
    assert {f"itl_{name}_ms" for name in ("mean", "min", "p50", "p90", "p95", "p99", "max")} <= set(results)


def test_an_unwritable_file_is_found_out_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--json .*/nowhere/a.json cannot be written"):
        check_writable(tmp_path / "nowhere" / "a.json")
    kept = tmp_path / "kept.json"
    kept.write_text("old", encoding="utf-8")
    check_writable(kept)
    check_writable(None)
    check_writable(tmp_path / "new.json")
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
    assert kept.read_text(encoding="utf-8") == "old"


def test_the_environment_of_this_machine() -> None:
    here = Environment.here()
    assert here.cpu
    assert here.cores >= 1
    assert here.memory_gib > 0
    assert {"python", "twinloop", "torch"} <= set(here.versions)


def test_a_commit_is_marked_when_a_file_differs(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert commit_of(tmp_path) is None
    git("init", "-q")
    assert commit_of(tmp_path) is None, "no commit yet"
    (tmp_path / "file").write_text("one", encoding="utf-8")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert commit_of(tmp_path) == commit
    (tmp_path / "file").write_text("two", encoding="utf-8")
    assert commit_of(tmp_path) == commit + "+"


def test_this_checkout_has_a_commit() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    assert commit_of(ROOT) is not None
