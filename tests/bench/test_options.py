"""A command line becomes a run, or one message that says what is wrong with it."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import offline, serving
from bench.command import BENCHES, help_text, main
from bench.local_server import local_server, option_words
from bench.options import RunOptions, parse_run, workload_parser
from bench.workloads import WORKLOADS, MultiTurnWorkload, RandomWorkload, SharedPrefixWorkload
from srt.core.config import Config
from srt.core.errors import ConfigError, EngineFailure
from srt.server.arguments import parse_config, serve_parser

TWINLOOP = Path(sys.executable).with_name("twinloop")


def run_of(*words: str) -> RunOptions:
    return parse_run(serving.serving_parser(), words)


@pytest.mark.parametrize(
    ("words", "dataset", "workload"),
    [
        ([], "random", RandomWorkload()),
        (["--input-len", "3"], "random", RandomWorkload(input_len=3)),
        (["--dataset", "shared-prefix"], "shared-prefix", SharedPrefixWorkload()),
        (["--dataset", "multi-turn", "--num-turns", "2"], "multi-turn", MultiTurnWorkload(num_turns=2)),
        (["--preset", "single-stream"], "random", RandomWorkload(4, 128, 128)),
        (["--preset", "single-stream", "--output-len", "9"], "random", RandomWorkload(4, 128, 9)),
        (
            ["--preset", "long-prefix", "--no-warm-prefix"],
            "shared-prefix",
            SharedPrefixWorkload(1, 32, 1800, 20, 16),
        ),
        (["--quick"], "random", RandomWorkload(8, 32, 8)),
        (["--quick", "--num-prompts", "100"], "random", RandomWorkload(100, 32, 8)),
        (["--quick", "--preset", "prefix-groups"], "shared-prefix", SharedPrefixWorkload(2, 4, 64, 32, 8)),
    ],
)
def test_sizes_come_from_options_then_quick_then_preset_then_dataset(
    words: list[str], dataset: str, workload: object
) -> None:
    run = run_of(*words)
    assert (run.dataset, run.workload) == (dataset, workload)


@pytest.mark.parametrize(
    ("words", "concurrency", "rate"),
    [
        ([], 16, math.inf),
        (["--preset", "long-prefix"], 8, math.inf),
        (["--preset", "long-prefix", "--max-concurrency", "3"], 3, math.inf),
        (["--quick"], 4, math.inf),
        (["--quick", "--preset", "single-stream"], 1, math.inf),
        (["--quick", "--max-concurrency", "64", "--request-rate", "2.5"], 64, 2.5),
    ],
)
def test_load(words: list[str], concurrency: int, rate: float) -> None:
    load = serving._load_options(run_of(*words))
    assert (load.max_concurrency, load.request_rate) == (concurrency, rate)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--dataset", "shared-prefix", "--num-prompts", "4"],
            "--num-prompts is no option of .*shared-prefix",
        ),
        (["--num-turns", "4"], "--num-turns is no option of --dataset random, which has --num-prompts"),
        (["--preset", "single-stream", "--dataset", "multi-turn"], "of --dataset random, not multi-turn"),
        (["--output-len", "0"], "--output-len is 0, it must be at least 1"),
        (["--seed", "-1"], "--seed is -1"),
        (["--warmup", "-1"], "--warmup is -1"),
        (["--timeout", "0"], "--timeout is 0"),
        (["--timeout", "nan"], "--timeout is nan"),
        (["--json", "/nowhere/at/all.json"], "--json /nowhere/at/all.json cannot be written"),
        (["--page-size", "0"], "--page-size is 0"),
        (["--max-concurrency", "0"], "--max-concurrency is 0"),
        (["--base-url", "localhost:1"], "--base-url is 'localhost:1'"),
        (
            ["--base-url", "http://localhost:1", "--dtype", "float32"],
            "--dtype is for a server that the bench",
        ),
        (["--base-url", "http://localhost:1", "--no-radix-cache"], "--no-radix-cache is for a server"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        serving.main(words)


def test_a_quick_run_warms_up_less() -> None:
    assert (run_of().warmup, run_of("--quick").warmup, run_of("--quick", "--warmup", "0").warmup) == (2, 1, 0)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(SystemExit):
        run_of("--port", "3")


def test_an_offline_run_has_room_for_its_list_and_runs_as_many_as_its_preset() -> None:
    parser = workload_parser("offline", "", offline.DATASETS)
    schedule = offline.engine_config(parse_run(parser, ["--num-prompts", "5000"])).schedule
    assert (schedule.max_queued_requests, schedule.max_running_requests) == (5000, 64)
    one = offline.engine_config(parse_run(parser, ["--preset", "single-stream"])).schedule
    assert one.max_running_requests == 1
    words = ["--preset", "single-stream", "--max-running-requests", "7"]
    assert offline.engine_config(parse_run(parser, words)).schedule.max_running_requests == 7


def test_offline_has_no_dataset_whose_prompts_depend_on_answers() -> None:
    assert set(WORKLOADS) - set(offline.DATASETS) == {"multi-turn"}
    with pytest.raises(SystemExit):
        offline.main(["--dataset", "multi-turn"])


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"model": "a b", "dtype": "float32", "compute_threads": 1},
        {"radix_cache": False, "page_size": 1, "mem_fraction": 0.125, "schedule_policy": "lpm"},
    ],
)
def test_a_server_gets_the_options_that_the_bench_got(values: dict[str, Any]) -> None:
    config = Config.from_flat(**values)
    assert parse_config(serve_parser(), option_words(config))[0] == config
    assert len(option_words(config)) >= len(values)


def test_the_list_of_benches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == (help_text() + "\n") * 2
    assert all(f"  {name:<13}{bench.summary}" in help_text() for name, bench in BENCHES.items())
    assert main(["servin"]) == 2
    assert f"'servin'; there are: {', '.join(BENCHES)}" in capsys.readouterr().err


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(importlib.import_module(BENCHES[name].module).main)
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: twinloop bench {name}")
    assert all(f"  {option}" in shown for option in ("--quick", "--json FILE", "--seed N"))


@pytest.mark.parametrize("name", ["serving", "offline"])
def test_a_bench_of_a_model_names_its_workloads(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert "  single-stream: random, num_prompts 4" in capsys.readouterr().out


def test_the_list_of_benches_loads_no_bench() -> None:
    code = "import sys, bench.command as c; c.main(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not any(f"'{name}'" in ran.stderr for name in ("numpy", "httpx", "torch", "bench.serving"))


@pytest.mark.e2e
def test_a_server_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(EngineFailure, match=r"(?s)exit code 1 before it was ready:.*no-such-model\.gguf"),
        local_server(Config.from_flat(model="/no-such-model.gguf")),
    ):
        pytest.fail("it is ready")
