"""The default model by every road: the same tokens, and text that is never broken."""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from srt.core.errors import EngineFailure, InvalidRequest
from srt.server.engine import Engine
from tests.e2e.server_process import TWINLOOP, ServerProcess, body_of

PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "Die Katze sitzt auf dem", "1, 2, 3, 4,"]
NEW = 8
SEED = 20


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(dtype="float32", compute_threads=1, max_total_tokens=2048, chunked_prefill_size=64) as engine:
        yield engine


def greedy(new: int = NEW, **more: Any) -> dict[str, Any]:
    return {"temperature": 0, "ignore_eos": True, "max_new_tokens": new, **more}


def test_every_road_gives_the_same_tokens(server: ServerProcess, engine: Engine) -> None:
    alone = [server.gen(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
    body = {"text": PROMPTS, "sampling_params": greedy()}
    together = server.http.post("/generate", json=body).json()
    assert [a["output_ids"] for a in together] == [a["output_ids"] for a in alone]
    from_python = engine.generate(PROMPTS, greedy())
    assert [a["output_ids"] for a in from_python] == [a["output_ids"] for a in alone]
    for prompt, answer in list(zip(PROMPTS, alone, strict=True))[:2]:
        with server.stream("/generate", body_of(prompt, max_new_tokens=NEW)) as events:
            *_, last, _ = events
        assert last["output_ids"] == answer["output_ids"]
        completion = {"prompt": prompt, "temperature": 0, "ignore_eos": True, "max_tokens": NEW}
        with server.stream("/v1/completions", completion) as events:
            *chunks, done = events
        assert done == "[DONE]"
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == answer["text"]


def test_engine_streams_cumulative_answers_to_both_kinds_of_programs(engine: Engine) -> None:
    whole = engine.generate(PROMPTS[0], greedy())
    answers = list(engine.generate(PROMPTS[0], greedy(), stream=True))
    assert answers[-1]["output_ids"] == whole["output_ids"]
    assert all(whole["text"].startswith(answer["text"]) for answer in answers)

    async def program() -> None:
        again, other = await asyncio.gather(
            engine.async_generate(PROMPTS[0], greedy()), engine.async_generate(PROMPTS[1], greedy())
        )
        assert again["output_ids"] == whole["output_ids"]
        assert other["output_ids"] != whole["output_ids"]
        async for answer in await engine.async_generate(PROMPTS[0], greedy(), stream=True):
            last = answer
        assert last["output_ids"] == whole["output_ids"]

    asyncio.run(program())


def test_an_abandoned_stream_of_engine_is_aborted(engine: Engine) -> None:
    stream = engine.generate(PROMPTS[0], greedy(1000), stream=True)
    next(stream)
    stream.close()
    while engine.server_info()["stats"]["num_running_reqs"]:
        pass
    assert engine.flush_cache() >= 0


def test_engine_raises_what_the_server_refuses(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="temperature is -1") as refused:
        engine.generate("a", {"temperature": -1})
    assert refused.value.field == "temperature"
    with pytest.raises(InvalidRequest, match="logit_bias"):
        engine.generate("a", {"logit_bias": {"5": 1}})
    chat = engine.chat_ids([{"role": "user", "content": "Say hello."}])
    assert engine.generate(input_ids=chat, sampling_params=greedy(4))["meta_info"]["prompt_tokens"] == len(
        chat
    )


def test_engine_in_this_process_gives_the_same_tokens(engine: Engine) -> None:
    expected = engine.generate(PROMPTS[:2], greedy(8))
    with Engine(
        in_process=True, dtype="float32", compute_threads=1, max_total_tokens=1024, max_running_requests=4
    ) as local:
        answers = local.generate(PROMPTS[:2], greedy(8))
        assert [a["output_ids"] for a in answers] == [a["output_ids"] for a in expected]
    with pytest.raises(EngineFailure, match="shut down"):
        local.generate("a")
    local.shutdown()


def test_b52_b54_stop_strings_are_cut_the_same_in_streams(server: ServerProcess) -> None:
    text = server.gen(PROMPTS[0], max_new_tokens=16)["text"]
    rng = random.Random(SEED)
    for _ in range(3):
        start = rng.randrange(1, len(text) - 4)
        stop = text[start : start + rng.randrange(2, 5)]
        cut = text[: text.index(stop)]
        body = body_of(PROMPTS[0], max_new_tokens=16, stop=[stop, "never to be seen"])
        whole = server.http.post("/generate", json=body).json()
        assert whole["text"] == cut, (SEED, stop)
        assert whole["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
        with server.stream("/generate", body) as events:
            *answers, _ = events
        assert all(cut.startswith(answer["text"]) for answer in answers)
        assert answers[-1]["output_ids"] == whole["output_ids"]
    # The text ends while the head of a stop string is held back.
    held = server.gen(PROMPTS[0], max_new_tokens=16, stop=[text[-3:] + " and more"])
    assert held["text"] == text
    assert held["meta_info"]["finish_reason"]["type"] == "length"


def test_b55_characters_of_several_tokens_are_never_split(server: ServerProcess) -> None:
    prompt = "Emoji: 🦊🐻🐼 🦊🐻🐼 🦊🐻🐼 🦊🐻🐼 日本語日本語日本語"
    whole = server.gen(prompt, max_new_tokens=30)
    with server.stream("/generate", body_of(prompt, max_new_tokens=30)) as events:
        *answers, _ = events
    assert answers[-1]["text"] == whole["text"]
    tokens = server.http.post("/detokenize", json={"tokens": whole["output_ids"]}).json()
    assert whole["text"] == tokens["text"]
    for answer in answers[:-1]:
        assert "\ufffd" not in answer["text"]
    assert any(ord(character) > 0x2000 for character in whole["text"]), "this prompt is here to bring some"


def test_a_chat_answers_in_openais_shape(server: ServerProcess) -> None:
    body = {
        "messages": [{"role": "user", "content": "Say hello."}],
        "temperature": 0,
        "max_tokens": 12,
        "stream_options": {"include_usage": True},
    }
    whole = server.http.post("/v1/chat/completions", json={**body, "stream_options": None}).json()
    with server.stream("/v1/chat/completions", body) as events:
        *chunks, usage, done = events
    assert done == "[DONE]"
    content = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert content == whole["choices"][0]["message"]["content"]
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_seeds_repeat_and_b45_choices_differ(server: ServerProcess) -> None:
    body = {
        "text": PROMPTS[0],
        "sampling_params": {**greedy(8), "temperature": 1.2, "n": 4, "sampling_seed": 5},
    }
    first, again = (
        [answer["output_ids"] for answer in server.http.post("/generate", json=body).json()] for _ in range(2)
    )
    assert first == again
    assert len({tuple(ids) for ids in first}) > 1


@pytest.mark.slow
def test_generate_on_the_command_line_writes_the_answer(server: ServerProcess) -> None:
    options = (
        "--dtype",
        "float32",
        "--compute-threads",
        "1",
        "--max-total-tokens",
        "1024",
        "--max-new-tokens",
        "8",
    )

    def generate(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(TWINLOOP), "generate", *words, *options]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    expected = server.http.post(
        "/generate", json={"text": PROMPTS[0], "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
    ).json()["text"]
    assert generate("-", text=PROMPTS[0]).stdout == expected + "\n"
    chat = {"messages": [{"role": "user", "content": "Say hello."}], "temperature": 0, "max_tokens": 8}
    message = server.http.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]
    assert generate("--chat", "Say hello.").stdout == message["content"] + "\n"
