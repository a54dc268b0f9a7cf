"""`twinloop bench radix`: its traces do what they say, and its figures and pictures are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from bench.radix import OPERATIONS, main
from bench.radix_trace import OUTPUT_TOKENS, LockTimer, Requests, Trace, TraceOptions
from bench.radix_workloads import BigTree, TreeSizes, long_prompt, memory_left
from srt.core.errors import ConfigError

SMALL = TraceOptions(300, 5, 60_000, 1, "lru", seed=3)
SIZES = TreeSizes(4000, 4, 5, 3, 1, "lru", seed=3)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("is_sessions", [False, True])
def test_a_trace_keeps_every_page_and_leaves_nothing_locked(page_size: int, is_sessions: bool) -> None:
    trace = Trace(replace(SMALL, page_size=page_size, is_sessions=is_sessions))
    trace.play()
    trace.cache.check_integrity()
    assert trace.cache.num_protected == 0
    assert trace.cache.num_pages == trace._pool.num_used
    assert len(trace.nanoseconds["evict"]) > 0, "the cache was too small, as it should be"
    assert 0 < trace.matched_tokens < trace.prompt_tokens
    counts = {name: len(times) for name, times in trace.nanoseconds.items() if name != "evict"}
    assert counts == {"match": 300, "lock": 600, "unlock": 600, "insert prompt": 300, "insert finish": 300}


def test_half_of_the_requests_of_sessions_go_on_with_what_was_answered() -> None:
    requests = Requests(replace(SMALL, is_sessions=True))
    turns: list[int] = []
    answers: set[bytes] = set()
    for prompt, turn in requests:
        turns.append(turn)
        if turn > 1:
            assert any(prompt.tobytes().startswith(answer) for answer in answers)
        whole = requests.answer(prompt, turn)
        assert OUTPUT_TOKENS[0] <= len(whole) - len(prompt) <= OUTPUT_TOKENS[1]
        answers.add(whole.tobytes())
    assert 100 < sum(turn > 1 for turn in turns) < 200


def test_the_lock_is_timed_at_every_operation() -> None:
    timer = LockTimer()
    trace = Trace(SMALL, timer)
    trace.play()
    assert len(timer.nanoseconds) >= trace.num_operations
    assert sum(timer.nanoseconds) / 1e9 < trace.seconds


def test_what_the_operations_of_a_big_tree_cost() -> None:
    tree = BigTree(SIZES)
    assert tree.num_nodes == 4 * 6
    assert tree.bytes_per_node > 200
    assert len(tree.insert()) == len(tree.match()) == 3
    paused, full = tree.collector_pauses()
    assert paused > 0 and full > 0
    tree.cache.check_integrity()
    micros, left = tree.evict()
    assert micros > 0 and left == 0 and tree.cache.num_pages == 0


def test_a_long_prompt_is_found_in_one_node_and_in_many() -> None:
    found = long_prompt(SIZES)
    assert found.num_tokens == 4000
    assert 0 < found.one_node_us < found.chain_us


def test_an_emptied_tree_holds_no_memory() -> None:
    assert memory_left(replace(SIZES, repeats=50)) < 4000, "less than one prompt's ids"


def test_a_run_writes_keys_with_units_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, picture = tmp_path / "radix.json", tmp_path / "radix.png"
    assert main(["--quick", "--requests", "200", "--json", str(path), "--plot", str(picture)]) == 0
    assert "lock held (us)" in capsys.readouterr().out
    results = orjson.loads(path.read_bytes())["results"]
    names = {f"trace_{name.replace(' ', '_')}_p50_us" for name in OPERATIONS if name != "evict"}
    names |= {
        "match_tok_s",
        "trace_ops_s",
        "sessions_req_s",
        "lock_held_p99_us",
        "node_bytes",
        "gc_pause_max_ms",
    }
    assert names <= {name for name, value in results.items() if value}
    assert results["nodes_left"] == 0
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--page-size", "0"], "--page-size is 0, it must be from 1 to 64"),
        (["--requests", "0"], "--requests is 0"),
        (["--seed", "-1"], "--seed is -1"),
        (["--plot", "a.gif"], "--plot a.gif has the ending '.gif', it must be one of .png, .svg, .pdf"),
        (["--plot", "/nowhere/a.png"], "--plot /nowhere/a.png cannot be written"),
    ],
)
def test_bad_options_are_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        main(words)
