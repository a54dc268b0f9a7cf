"""Starting, ending, and dying of either process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from compute_loop.models.files import DEFAULT_MODEL, locate_model
from tests.e2e.server_process import ServerProcess, body_of, children, wait_for_end

pytestmark = pytest.mark.slow

Start = Callable[..., ServerProcess]

LONG = body_of("Once upon a time", max_new_tokens=2000)


def assert_port_is_free(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_b76_sigterm_drains_running_streams_and_refuses_new_requests(start: Start) -> None:
    server = start("--max-total-tokens", "2048", "--log-requests").wait_ready()
    engine = server.engine_pid
    with server.stream(
        "/generate", {**body_of("Once upon a time", max_new_tokens=24), "rid": "r1"}
    ) as events:
        next(events)
        server.signal(signal.SIGTERM)
        while server.http.get("/health").json()["status"] != "draining":
            pass
        refused = server.http.post("/generate", json=body_of("x", max_new_tokens=1))
        assert refused.status_code == 503
        assert "shutting down" in refused.json()["error"]["message"]
        rest = list(events)
    assert rest[-1] == "[DONE]"
    assert rest[-2]["meta_info"]["completion_tokens"] == 24
    assert server.wait() == 0
    (line,) = [line for line in server.log.splitlines() if "rid=r1" in line]
    assert "completion_tokens=24" in line
    assert line.endswith("finish=length")
    wait_for_end(engine)
    assert_port_is_free(server.port)


def test_b76_a_stream_that_is_not_done_in_time_ends_as_aborted(start: Start) -> None:
    server = start("--max-total-tokens", "4096", "--drain-timeout", "0").wait_ready()
    with server.stream("/generate", LONG) as events:
        next(events)
        server.signal(signal.SIGINT)
        rest = list(events)
    assert rest[-1] == "[DONE]"
    assert rest[-2]["meta_info"]["finish_reason"]["type"] == "abort"
    assert server.wait() == 0
    assert_port_is_free(server.port)


def test_corner_30_a_killed_engine_ends_streams_and_a_new_one_takes_over_but_not_for_ever(
    start: Start,
) -> None:
    server = start("--max-total-tokens", "4096", "--max-restarts", "1").wait_ready()
    engine = server.engine_pid
    with (
        server.stream("/generate", LONG) as native,
        server.stream("/v1/completions", {"prompt": "Once", "max_tokens": 1000}) as openai,
    ):
        next(native)
        next(openai)
        os.kill(engine, signal.SIGKILL)
        for events in (native, openai):
            *_, error, done = events
            assert done == "[DONE]"
            assert "SIGKILL" in error["error"]["message"]
    health = server.http.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "dead")
    refused = server.http.post("/generate", json=body_of("x", max_new_tokens=1))
    assert refused.status_code == 503
    assert refused.json()["error"]["retryable"] is True
    while server.http.get("/health").status_code != 200:
        pass
    assert server.engine_pid != engine
    server.assert_alive_and_drained()
    os.kill(server.engine_pid, signal.SIGKILL)
    assert server.wait() == 1
    assert "--max-restarts is 1" in server.log
    assert "Traceback" not in server.log


def test_corner_30_a_killed_parent_takes_its_engine_with_it(start: Start) -> None:
    server = start("--max-total-tokens", "1024").wait_ready()
    engine = server.engine_pid
    server.signal(signal.SIGKILL)
    server.wait()
    wait_for_end(engine)
    assert_port_is_free(server.port)


def test_corner_30_a_server_that_is_ended_while_it_loads_leaves_nothing(start: Start) -> None:
    server = start()
    while not (engines := children(server.process.pid)):
        assert server.process.poll() is None
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    wait_for_end(engines[0])


def test_corner_30_a_stopped_parent_does_not_stop_the_engine(server: ServerProcess) -> None:
    expected = server.gen("Once upon a time", max_new_tokens=24)["output_ids"]
    generated = server.stats()["generation_tokens_total"]
    with server.stream("/generate", body_of("Once upon a time", max_new_tokens=24)) as events:
        next(events)
        server.signal(signal.SIGSTOP)
        with contextlib.suppress(httpx.ReadTimeout):
            httpx.get(f"{server.url}/health", timeout=1)
        server.signal(signal.SIGCONT)
        *_, last, done = events
    assert done == "[DONE]"
    assert last["output_ids"] == expected
    assert server.stats()["generation_tokens_total"] == generated + 24


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "/no/such/model.gguf"], "/no/such/model.gguf"),
        (["--page-size", "0"], "--page-size is 0"),
        (["--max-total-tokens", "8"], "--max-total-tokens 8"),
        (["--chat-template", "/no/such/file"], "/no/such/file"),
        (["--host", "203.0.113.1"], "203.0.113.1"),
    ],
)
def test_what_keeps_a_server_from_starting_is_one_clear_line(
    start: Start, options: list[str], words: str
) -> None:
    server = start(*options)
    assert server.wait() == 1
    (line,) = [line for line in server.log.splitlines() if line.startswith("twinloop: ")]
    assert words in line
    assert "Traceback" not in server.log


def test_a_port_in_use_is_one_clear_line(server: ServerProcess, start: Start) -> None:
    second = start("--port", str(server.port))
    assert second.wait() == 1
    assert f"port {server.port}" in second.log
    assert "in use" in second.log
    assert "Traceback" not in second.log


def test_an_error_of_loading_in_the_engine_process_reaches_the_user(start: Start, tmp_path: Path) -> None:
    """The tokenizer is whole, the weights are not: only the engine process can know."""
    whole = locate_model(DEFAULT_MODEL).weight_files[0].read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: len(whole) // 2])
    server = start("--model", str(cut))
    assert server.wait() == 1
    (line,) = [line for line in server.log.splitlines() if line.startswith("twinloop: ")]
    assert "cut.gguf" in line
    assert "Traceback" not in server.log
