"""Routes that only use the tokenizer: POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from srt.server.frontend import Frontend
from srt.server.http_body import read_body
from srt.server.json_response import json_response
from srt.server.protocol import DetokenizeBody, TokenizeBody


def token_routes(frontend: Frontend) -> APIRouter:
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        body = await read_body(request, TokenizeBody)
        frontend.check_model(body.model)
        texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        encoded = await asyncio.to_thread(
            frontend.tokenizer.encode_batch, texts, body.add_special_tokens, field="prompt"
        )
        tokens = [token_ids.tolist() for token_ids in encoded]
        counts = [len(token_ids) for token_ids in tokens]
        single = isinstance(body.prompt, str)
        return json_response(
            {"tokens": tokens[0] if single else tokens, "count": counts[0] if single else counts}
        )

    @router.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        body = await read_body(request, DetokenizeBody)
        frontend.check_model(body.model)
        single = not body.tokens or isinstance(body.tokens[0], int)
        lists: Any = [body.tokens] if single else body.tokens
        frontend.prompts.check_vocabulary(lists, field="tokens")
        texts = [frontend.tokenizer.decode(token_ids, body.skip_special_tokens) for token_ids in lists]
        return json_response({"text": texts[0] if single else texts})

    return router
