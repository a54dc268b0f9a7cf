from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.fakes import ECHO_READY
from tests.server.api_desk import ApiDesk, default_tokenizer, with_api

GREEDY = {"temperature": 0, "ignore_eos": True}


def text_of(ids: list[int]) -> str:
    return default_tokenizer().decode(ids)


def ids_of(text: str) -> list[int]:
    return default_tokenizer().encode(text).tolist()  # type: ignore[no-any-return]


def test_text_and_ids_give_the_same_answer_in_the_documented_shape() -> None:
    prompt = ids_of("one two three four")

    async def scenario(desk: ApiDesk) -> None:
        sampling = {**GREEDY, "max_new_tokens": len(prompt)}
        by_text = await desk.post("/generate", {"text": "one two three four", "sampling_params": sampling})
        by_ids = await desk.post(
            "/generate", {"input_ids": prompt, "sampling_params": sampling, "rid": "my-id"}
        )
        answer = by_ids.json()
        assert by_text.status_code == by_ids.status_code == 200
        assert by_text.json()["text"] == answer["text"] == "one two three four"
        assert answer["output_ids"] == prompt
        meta = answer["meta_info"]
        assert meta.pop("e2e_latency") > 0
        assert meta == {
            "id": "my-id",
            "finish_reason": {"type": "length", "length": len(prompt)},
            "prompt_tokens": len(prompt),
            "completion_tokens": len(prompt),
            "cached_tokens": 0,
            "num_retractions": 0,
        }

    with_api(scenario)


def test_streams_are_cumulative_and_end_like_the_whole_answer() -> None:
    async def scenario(desk: ApiDesk) -> None:
        body = {"text": "naïve ☃ 日本語 👩‍👩‍👧", "sampling_params": {**GREEDY, "max_new_tokens": 40}}
        whole = (await desk.post("/generate", body)).json()
        events = await desk.events("/generate", body)
        for before, after in itertools.pairwise(events):
            assert after["text"].startswith(before["text"])
            assert before["meta_info"]["finish_reason"] is None
        for event in events[:-1]:
            assert "\ufffd" not in event["text"]
        for answer in (whole, events[-1]):
            del answer["meta_info"]["e2e_latency"], answer["meta_info"]["id"]
        assert events[-1] == whole

    with_api(scenario)


def test_a_batch_keeps_its_order_parameters_and_ids() -> None:
    async def scenario(desk: ApiDesk) -> None:
        body = {
            "text": ["alpha beta", "gamma"],
            "sampling_params": [{**GREEDY, "max_new_tokens": 1}, {**GREEDY, "max_new_tokens": 3}],
            "rid": ["r0", "r1"],
        }
        answers = (await desk.post("/generate", body)).json()
        assert [answer["meta_info"]["id"] for answer in answers] == ["r0", "r1"]
        assert [answer["meta_info"]["completion_tokens"] for answer in answers] == [1, 3]
        events = await desk.events("/generate", body)
        last = {event["index"]: event for event in events}
        assert [last[index]["text"] for index in (0, 1)] == [answer["text"] for answer in answers]
        finishes = [event for event in events if event["meta_info"]["finish_reason"] is not None]
        assert sorted(event["index"] for event in finishes) == [0, 1]

    with_api(scenario)


def test_b45_n_gives_choices_with_seeds_of_their_own() -> None:
    async def scenario(desk: ApiDesk) -> None:
        sampling = {**GREEDY, "max_new_tokens": 1, "n": 3, "sampling_seed": 7}
        answers = (await desk.post("/generate", {"text": "a", "sampling_params": sampling})).json()
        assert len(answers) == 3
        assert [request.params.seed for request in desk.engine.requests] == [7, 8, 9]
        del sampling["sampling_seed"]
        for _ in range(2):
            await desk.post("/generate", {"text": "a", "sampling_params": sampling})
        unseeded = [request.params.seed for request in desk.engine.requests[3:]]
        assert unseeded[0] != unseeded[3], "an unseeded request gets a random seed at birth"
        assert unseeded[1] == (unseeded[0] + 1) % 2**63

    with_api(scenario)


def test_b52_a_stop_string_across_tokens_is_cut_and_never_leaks() -> None:
    async def scenario(desk: ApiDesk) -> None:
        sampling = {**GREEDY, "max_new_tokens": 50, "stop": ["wo thr"]}
        body = {"text": "one two three", "sampling_params": sampling}
        whole = (await desk.post("/generate", body)).json()
        assert whole["text"] == "one t"
        assert whole["meta_info"]["finish_reason"] == {"type": "stop", "matched": "wo thr"}
        events = await desk.events("/generate", body)
        assert all("one t".startswith(event["text"]) for event in events)
        assert events[-1]["text"] == "one t"
        assert [abort.keep_tokens for abort in desk.engine.aborts] == [
            whole["meta_info"]["completion_tokens"]
        ] * 2
        kept = (
            await desk.post("/generate", {**body, "sampling_params": {**sampling, "no_stop_trim": True}})
        ).json()
        assert kept["text"] == "one two thr"

    with_api(scenario)


