"""Clients that go away, or read slowly: raw sockets, because HTTP libraries are too polite."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from srt.server.sse import ClientGone, while_connected
from tests.server.api_desk import ApiDesk, with_api

LONG = {"text": "one two three", "sampling_params": {"ignore_eos": True, "max_new_tokens": 200}}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "ignore_eos": True, "max_tokens": 200}
ROUTES = [
    ("/generate", LONG),
    ("/v1/completions", {"prompt": "hello", "max_tokens": 200}),
    ("/v1/chat/completions", CHAT),
]


async def send_request(
    desk: ApiDesk, path: str, body: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", desk.port, limit=2**20)
    data = orjson.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_b23_a_client_that_leaves_before_the_first_token_aborts_its_request(
    path: str, body: dict[str, Any], stream: bool
) -> None:
    async def scenario(desk: ApiDesk) -> None:
        desk.engine.held = True
        _, writer = await send_request(desk, path, {**body, "stream": stream})
        await desk.until(lambda: desk.engine.num_running == 1)
        writer.close()
        await desk.until(lambda: desk.engine.num_running == 0)
        assert len(desk.engine.aborts) == 1
        desk.engine.release()

    with_api(scenario)


def test_b23_a_client_that_leaves_mid_stream_aborts_its_request() -> None:
    async def scenario(desk: ApiDesk) -> None:
        reader, writer = await send_request(desk, "/generate", {**LONG, "stream": True})
        await reader.readuntil(b'"text":')
        desk.engine.held = True
        writer.close()
        await desk.until(lambda: desk.engine.num_running == 0)
        desk.engine.release()

    with_api(scenario)


def test_a_client_that_leaves_takes_every_choice_with_it() -> None:
    async def scenario(desk: ApiDesk) -> None:
        desk.engine.held = True
        _, writer = await send_request(desk, "/generate", {**LONG, "text": ["a", "b", "c"], "stream": True})
        await desk.until(lambda: desk.engine.num_running == 3)
        writer.close()
        await desk.until(lambda: desk.engine.num_running == 0)
        assert desk.frontend.client.num_live == 0

    with_api(scenario)


def test_tokens_that_wait_for_a_slow_client_leave_as_one_event() -> None:
    async def scenario(desk: ApiDesk) -> None:
        desk.engine.held = True
        sampling = {"ignore_eos": True, "max_new_tokens": 100}
        task = asyncio.create_task(
            desk.events("/generate", {"text": "one two three", "sampling_params": sampling})
        )
        await desk.until(lambda: desk.engine.num_running == 1)
        # All 100 tokens arrive before the writer gets its turn.
        for _ in range(100):
            desk.engine.held = False
            desk.engine._tick()
        events = await task
        assert events[-1]["meta_info"]["completion_tokens"] == 100
        assert len(events) < 10

    with_api(scenario)


def test_a_body_cut_short_by_the_client_starts_nothing() -> None:
    async def scenario(desk: ApiDesk) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", desk.port)
        writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await reader.read()
        assert desk.engine.requests == []

    with_api(scenario)


def test_work_is_cancelled_and_awaited_when_the_client_goes() -> None:
    async def main() -> None:
        ended: list[str] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("work")

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        with pytest.raises(ClientGone):
            await while_connected(receive, work())
        assert ended == ["work"]

    asyncio.run(main())
