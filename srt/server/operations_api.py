"""Routes that change what the engine does: flush, save, pause, continue, abort."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request, Response

from srt.core.errors import InvalidRequest
from srt.server import operations
from srt.server.frontend import Frontend
from srt.server.http_body import read_body, validate_body
from srt.server.json_response import json_response
from srt.server.protocol import AbortBody, ContinueBody, FlushQuery, PauseBody, SaveBody


def operation_routes(frontend: Frontend) -> APIRouter:
    router = APIRouter()
    client = frontend.client

    @router.get("/flush_cache", include_in_schema=False)
    @router.post("/flush_cache")
    async def flush_cache(request: Request) -> Response:
        query = validate_body(dict(request.query_params), FlushQuery)
        flushed = await operations.flush(client, query.timeout)
        return json_response({"success": True, "flushed_tokens": flushed})

    @router.post("/save_cache")
    async def save_cache(request: Request) -> Response:
        await read_body(request, SaveBody, may_be_empty=True)
        reply = await operations.save_cache(client)
        return json_response(
            {"success": True, "saved_tokens": reply.saved_tokens, "file_bytes": reply.num_bytes}
        )

    @router.post("/pause_generation")
    async def pause_generation(request: Request) -> Response:
        body = await read_body(request, PauseBody, may_be_empty=True)
        reply = asdict(await operations.pause(client, body.mode))
        del reply["key"]
        return json_response({"status": "paused", "mode": body.mode, **reply})

    @router.post("/continue_generation")
    async def continue_generation(request: Request) -> Response:
        await read_body(request, ContinueBody, may_be_empty=True)
        return json_response({"status": "running", "was_paused": await operations.resume(client)})

    @router.post("/abort_request")
    async def abort_request(request: Request) -> Response:
        body = await read_body(request, AbortBody)
        if body.abort_all and body.rid is None:
            return json_response({"aborted": client.abort_all()})
        if body.rid is None or body.abort_all:
            raise InvalidRequest('say which request: {"rid": "..."} or {"abort_all": true}', field="rid")
        return json_response({"aborted": client.abort_rid(body.rid)})

    return router
