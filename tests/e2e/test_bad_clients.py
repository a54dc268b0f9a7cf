"""Clients that ask for what cannot be, go away, or reuse an id: nobody else notices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.server_process import ServerProcess, body_of

PROMPT = "Once upon a time there was a"

BAD: list[tuple[str, dict[str, Any] | bytes, str]] = [
    ("/generate", {"text": ""}, "text"),
    ("/generate", {"input_ids": []}, "input_ids"),
    ("/generate", {"input_ids": [10**9]}, "1000000000"),
    ("/generate", {"input_ids": [-1]}, "-1"),
    ("/generate", {"input_ids": [49152]}, "49152"),
    ("/generate", {"input_ids": [504] * 8192}, "8192"),
    ("/generate", {"input_ids": [504] * 5000}, "5000 tokens, the KV pool holds 4096"),
    ("/generate", body_of("a", max_new_tokens=4096), "4097"),
    ("/generate", body_of("a", frequency_penalty=1), "frequency_penalty"),
    ("/generate", b'{"text": "a", "sampling_params": {"temperature": NaN}}', "JSON"),
    ("/generate", b'{"text": "a", ', "JSON"),
    ("/generate", b'{"text": "\\ud83d"}', "JSON"),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"10000000": 1}}, "logit_bias"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 0, "echo": True}, "echo"),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": None}]}, "content"),
]


def test_b28_b34_b35_b38_bad_requests_leave_a_stream_beside_them_unharmed(server: ServerProcess) -> None:
    expected = server.gen(PROMPT, max_new_tokens=32)
    with server.stream("/generate", body_of(PROMPT, max_new_tokens=32)) as events:
        next(events)
        for path, body, words in BAD:
            content = {"content": body} if isinstance(body, bytes) else {"json": body}
            response = server.http.post(path, headers={"content-type": "application/json"}, **content)
            assert response.status_code == 400, (path, body, response.text)
            assert words in response.json()["error"]["message"], (path, body, response.text)
        *_, last, _ = events
    assert last["output_ids"] == expected["output_ids"]


def test_b29_prompts_around_the_context_limit_are_answered_or_refused_with_numbers(
    small_server: ServerProcess,
) -> None:
    """The pool is the limit here: 256 tokens."""
    for length, new, status in ((250, 6, 200), (250, 7, 400), (255, 1, 200), (256, 1, 400), (300, 1, 400)):
        response = small_server.http.post("/generate", json=body_of([504] * length, max_new_tokens=new))
        assert response.status_code == status, response.text
        if status == 400:
            message = response.json()["error"]["message"]
            assert str(length) in message
            assert "256" in message


def test_b23_a_client_that_leaves_takes_its_request_with_it(server: ServerProcess) -> None:
    long = body_of(PROMPT, max_new_tokens=2000)
    aborted = server.stats()["aborted_total"]
    with server.stream("/generate", long) as events:
        next(events)
    server.until(num_running_reqs=0)
    for stream in (True, False):
        connection = server.raw_post("/generate", {**long, "stream": stream})
        server.until(num_running_reqs=1)
        connection.close()
        server.until(num_running_reqs=0)
    assert server.stats()["aborted_total"] == aborted + 3


def test_b23_a_client_that_leaves_while_it_waits_and_a_full_queue(small_server: ServerProcess) -> None:
    """Four may run, four may wait."""
    long = body_of(PROMPT, max_new_tokens=40)
    running = [small_server.raw_post("/generate", {**long, "stream": True}) for _ in range(4)]
    small_server.until(num_running_reqs=4)
    waiting = [small_server.raw_post("/generate", {**long, "stream": stream}) for stream in (True, False) * 2]
    small_server.until(num_queue_reqs=4)
    for stream in (True, False):
        refused = small_server.http.post("/generate", json={**long, "stream": stream})
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "queue_full"
        assert "4" in refused.json()["error"]["message"]
    for connection in waiting:
        connection.close()
    small_server.until(num_queue_reqs=0)
    for connection in running:
        connection.close()


def test_b25_two_live_requests_never_share_an_id(server: ServerProcess) -> None:
    expected = server.gen(PROMPT, max_new_tokens=16)
    with server.stream("/generate", {**body_of(PROMPT, max_new_tokens=16), "rid": "x"}) as events:
        next(events)
        second = server.http.post("/generate", json={**body_of("other", max_new_tokens=1), "rid": "x"})
        assert second.status_code == 400
        assert "'x'" in second.json()["error"]["message"]
        *_, last, _ = events
    assert last["output_ids"] == expected["output_ids"]


def test_b26_an_id_reused_after_an_abort_gets_its_own_answer(server: ServerProcess) -> None:
    expected = server.gen("The sky is", max_new_tokens=2)["output_ids"]
    first = {**body_of(PROMPT, max_new_tokens=1000), "rid": "x"}
    with ThreadPoolExecutor(1) as pool:
        for _ in range(10):
            running = pool.submit(server.http.post, "/generate", json=first)
            while not server.http.post("/abort_request", json={"rid": "x"}).json()["aborted"]:
                pass
            answer = running.result()
            assert answer.json()["meta_info"]["finish_reason"]["type"] == "abort"
            again = server.http.post(
                "/generate", json={**body_of("The sky is", max_new_tokens=2), "rid": "x"}
            )
            assert again.json()["output_ids"] == expected


def test_corner_21_b13_a_flush_while_busy_is_refused_and_harms_nothing(server: ServerProcess) -> None:
    expected = server.gen(PROMPT, max_new_tokens=16)
    with server.stream("/generate", body_of(PROMPT, max_new_tokens=16)) as events:
        next(events)
        refused = server.http.post("/flush_cache")
        assert refused.status_code == 409
        assert refused.json()["error"]["message"]
        *_, last, _ = events
    assert last["output_ids"] == expected["output_ids"]


@pytest.mark.parametrize("path", ["/metrics", "/server_info", "/v1/models"])
def test_the_server_tells_about_itself_while_it_works(server: ServerProcess, path: str) -> None:
    with server.stream("/generate", body_of(PROMPT, max_new_tokens=8)) as events:
        next(events)
        response = server.http.get(path)
        assert response.status_code == 200
        if path == "/metrics":
            assert 'num_running_reqs{model_name="smollm2-135m-instruct"} 1.0' in response.text
        list(events)
