"""How errors look to a client: one JSON shape for each family of routes, and never a stack trace."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import Request, Response
from starlette.exceptions import HTTPException

from srt.core.errors import ErrorInfo, TwinloopError
from srt.server.json_response import json_response

log = logging.getLogger(__name__)

OPENAI_PREFIX = "/v1/"
RETRY_AFTER_SECONDS = "1"

OPENAI_TYPES: dict[int, str] = {
    400: "invalid_request_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    409: "conflict_error",
    503: "service_unavailable_error",
}
"""HTTP status -> error type, as OpenAI's clients know it; others are "server_error"."""


def native_error(error: ErrorInfo) -> dict[str, Any]:
    """The body of an error on the native routes."""
    return {
        "error": {
            "message": error.message,
            "type": error.label,
            "code": error.status,
            "field": error.field,
            "retryable": error.retryable,
        }
    }


def openai_error(error: ErrorInfo) -> dict[str, Any]:
    """The body of an error on the OpenAI routes."""
    return {
        "error": {
            "message": error.message,
            "type": OPENAI_TYPES.get(error.status, "server_error"),
            "param": error.field,
            "code": error.label,
        }
    }


def error_response(path: str, error: ErrorInfo) -> Response:
    """An error as the family of the route `path` shows it."""
    body = openai_error(error) if path.startswith(OPENAI_PREFIX) else native_error(error)
    headers = {"retry-after": RETRY_AFTER_SECONDS} if error.retryable else None
    return json_response(body, error.status, headers)


async def on_twinloop_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TwinloopError)
    return error_response(request.url.path, error.info())


async def on_http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, which the framework itself finds."""
    assert isinstance(error, HTTPException)
    info = ErrorInfo("http_error", error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return error_response(request.url.path, info)


async def on_unexpected_error(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    info = ErrorInfo("internal", 500, "the server failed to handle this request; its log says why")
    return error_response(request.url.path, info)
