"""OpenAI's routes: /v1/completions, /v1/chat/completions, /v1/models."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from srt.core.errors import InvalidRequest
from srt.core.messages import Int32Array
from srt.server.frontend import Frontend
from srt.server.generation import Answer, Generation, Prompt
from srt.server.http_body import read_body
from srt.server.json_response import json_response
from srt.server.openai_answers import ChatShape, CompletionShape, OpenAiShape
from srt.server.openai_protocol import ChatBody, ChatMessage, CompletionBody, OpenAiBody
from srt.server.requests import INLINE_CHARACTERS, new_rid
from srt.server.sse import EventStream, while_connected

DEFAULT_COMPLETION_TOKENS = 16
"""As OpenAI documents it for /v1/completions. A chat answer may be as long as context and pool allow."""


def openai_routes(frontend: Frontend) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.post("/completions")
    async def completions(request: Request) -> Response:
        body = await read_body(request, CompletionBody)
        frontend.check_model(body.model)
        prompts = await completion_prompts(frontend, body)
        return await _answer(frontend, request, body, prompts, CompletionShape)

    @router.post("/chat/completions")
    async def chat_completions(request: Request) -> Response:
        body = await read_body(request, ChatBody)
        frontend.check_model(body.model)
        prompts = await chat_prompts(frontend, body)
        return await _answer(frontend, request, body, prompts, ChatShape)

    @router.get("/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [_model_card(frontend)]})

    @router.get("/models/{name:path}")
    async def model(name: str) -> Response:
        frontend.check_model(name)
        return json_response(_model_card(frontend))

    return router


async def completion_prompts(frontend: Frontend, body: CompletionBody) -> list[Prompt]:
    """All choices of a completion: `n` for each prompt, prompt after prompt.

    Raises:
        InvalidRequest: names the field, the value and the limits.
    """
    rid = body.rid or new_rid()
    return [
        choice
        for token_ids in await _encode(frontend, body.prompt)
        for choice in frontend.prompts.build(
            rid,
            token_ids,
            body,
            max_new_tokens=body.max_tokens,
            default_max_new_tokens=DEFAULT_COMPLETION_TOKENS,
            max_field="max_tokens",
            prompt_field="prompt",
        )
    ]


async def _encode(frontend: Frontend, prompt: Any) -> list[Int32Array]:
    """A prompt is a text, a list of ids, or a list of either."""
    if isinstance(prompt, str):
        return await frontend.prompts.encode([prompt], field="prompt")
    if not prompt:
        raise InvalidRequest("prompt is empty: a prompt needs at least one token", field="prompt")
    if isinstance(prompt[0], str):
        return await frontend.prompts.encode(prompt, field="prompt")
    return frontend.prompts.check_ids([prompt] if isinstance(prompt[0], int) else prompt, field="prompt")


async def chat_prompts(frontend: Frontend, body: ChatBody) -> list[Prompt]:
    """The `n` choices of a chat.

    Raises:
        InvalidRequest: names the field, the value and the limits; also what the chat template refuses.
    """
    if (
        None not in (body.max_tokens, body.max_completion_tokens)
        and body.max_tokens != body.max_completion_tokens
    ):
        raise InvalidRequest(
            f"max_tokens is {body.max_tokens} and max_completion_tokens is {body.max_completion_tokens}: they mean "
            f"the same, send one",
            field="max_tokens",
        )
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    rendered = await _render(frontend, body)
    return frontend.prompts.build(
        body.rid or new_rid(),
        await frontend.prompts.encode_chat(rendered),
        body,
        max_new_tokens=asked,
        default_max_new_tokens=None,
        max_field="max_tokens" if body.max_completion_tokens is None else "max_completion_tokens",
        prompt_field="messages",
    )


async def _render(frontend: Frontend, body: ChatBody) -> str:
    goes_on = bool(body.continue_final_message)
    opens = not goes_on if body.add_generation_prompt is None else body.add_generation_prompt
    messages = [_message(message) for message in body.messages]
    arguments = (messages, opens, None, goes_on, body.chat_template_kwargs)
    if sum(len(str(message["content"])) for message in messages) <= INLINE_CHARACTERS:
        return frontend.chat_template.render(*arguments)
    return await asyncio.to_thread(frontend.chat_template.render, *arguments)


def _message(message: ChatMessage) -> dict[str, object]:
    """A message for the template. "developer" is OpenAI's newer name of "system", which templates know."""
    shown: dict[str, object] = message.model_dump(exclude_none=True)
    if message.role == "developer":
        shown["role"] = "system"
    return shown


async def _answer(
    frontend: Frontend,
    request: Request,
    body: OpenAiBody,
    prompts: Sequence[Prompt],
    kind: type[OpenAiShape],
) -> Response:
    shape = kind(prompts[0].rid, frontend.model_name, body.n or 1)
    generation = frontend.generation(prompts, body.placement)
    if body.stream:
        return EventStream(generation, lambda entered: shape.events(entered, body.include_usage))
    return json_response(shape.whole(await while_connected(request.receive, _finished(generation))))


async def _finished(generation: Generation) -> list[Answer]:
    async with generation:
        return await generation.finish()


def _model_card(frontend: Frontend) -> dict[str, Any]:
    ready = frontend.client.ready
    return {
        "id": frontend.model_name,
        "object": "model",
        "created": frontend.created,
        "owned_by": "twinloop",
        "root": frontend.model_name,
        "max_model_len": ready.context_length if ready is not None else None,
    }