def test_b54_a_held_back_head_of_a_stop_string_is_flushed_at_the_end() -> None:
    async def scenario(desk: ApiDesk) -> None:
        prompt = ids_of("one two three")
        sampling = {**GREEDY, "max_new_tokens": len(prompt), "stop": ["three hundred"]}
        events = await desk.events("/generate", {"input_ids": prompt, "sampling_params": sampling})
        assert events[-1]["text"] == "one two three"
        assert events[-1]["meta_info"]["finish_reason"]["type"] == "length"

    with_api(scenario)


def test_eos_ends_an_answer_unless_it_is_ignored() -> None:
    async def scenario(desk: ApiDesk) -> None:
        prompt = [504, 2, 505]
        answer = (await desk.post("/generate", {"input_ids": prompt})).json()
        assert answer["output_ids"] == [504, 2]
        assert answer["text"] == text_of([504])
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
        body = {"input_ids": prompt, "sampling_params": {"ignore_eos": True, "max_new_tokens": 3}}
        assert (await desk.post("/generate", body)).json()["output_ids"] == prompt

    with_api(scenario)


def test_no_new_tokens_is_a_legal_wish() -> None:
    async def scenario(desk: ApiDesk) -> None:
        answer = (
            await desk.post("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 0}})
        ).json()
        assert (answer["text"], answer["output_ids"]) == ("", [])
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}

    with_api(scenario)


def test_answers_are_as_long_as_asked_or_as_fits() -> None:
    async def scenario(desk: ApiDesk) -> None:
        limit = ECHO_READY.context_length
        for length, asked, given in (
            (10, None, 128),
            (limit - 5, None, 5),
            (limit - 1, 16, 1),
            (limit - 5, 500, 5),
        ):
            sampling = {"ignore_eos": True} | ({} if asked is None else {"max_new_tokens": asked})
            answer = (
                await desk.post("/generate", {"input_ids": [504] * length, "sampling_params": sampling})
            ).json()
            assert answer["meta_info"]["completion_tokens"] == given

    with_api(scenario)


SIMPLE: dict[str, Any] = {"text": "a"}

BAD_BODIES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "text", "neither"),
    ({"text": "a", "input_ids": [1]}, "text", "both"),
    ({"text": ""}, "text", "at least one token"),
    ({"text": []}, "text", "empty list"),
    ({"text": ["a", ""]}, "text[1]", "at least one token"),
    ({"input_ids": []}, "input_ids", "at least one token"),
    ({"input_ids": [[504], []]}, "input_ids[1]", "at least one token"),
    ({"input_ids": [49152]}, "input_ids", "49152, the vocabulary has ids 0 to 49151"),
    ({"input_ids": [-1]}, "input_ids", "-1"),
    ({"input_ids": [10**9]}, "input_ids", "1000000000"),
    ({"input_ids": [2**63]}, "input_ids", str(2**63)),
    ({"input_ids": [504] * 256}, "input_ids", "256 tokens, the context length is 256"),
    ({"text": "a", "sampling_params": [{}, {}]}, "sampling_params", "2 for 1"),
    ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid", "twice"),
    ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature", "-1"),
    ({"text": "a", "sampling_params": {"top_p": 0}}, "top_p", "0"),
    ({"text": "a", "sampling_params": {"top_k": -2}}, "top_k", "-2"),
    ({"text": "a", "sampling_params": {"min_p": 1.5}}, "min_p", "1.5"),
    ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens", "-1"),
    ({"text": "a", "sampling_params": {"max_new_tokens": True}}, "sampling_params.max_new_tokens", "true"),
    ({"text": "a", "sampling_params": {"stop": ["x"] * 33}}, "stop", "33"),
    ({"text": "a", "sampling_params": {"stop": [""]}}, "stop", "empty"),
    ({"text": "a", "sampling_params": {"stop": "x" * 9000}}, "stop", "9000"),
    ({"text": "a", "sampling_params": {"stop_token_ids": [49152]}}, "stop_token_ids", "49152"),
    ({"text": "a", "sampling_params": {"sampling_seed": 2**64}}, "sampling_params.sampling_seed", ""),
    ({"text": "a", "sampling_params": {"n": 0}}, "sampling_params.n", "0"),
    ({"text": "a", "sampling_params": {"frequency_penalty": 0.5}}, "frequency_penalty", "not support"),
    ({"text": "a", "sampling_params": {"json_schema": "{}"}}, "json_schema", "not support"),
    ({"text": "a", "sampling_params": {"max_tokens": 5}}, "sampling_params.max_tokens", "unknown"),
    ({"text": "a", "return_logprob": True}, "return_logprob", "not support"),
    ({"text": "a", "lora_path": "x"}, "lora_path", "not support"),
    ({"prompt": "a"}, "prompt", "unknown"),
    ({"text": "a", "rid": ""}, "rid", "at least 1"),
]


