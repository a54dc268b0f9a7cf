from __future__ import annotations

import asyncio

from srt.core.errors import EngineFailure
from tests.fakes import ECHO_READY
from tests.server.api_desk import ApiDesk, default_tokenizer, with_api

LONG = {"text": "one two three", "sampling_params": {"ignore_eos": True, "max_new_tokens": 200}}


def test_a_flush_is_refused_while_there_is_work() -> None:
    async def scenario(desk: ApiDesk) -> None:
        desk.engine.held = True
        running = asyncio.create_task(desk.post("/generate", LONG))
        await desk.until(lambda: desk.engine.num_running == 1)
        refused = await desk.http.post("/flush_cache")
        assert refused.status_code == 409
        assert "1 requests run" in refused.json()["error"]["message"]
        desk.engine.release()
        assert (await running).status_code == 200
        assert (await desk.http.post("/flush_cache")).json() == {"success": True, "flushed_tokens": 32}
        assert (await desk.http.get("/flush_cache")).status_code == 200

    with_api(scenario)


def test_an_abort_ends_exactly_one_request_with_its_partial_answer() -> None:
    async def scenario(desk: ApiDesk) -> None:
        desk.engine.held = True
        one = asyncio.create_task(desk.post("/generate", {**LONG, "rid": "1"}))
        ten = asyncio.create_task(desk.post("/generate", {**LONG, "rid": "10"}))
        await desk.until(lambda: desk.engine.num_running == 2)
        assert (await desk.post("/abort_request", {"rid": "none"})).json() == {"aborted": 0}
        assert (await desk.post("/abort_request", {"rid": "1"})).json() == {"aborted": 1}
        answer = await one
        assert answer.status_code == 200
        assert answer.json()["meta_info"]["finish_reason"]["type"] == "abort"
        assert not ten.done()
        assert (await desk.post("/abort_request", {"abort_all": True})).json() == {"aborted": 1}
        assert (await ten).json()["meta_info"]["finish_reason"]["type"] == "abort"
        for body in ({}, {"rid": "1", "abort_all": True}, {"rid": 1}):
            assert (await desk.post("/abort_request", body)).status_code == 400

    with_api(scenario)


def test_corner_30_a_dead_engine_ends_streams_with_an_error_and_turns_health() -> None:
    async def scenario(desk: ApiDesk) -> None:
        desk.engine.held = True
        streams = [
            asyncio.create_task(desk.events(path, body))
            for path, body in (("/generate", LONG), ("/v1/completions", {"prompt": "a", "max_tokens": 100}))
        ]
        whole = asyncio.create_task(desk.post("/generate", LONG))
        await desk.until(lambda: desk.engine.num_running == 3)
        await desk.until(lambda: all(stream.accepted for stream in desk.frontend.client._streams.values()))
        desk.engine.close()
        desk.frontend.client.disconnect(EngineFailure("the engine process was ended by SIGKILL"))
        for events in await asyncio.gather(*streams):
            assert "SIGKILL" in events[-1]["error"]["message"]
        assert (await whole).status_code == 503
        health = await desk.http.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "dead"})
        refused = await desk.post("/generate", {**LONG, "stream": True})
        assert refused.status_code == 503
        assert refused.json()["error"]["retryable"] is True
        info = (await desk.http.get("/server_info")).json()
        assert (info["state"], info["stats"]) == ("dead", None)
        assert 'engine_up{model_name="echo"} 0.0' in (await desk.http.get("/metrics")).text
        desk.frontend.client.connect(desk.engine, ECHO_READY)
        desk.engine.release()

    with_api(scenario)


def test_server_info_tells_options_limits_and_state() -> None:
    async def scenario(desk: ApiDesk) -> None:
        info = (await desk.http.get("/server_info")).json()
        assert info["state"] == "ready"
        assert info["max_total_num_tokens"] == info["engine"]["max_total_tokens"] == 512
        assert info["config"]["cache"]["page_size"] == 16
        assert info["stats"]["num_running_reqs"] == 0
        assert info["version"]

    with_api(scenario)


