"""Pause, continue, flush and time limits on a real server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.server_process import ServerProcess, body_of

PROMPT = "The quick brown fox jumps over the lazy dog and then"


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_stream_goes_on_behind_a_pause_as_if_nothing_had_been(server: ServerProcess, mode: str) -> None:
    expected = server.gen(PROMPT, max_new_tokens=12)["output_ids"]
    with server.stream("/generate", body_of(PROMPT, max_new_tokens=12)) as events:
        next(events)
        paused = server.http.post("/pause_generation", json={"mode": mode})
        assert paused.status_code == 200
        assert paused.json()["num_running"] + paused.json()["num_waiting"] <= 1
        steps = server.stats()["steps_total"]
        assert server.stats()["is_paused"]
        if mode == "retract":
            assert server.http.post("/flush_cache").status_code == 200, "who waits holds nothing of the cache"
        assert server.stats()["steps_total"] == steps
        assert server.http.post("/continue_generation").json()["was_paused"]
        *_, last, _ = events
    assert last["output_ids"] == expected


def test_an_aborting_pause_ends_streams_and_lets_new_requests_wait(server: ServerProcess) -> None:
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(server.gen, PROMPT, max_new_tokens=500)
        server.until(num_running_reqs=1)
        assert server.http.post("/pause_generation").json()["mode"] == "abort"
        assert running.result()["meta_info"]["finish_reason"]["type"] == "abort"
        late = pool.submit(server.gen, PROMPT, max_new_tokens=2)
        server.until(num_queue_reqs=1)
        assert server.http.post("/continue_generation").status_code == 200
        assert len(late.result()["output_ids"]) == 2


def test_a_flush_can_wait_for_the_work_to_end(server: ServerProcess) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.gen, PROMPT, max_new_tokens=8)
        server.until(num_running_reqs=1)
        flushed = server.http.post("/flush_cache", params={"timeout": 60})
        assert flushed.status_code == 200 and flushed.json()["flushed_tokens"] > 0
        assert len(running.result()["output_ids"]) == 8


@pytest.mark.slow
def test_time_limits_are_503s_that_say_when_to_try_again(start: Callable[..., ServerProcess]) -> None:
    server = start(
        *("--max-running-requests", "1", "--waiting-timeout", "0.5", "--running-timeout", "2"),
        *("--max-total-tokens", "2048"),
    ).wait_ready()
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(server.http.post, "/generate", json=body_of(PROMPT, max_new_tokens=1500))
        server.until(num_running_reqs=1)
        waiting = pool.submit(server.http.post, "/v1/completions", json={"prompt": "a", "max_tokens": 4})
        for answer, option in (
            (waiting.result(), "--waiting-timeout"),
            (running.result(), "--running-timeout"),
        ):
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
            assert option in answer.json()["error"]["message"]
    server.until(num_slots_in_use=0)