def test_bad_requests_are_refused_by_name_while_a_stream_beside_them_is_unharmed() -> None:
    async def scenario(desk: ApiDesk) -> None:
        body = {"text": "one two three", "sampling_params": {**GREEDY, "max_new_tokens": 100}}
        expected = (await desk.post("/generate", body)).json()
        desk.engine.held = True
        beside = asyncio.create_task(desk.events("/generate", body))
        await desk.until(lambda: desk.engine.num_running == 1)
        for bad, field, words in BAD_BODIES:
            for stream in (False, True):
                response = await desk.post("/generate", {**bad, "stream": stream})
                error = response.json()["error"]
                assert response.status_code == 400, (bad, response.text)
                assert error["field"] == field, (bad, error)
                assert words in error["message"], (bad, error)
        assert desk.engine.num_running == 1
        desk.engine.release()
        assert (await beside)[-1]["output_ids"] == expected["output_ids"]

    with_api(scenario)


RAW_BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b'{"text": "a", "sampling_params": {"temperature": NaN}}',
    b'{"text": "a", "sampling_params": {"temperature": Infinity}}',
    b'{"text": "a", "sampling_params": {"temperature": 1e400}}',
    b'{"text": "emoji \\ud83d"}',
    b'{"text": "\\udcf0"}',
    b'{"text": "\xff\xfe"}',
    b'{"text": "a", "sampling_params": {"stop": "\\ud83d"}}',
    b'{"input_ids": [1e3]}',
    b'{"input_ids": [123456789012345678901234567890]}',
    b'{"text":' * 5000,
    b'{"sampling_params":' + b"[" * 900 + b"]" * 900 + b"}",
]


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_b33_b38_what_is_no_body_is_a_400_in_the_shape_of_the_route(path: str) -> None:
    async def scenario(desk: ApiDesk) -> None:
        for raw in RAW_BODIES:
            response = await desk.post_raw(path, raw)
            assert response.status_code == 400, (raw[:60], response.text)
            assert response.json()["error"]["message"]
        response = await desk.post_raw(path, b'{"text": "a"}', "text/plain")
        assert response.status_code == 400
        assert "text/plain" in response.json()["error"]["message"]

    with_api(scenario)


def test_paired_escapes_and_nul_are_text() -> None:
    async def scenario(desk: ApiDesk) -> None:
        raw = b'{"text": "\\ud83d\\ude00\\u0000", "sampling_params": {"max_new_tokens": 0}}'
        assert (await desk.post_raw("/generate", raw)).status_code == 200
        assert desk.engine.requests[-1].token_ids.tolist() == ids_of("😀\x00")

    with_api(scenario)


def test_a_full_queue_is_a_real_503_also_for_streams_and_batches() -> None:
    async def scenario(desk: ApiDesk) -> None:
        desk.engine.held = True
        first = asyncio.create_task(desk.post("/generate", SIMPLE))
        await desk.until(lambda: desk.engine.num_running == 1)
        for body in ({**SIMPLE, "stream": True}, SIMPLE, {"text": ["a", "b"], "stream": True}):
            response = await desk.post("/generate", body)
            assert response.status_code == 503
            assert response.headers["retry-after"]
            assert response.json()["error"]["type"] == "queue_full"
            assert response.json()["error"]["retryable"] is True
        desk.engine.release()
        assert (await first).status_code == 200

    with_api(scenario, max_running=1)


def test_b25_the_same_rid_twice_is_a_400_that_names_it() -> None:
    async def scenario(desk: ApiDesk) -> None:
        desk.engine.held = True
        first = asyncio.create_task(desk.post("/generate", {**SIMPLE, "rid": "x"}))
        await desk.until(lambda: desk.engine.num_running == 1)
        second = await desk.post("/generate", {**SIMPLE, "rid": "x", "stream": True})
        assert second.status_code == 400
        assert "'x'" in second.json()["error"]["message"]
        desk.engine.release()
        assert (await first).status_code == 200
        assert (await desk.post("/generate", {**SIMPLE, "rid": "x"})).status_code == 200

    with_api(scenario)


def test_the_tokens_of_a_namespace_stay_in_it() -> None:
    async def scenario(desk: ApiDesk) -> None:
        seen: set[str | None] = set()
        for tenant in (
            {},
            {"extra_key": "a"},
            {"cache_salt": "a"},
            {"extra_key": ""},
            {"extra_key": "a", "cache_salt": "a"},
            {"extra_key": '["a",null]'},
        ):
            for path, body in (("/generate", SIMPLE), ("/v1/completions", {"prompt": "a", "max_tokens": 1})):
                assert (await desk.post(path, {**body, **tenant})).status_code == 200
            assert len({request.namespace for request in desk.engine.requests[-2:]}) == 1
            seen.add(desk.engine.requests[-1].namespace)
        assert len(seen) == 6 and None in seen

    with_api(scenario)


def test_a_priority_reaches_the_engine_and_has_limits() -> None:
    async def scenario(desk: ApiDesk) -> None:
        await desk.post("/generate", {**SIMPLE, "priority": -3})
        assert desk.engine.requests[-1].priority == -3
        await desk.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "priority": 7})
        assert desk.engine.requests[-1].priority == 7
        for wrong in (2**31, 1.5, "1", True):
            refused = await desk.post("/generate", {**SIMPLE, "priority": wrong})
            assert refused.status_code == 400
            assert refused.json()["error"]["field"] == "priority"

    with_api(scenario)
