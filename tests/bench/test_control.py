"""`twinloop bench control`: its options, its figures, and that it measures what it says."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from bench.control import INSTANT, ControlOptions, Stage, main
from srt.core.errors import ConfigError


def test_the_stage_keeps_as_many_running_and_waiting_as_asked() -> None:
    stage = Stage(8, ControlOptions((8,), 20, "lpm", 16, 1, seed=1))
    stage.fill()
    for _ in range(300):
        assert stage.step() > 0
        stats = stage._control.stats()
        assert stats.num_running_reqs + stats.num_queue_reqs <= 28
    assert stats.finished_total > 10 and stats.num_queue_reqs >= 19
    assert stats.cached_tokens_total > 0
    assert stats.device_busy_seconds_total < 300 * 1e-5 + INSTANT.fixed_seconds, "the device takes no time"


def test_a_run_prints_a_table_and_writes_keys_with_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "control.json"
    assert main(["--running", "2", "8", "--waiting", "10", "--quick", "--json", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "8 run (us)" in shown and "power of growth from 2 to 8" in shown
    results = orjson.loads(path.read_bytes())["results"]
    assert 0 < results["control_2_p50_us"] <= results["control_2_max_us"]
    assert results["control_8_p99_us"] > 0 and "growth_power" in results


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--running", "0"], "--running is 0, it must be at least 1"),
        (["--waiting", "-1"], "--waiting is -1"),
        (["--page-size", "0"], "--page-size is 0"),
        (["--seed", "-1"], "--seed is -1"),
    ],
)
def test_bad_sizes_are_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        main(words)
