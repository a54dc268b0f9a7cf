from __future__ import annotations

from typing import Any

import pytest

from srt.core.errors import StepFailure
from srt.core.messages import FinishReason
from tests.server.api_desk import ApiDesk, default_tokenizer, with_api

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello"}], "ignore_eos": True}
WORDS = "one two three"


def ids_of(text: str) -> list[int]:
    return default_tokenizer().encode(text).tolist()  # type: ignore[no-any-return]


def test_a_completion_has_openais_shape() -> None:
    async def scenario(desk: ApiDesk) -> None:
        count = len(ids_of(WORDS))
        answer = (
            await desk.post("/v1/completions", {"model": "echo", "prompt": WORDS, "max_tokens": count})
        ).json()
        assert answer.pop("id").startswith("cmpl-")
        assert answer.pop("created") > 1_700_000_000
        assert answer == {
            "object": "text_completion",
            "model": "echo",
            "choices": [
                {"index": 0, "text": WORDS, "logprobs": None, "finish_reason": "length", "matched_stop": None}
            ],
            "usage": {
                "prompt_tokens": count,
                "completion_tokens": count,
                "total_tokens": 2 * count,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }
        default = (await desk.post("/v1/completions", {"prompt": WORDS, "ignore_eos": True})).json()
        assert default["usage"]["completion_tokens"] == 16

    with_api(scenario)


def test_prompts_may_be_texts_or_ids_one_or_many() -> None:
    async def scenario(desk: ApiDesk) -> None:
        ids = ids_of(WORDS)
        for prompt, count in ((WORDS, 1), ([WORDS, "four"], 2), (ids, 1), ([ids, ids[:1]], 2)):
            body = {"prompt": prompt, "max_tokens": len(ids), "ignore_eos": True, "n": 2}
            answer = (await desk.post("/v1/completions", body)).json()
            assert [choice["index"] for choice in answer["choices"]] == list(range(2 * count))
            assert answer["choices"][0]["text"] == answer["choices"][1]["text"] == WORDS
            prompt_tokens = sum(len(r.token_ids) for r in desk.engine.requests[-2 * count :: 2])
            assert answer["usage"]["prompt_tokens"] == prompt_tokens
            assert answer["usage"]["completion_tokens"] == 2 * count * len(ids)

    with_api(scenario)


def test_a_chat_is_rendered_by_the_template_and_may_be_as_long_as_fits() -> None:
    async def scenario(desk: ApiDesk) -> None:
        answer = (await desk.post("/v1/chat/completions", CHAT)).json()
        (request,) = desk.engine.requests
        text = default_tokenizer().decode(request.token_ids, skip_special_tokens=False)
        assert "<|im_start|>user\nSay hello<|im_end|>\n<|im_start|>assistant\n" in text
        assert request.params.max_new_tokens == 256 - len(request.token_ids)
        choice = answer["choices"][0]
        assert answer["object"] == "chat.completion"
        assert choice["message"]["role"] == "assistant"
        assert choice["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == 256

    with_api(scenario)


def test_b60_contents_may_be_parts_and_developers_are_systems() -> None:
    async def scenario(desk: ApiDesk) -> None:
        parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello"}]
        for content in ("Say hello", parts):
            messages = [{"role": "developer", "content": "Be kind"}, {"role": "user", "content": content}]
            response = await desk.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
            assert response.status_code == 200
        first, second = (request.token_ids.tolist() for request in desk.engine.requests)
        assert first == second
        assert "system\nBe kind" in default_tokenizer().decode(first, skip_special_tokens=False)

    with_api(scenario)


def test_a_final_message_can_be_continued() -> None:
    async def scenario(desk: ApiDesk) -> None:
        messages = [*CHAT["messages"], {"role": "assistant", "content": "Hello, my"}]
        body = {"messages": messages, "continue_final_message": True, "max_tokens": 1}
        assert (await desk.post("/v1/chat/completions", body)).status_code == 200
        text = default_tokenizer().decode(desk.engine.requests[0].token_ids, skip_special_tokens=False)
        assert text.endswith("assistant\nHello, my")

    with_api(scenario)


@pytest.mark.parametrize("n", [1, 3])
def test_b61_b63_chat_chunks_have_one_role_one_finish_and_no_null_content(n: int) -> None:
    async def scenario(desk: ApiDesk) -> None:
        body = {**CHAT, "max_tokens": 30, "n": n}
        whole = (await desk.post("/v1/chat/completions", body)).json()
        events = await desk.events("/v1/chat/completions", body)
        for index in range(n):
            chunks = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
            assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
            assert all("finish_reason" in chunk for chunk in chunks)
            assert [chunk["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
            assert chunks[-1]["finish_reason"] == "length"
            contents = [chunk["delta"]["content"] for chunk in chunks if "content" in chunk["delta"]]
            assert "".join(contents) == whole["choices"][index]["message"]["content"]
        assert len({event["id"] for event in events}) == 1
        assert {event["object"] for event in events} == {"chat.completion.chunk"}

    with_api(scenario)


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": WORDS})]
)
def test_b62_usage_comes_when_asked_for_in_a_chunk_without_choices(path: str, body: dict[str, Any]) -> None:
    async def scenario(desk: ApiDesk) -> None:
        short = {**body, "max_tokens": 5, "ignore_eos": True}
        whole = (await desk.post(path, short)).json()
        asked = await desk.events(path, {**short, "stream_options": {"include_usage": True}})
        assert asked[-1]["choices"] == []
        assert asked[-1]["usage"] == whole["usage"]
        for options in (None, {"include_usage": False}):
            unasked = await desk.events(path, {**short, "stream_options": options})
            assert all(event["choices"] and "usage" not in event for event in unasked)

    with_api(scenario)


def test_a_streamed_completion_says_the_same_as_a_whole_one() -> None:
    async def scenario(desk: ApiDesk) -> None:
        body = {"prompt": "日本語 ☃ one two", "max_tokens": 60, "ignore_eos": True, "stop": ["two日"]}
        whole = (await desk.post("/v1/completions", body)).json()["choices"][0]
        events = await desk.events("/v1/completions", body)
        assert "".join(event["choices"][0]["text"] for event in events) == whole["text"]
        assert events[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
        assert [event["choices"][0]["finish_reason"] for event in events].count(None) == len(events) - 1

    with_api(scenario)


def test_an_answer_that_fails_is_an_error_in_openais_shape() -> None:
    async def scenario(desk: ApiDesk) -> None:
        reason = FinishReason("error", error=StepFailure("step 7 failed twice").info())
        desk.engine.fail_with = reason
        response = await desk.post("/v1/completions", {"prompt": WORDS})
        assert response.status_code == 500
        assert response.json() == {
            "error": {
                "message": "step 7 failed twice",
                "type": "server_error",
                "param": None,
                "code": "step_failure",
            }
        }
        (event,) = await desk.events("/v1/completions", {"prompt": WORDS})
        assert event == response.json()

    with_api(scenario)


NEUTRAL = {
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "logit_bias": {},
    "n": 1,
    "seed": None,
    "stop": None,
    "user": "somebody",
    "stream_options": None,
    "top_p": 1,
    "temperature": 0.7,
}


def test_what_clients_send_without_meaning_it_is_accepted() -> None:
    async def scenario(desk: ApiDesk) -> None:
        chat = {**NEUTRAL, "logprobs": False, "top_logprobs": None, "tools": None, "tool_choice": "auto"}
        chat |= {
            "response_format": {"type": "text"},
            "store": False,
            "parallel_tool_calls": True,
            "max_tokens": 1,
        }
        assert (await desk.post("/v1/chat/completions", {**CHAT, **chat})).status_code == 200
        completion = {
            **NEUTRAL,
            "logprobs": None,
            "echo": False,
            "best_of": 1,
            "suffix": None,
            "max_tokens": 1,
        }
        assert (await desk.post("/v1/completions", {"prompt": WORDS, **completion})).status_code == 200

    with_api(scenario)


BAD_CHATS: list[tuple[dict[str, Any], str]] = [
    ({}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": ["a"]}, "messages[0]"),
    ({**CHAT, "tools": [{"type": "function"}]}, "tools"),
    ({**CHAT, "logprobs": True}, "logprobs"),
    ({**CHAT, "response_format": {"type": "json_object"}}, "response_format"),
    ({**CHAT, "frequency_penalty": 0.1}, "frequency_penalty"),
    ({**CHAT, "logit_bias": {"5": 1}}, "logit_bias"),
    ({**CHAT, "n": 0}, "n"),
    ({**CHAT, "n": 1000}, "n"),
    ({**CHAT, "max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    ({**CHAT, "max_completion_tokens": -1}, "max_completion_tokens"),
    ({**CHAT, "temperature": -0.5}, "temperature"),
    ({**CHAT, "best": 1}, "best"),
    ({**CHAT, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
]

BAD_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [[504], [-1]]}, "prompt"),
    ({"prompt": [504] * 256}, "prompt"),
    ({"prompt": "a", "best_of": 2}, "best_of"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "echo": True}, "echo"),
    ({"prompt": "a", "logprobs": 1}, "logprobs"),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
]


def test_bad_requests_name_their_param() -> None:
    async def scenario(desk: ApiDesk) -> None:
        routes = (("/v1/chat/completions", BAD_CHATS), ("/v1/completions", BAD_COMPLETIONS))
        for path, bodies in routes:
            for body, param in bodies:
                response = await desk.post(path, body)
                assert response.status_code == 400, (body, response.text)
                error = response.json()["error"]
                assert error["param"] == param, (body, error)
                assert error["type"] == "invalid_request_error"
                assert error["code"] == "invalid_request"
        assert desk.engine.requests == []

    with_api(scenario)


def test_another_model_is_a_404() -> None:
    async def scenario(desk: ApiDesk) -> None:
        response = await desk.post("/v1/chat/completions", {**CHAT, "model": "gpt-4"})
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
        assert "'gpt-4'" in response.json()["error"]["message"]
        assert (await desk.http.get("/v1/models/gpt-4")).status_code == 404
        assert (await desk.http.get("/v1/nonsense")).json()["error"]["message"]
        listed = (await desk.http.get("/v1/models")).json()
        assert [(card["id"], card["max_model_len"]) for card in listed["data"]] == [("echo", 256)]
        assert (await desk.http.get("/v1/models/echo")).json() == listed["data"][0]

    with_api(scenario)