def test_metrics_have_the_names_that_users_know() -> None:
    async def scenario(desk: ApiDesk) -> None:
        await desk.post("/generate", {"text": "one two", "sampling_params": {"max_new_tokens": 3}})
        response = await desk.http.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        for name in (
            'num_running_reqs{model_name="echo"} 0.0',
            'num_queue_reqs{model_name="echo"} 0.0',
            'token_usage{model_name="echo"} 0.0',
            'cache_hit_rate{model_name="echo"} 0.0',
            'gen_throughput{model_name="echo"} 0.3',
            'engine_up{model_name="echo"} 1.0',
            'time_to_first_token_seconds_count{model_name="echo"} 1.0',
            'inter_token_latency_seconds_count{model_name="echo"} 2.0',
            'e2e_request_latency_seconds_count{model_name="echo"} 1.0',
            'prompt_tokens_total{model_name="echo"} 0.0',
            'generation_tokens_total{model_name="echo"} 0.0',
        ):
            assert f"twinloop:{name}" in response.text, name

    with_api(scenario)


def test_tokens_go_both_ways() -> None:
    async def scenario(desk: ApiDesk) -> None:
        ids = default_tokenizer().encode("one ☃").tolist()
        assert (await desk.post("/tokenize", {"prompt": "one ☃"})).json() == {
            "tokens": ids,
            "count": len(ids),
        }
        many = (await desk.post("/tokenize", {"prompt": ["one ☃", ""]})).json()
        assert many == {"tokens": [ids, []], "count": [len(ids), 0]}
        assert (await desk.post("/detokenize", {"tokens": ids})).json() == {"text": "one ☃"}
        assert (await desk.post("/detokenize", {"tokens": [ids, []]})).json() == {"text": ["one ☃", ""]}
        refused = await desk.post("/detokenize", {"tokens": [10**6]})
        assert refused.status_code == 400
        assert "1000000" in refused.json()["error"]["message"]

    with_api(scenario)


def test_unknown_paths_and_methods_are_errors_in_json() -> None:
    async def scenario(desk: ApiDesk) -> None:
        for method, path, status in (
            ("GET", "/nothing", 404),
            ("GET", "/generate", 405),
            ("DELETE", "/health", 405),
        ):
            response = await desk.http.request(method, path)
            assert response.status_code == status
            assert path in response.json()["error"]["message"]

    with_api(scenario)


def test_while_draining_new_requests_are_refused_and_old_ones_finish() -> None:
    async def scenario(desk: ApiDesk) -> None:
        desk.engine.held = True
        old = asyncio.create_task(desk.events("/generate", LONG))
        await desk.until(lambda: desk.engine.num_running == 1)
        desk.frontend.client.drain()
        for stream in (True, False):
            response = await desk.post("/generate", {**LONG, "stream": stream})
            assert response.status_code == 503
            assert "shutting down" in response.json()["error"]["message"]
        assert (await desk.http.get("/health")).json() == {"status": "draining"}
        desk.engine.release()
        assert (await old)[-1]["meta_info"]["completion_tokens"] == 200

    with_api(scenario)


def test_health_answers_a_head_and_the_document_names_each_operation_once() -> None:
    async def scenario(desk: ApiDesk) -> None:
        assert (await desk.http.head("/health")).status_code == 200
        assert (await desk.http.put("/generate", json={"text": "one"})).status_code == 200
        document = (await desk.http.get("/openapi.json")).json()  # a duplicate would warn, and fail
        assert set(document["paths"]["/generate"]) == {"post"}

    with_api(scenario)


def test_more_answers_than_the_engine_takes_in_are_refused_for_good() -> None:
    async def scenario(desk: ApiDesk) -> None:
        refused = await desk.post("/generate", {"text": ["one"] * 1100})
        assert refused.status_code == 400
        assert "1100 answers" in refused.json()["error"]["message"]
        assert "1088" in refused.json()["error"]["message"]

    with_api(scenario)
