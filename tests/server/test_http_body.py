"""Bodies that never arrive whole."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import Request
from starlette.types import Message

from srt.core.errors import Aborted
from srt.server.http_body import read_body
from srt.server.protocol import GenerateBody


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_failure_of_the_server() -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": b'{"text": "Once', "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return messages.pop(0)

    request = Request({"type": "http", "method": "POST", "path": "/generate", "headers": []}, receive)
    with pytest.raises(Aborted, match="went away"):
        asyncio.run(read_body(request, GenerateBody))
