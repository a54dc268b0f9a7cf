"""The native generation route: POST /generate."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from srt.core.errors import InvalidRequest
from srt.core.messages import FinishReason, Int32Array
from srt.server.frontend import Frontend
from srt.server.generation import Answer, Generation, Prompt
from srt.server.http_body import read_body
from srt.server.http_errors import native_error
from srt.server.json_response import json_response
from srt.server.placement import Placement
from srt.server.protocol import GenerateBody, NativeSampling
from srt.server.sse import EventStream, event, while_connected

DEFAULT_MAX_NEW_TOKENS = 128


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """A checked /generate: its choices, and whether the answer is a list."""

    prompts: list[Prompt]
    is_batch: bool
    placement: Placement


def native_routes(frontend: Frontend) -> APIRouter:
    router = APIRouter()

    @router.put("/generate", include_in_schema=False)
    @router.post("/generate")
    async def generate(request: Request) -> Response:
        body = await read_body(request, GenerateBody)
        call = await prepare(frontend, body)
        generation = frontend.generation(call.prompts, call.placement)
        if body.stream:
            return EventStream(generation, lambda entered: _events(entered, call.is_batch))
        answers = await while_connected(request.receive, _finished(generation))
        shown = [answer_body(answer) for answer in answers]
        return json_response(shown if call.is_batch else shown[0])

    return router


async def prepare(frontend: Frontend, body: GenerateBody) -> GenerateCall:
    """Checks a body and encodes its prompts.

    Raises:
        InvalidRequest: names the field, the value and the limits.
    """
    encoded, field = await _encode(frontend, body)
    count = len(encoded)
    samplings = (
        body.sampling_params if isinstance(body.sampling_params, list) else [body.sampling_params] * count
    )
    rids = body.rid if isinstance(body.rid, list) else [body.rid] * count
    _check_count("sampling_params", len(samplings), count)
    _check_count("rid", len(rids), count)
    if isinstance(body.rid, list) and len(set(body.rid)) < count:
        raise InvalidRequest("rid has the same id twice", field="rid")
    prompts: list[Prompt] = []
    for rid, token_ids, sampling in zip(rids, encoded, samplings, strict=True):
        chosen = sampling or NativeSampling()
        prompts += frontend.prompts.build(
            rid,
            token_ids,
            chosen,
            max_new_tokens=chosen.max_new_tokens,
            default_max_new_tokens=DEFAULT_MAX_NEW_TOKENS,
            max_field="max_new_tokens",
            prompt_field=field,
        )
    return GenerateCall(prompts, _is_batch(body) or len(prompts) > 1, body.placement)


async def _encode(frontend: Frontend, body: GenerateBody) -> tuple[list[Int32Array], str]:
    """The prompts of a body, and the name of the field that they came in."""
    if (body.text is None) == (body.input_ids is None):
        given = "neither" if body.text is None else "both"
        raise InvalidRequest(f"a prompt is either text or input_ids: {given} is given", field="text")
    if body.text is not None:
        texts = [body.text] if isinstance(body.text, str) else body.text
        _check_any("text", texts)
        return await frontend.prompts.encode(texts, field="text"), "text"
    assert body.input_ids is not None
    prompts = body.input_ids if _is_batch(body) else [body.input_ids]
    _check_any("input_ids", prompts)
    return frontend.prompts.check_ids(prompts, field="input_ids"), "input_ids"  # type: ignore[arg-type]


def _is_batch(body: GenerateBody) -> bool:
    if body.text is not None:
        return isinstance(body.text, list)
    return bool(body.input_ids) and isinstance(body.input_ids[0], list)  # type: ignore[index]


def _check_any(field: str, prompts: list[Any]) -> None:
    if not prompts:
        raise InvalidRequest(f"{field} is an empty list: at least one prompt is needed", field=field)


def _check_count(field: str, count: int, expected: int) -> None:
    if count != expected:
        raise InvalidRequest(f"{field} is a list of {count} for {expected} prompts", field=field)


async def _finished(generation: Generation) -> list[Answer]:
    async with generation:
        return await generation.finish()


async def _events(generation: Generation, is_batch: bool) -> AsyncGenerator[bytes, None]:
    """Each event has the whole text so far."""
    async for changes in generation:
        yield b"".join(event(answer_body(answer, is_batch)) for answer, _ in changes)


def answer_body(answer: Answer, with_index: bool = False) -> dict[str, Any]:
    """One choice as /generate shows it, finished or not; `with_index` where it is one of several in a stream."""
    body = native_error(answer.error) if answer.error is not None else _choice_body(answer)
    return {**body, "index": answer.index} if with_index else body


def _choice_body(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "output_ids": list(answer.token_ids),
        "meta_info": {
            "id": answer.prompt.rid,
            "finish_reason": finish_body(answer.finish, answer.completion_tokens),
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "cached_tokens": answer.cached_tokens,
            "num_retractions": answer.num_retractions,
            "e2e_latency": answer.seconds,
        },
    }


def finish_body(finish: FinishReason | None, completion_tokens: int) -> dict[str, Any] | None:
    """A finish reason as the native routes show it; None while the answer goes on."""
    if finish is None:
        return None
    body: dict[str, Any] = {"type": finish.kind}
    if finish.kind == "stop":
        body["matched"] = finish.matched
    elif finish.kind == "length":
        body["length"] = completion_tokens
    elif finish.error is not None:
        body["message"] = finish.error.message
    return body
