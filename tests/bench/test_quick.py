"""Both benches as users run them, on the default model."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

TWINLOOP = Path(sys.executable).with_name("twinloop")
ONE_THREAD = ("--compute-threads", "1", "--max-total-tokens", "4096")

pytestmark = pytest.mark.e2e


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TWINLOOP, "bench", *words], capture_output=True, text=True, check=False)


def results(path: Path) -> dict[str, Any]:
    written: dict[str, Any] = orjson.loads(path.read_bytes())
    assert written["environment"]["cores"] >= 1
    assert written["errors"] == {}
    figures: dict[str, Any] = written["results"]
    return figures


def test_serving(tmp_path: Path) -> None:
    path = tmp_path / "serving.json"
    ran = bench("serving", "--quick", "--num-prompts", "5", "--json", str(path), *ONE_THREAD)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Output token throughput (tok/s):" in ran.stdout
    assert "TTFT (ms)" in ran.stdout
    figures = results(path)
    assert (figures["successful_requests"], figures["failed_requests"]) == (5, 0)
    assert (figures["input_tokens"], figures["output_tokens"]) == (5 * 32, 5 * 8)
    assert figures["cached_tokens"] == 0, "random prompts share nothing, and the cache was flushed"
    assert 0 < figures["ttft_p50_ms"] <= figures["ttft_max_ms"] <= figures["e2e_max_ms"]
    assert figures["itl_p50_ms"] > 0
    assert figures["output_tok_s"] == pytest.approx(40 / figures["duration_s"])


def test_offline(tmp_path: Path) -> None:
    path = tmp_path / "offline.json"
    words = ("offline", "--quick", "--dataset", "shared-prefix", "--warm-prefix", "--page-size", "1")
    ran = bench(*words, "--num-groups", "1", "--warmup", "0", "--json", str(path), *ONE_THREAD)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Output token throughput (tok/s):" in ran.stdout
    figures = results(path)
    assert (figures["input_tokens"], figures["output_tokens"]) == (4 * 96, 4 * 8)
    assert figures["cached_tokens"] == 4 * 64, "every prefix was warm"


HOST = """\
import signal
from bench.local_server import local_server
from srt.core.config import Config
with local_server(Config.from_flat(compute_threads=1, max_total_tokens=4096)) as url:
    print(url, flush=True)
    signal.pause()
"""


def test_a_server_that_runs_then_refuses_then_is_gone(tmp_path: Path) -> None:
    """What hosts it is told to end by SIGTERM, as a bench may be: its server ends with it."""
    path = tmp_path / "serving.json"
    with subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True) as host:
        try:
            assert host.stdout is not None
            url = host.stdout.readline().strip()
            words = (
                "serving",
                "--quick",
                "--warmup",
                "0",
                "--base-url",
                url,
                "--num-prompts",
                "2",
                "--output-len",
                "2",
            )
            ran = bench(*words, "--json", str(path))
            assert ran.returncode == 0, ran.stdout + ran.stderr
            assert results(path)["output_tokens"] == 4
            ran = bench(*words, "--input-len", "5000", "--json", str(path))
            assert ran.returncode == 1
            assert "the KV pool holds 4096" in ran.stdout
            assert orjson.loads(path.read_bytes())["errors"] == {"invalid_request": 2}
            host.send_signal(signal.SIGTERM)
            assert host.wait() == -signal.SIGINT
        finally:
            host.kill()
    ran = bench(*words)
    assert ran.returncode == 1
    assert f"{url}/server_info does not answer" in ran.stderr
