"""Routes about the server itself: health, information, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, TypeVar

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from srt.core.errors import TwinloopError, Unavailable
from srt.core.messages import EngineStats
from srt.server import operations
from srt.server.frontend import Frontend
from srt.server.json_response import json_response

ANSWER_SECONDS = 10.0
"""How long the engine may take to say what it is doing: the control loop answers between two steps."""

AnswerT = TypeVar("AnswerT")


def admin_routes(frontend: Frontend) -> APIRouter:
    router = APIRouter()
    client = frontend.client

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> Response:
        state = client.state
        return json_response({"status": state}, 200 if state == "ready" else 503)

    @router.get("/server_info")
    async def server_info() -> Response:
        return json_response(await describe(frontend))

    @router.get("/metrics")
    async def metrics() -> Response:
        try:
            stats = await ask_stats(frontend)
        except TwinloopError:
            stats = None  # engine_up says so
        return Response(frontend.metrics.render(stats), media_type=CONTENT_TYPE_LATEST)

    return router


async def ask_stats(frontend: Frontend) -> EngineStats:
    """What the engine is doing.

    Raises:
        Unavailable: there is no engine, or it does not answer.
    """
    return await in_time(operations.stats(frontend.client))


async def in_time(answer: Coroutine[Any, Any, AnswerT]) -> AnswerT:
    """What the engine answers.

    Raises:
        Unavailable: it does not, within `ANSWER_SECONDS`.
    """
    try:
        return await asyncio.wait_for(answer, ANSWER_SECONDS)
    except TimeoutError:
        raise Unavailable(f"the engine did not answer within {ANSWER_SECONDS:g} s") from None


def describe_events(frontend: Frontend) -> dict[str, Any] | None:
    if frontend.events is None:
        return None
    return frontend.events.describe(frontend.replay.address if frontend.replay is not None else None)


async def describe(frontend: Frontend) -> dict[str, Any]:
    """The server as /server_info and `Engine.server_info` show it. `stats` is null while there is no engine."""
    try:
        stats = await ask_stats(frontend)
    except TwinloopError:
        stats = None
    ready = frontend.client.ready
    return {
        "version": version("twinloop"),
        "state": frontend.client.state,
        "model": frontend.model_name,
        "max_total_num_tokens": ready.max_total_tokens if ready is not None else None,
        "kv_events": describe_events(frontend),
        "engine": asdict(ready) if ready is not None else None,
        "stats": asdict(stats) if stats is not None else None,
        "config": asdict(frontend.config),
    }
