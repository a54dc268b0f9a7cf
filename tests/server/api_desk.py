"""A real HTTP server on a real port in front of an engine that repeats its prompt, and clients for it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from compute_loop.models.files import DEFAULT_MODEL, locate_model
from srt.core.config import Config
from srt.server.chat_template import ChatTemplate
from srt.server.engine_client import EngineClient
from srt.server.frontend import Frontend
from srt.server.http_listener import HttpListener, listen
from srt.server.http_server import create_app
from srt.server.metrics import ServerMetrics
from srt.server.requests import PromptBuilder
from srt.server.tokenizer import Tokenizer
from tests.fakes import ECHO_READY, EchoEngine


@functools.cache
def default_tokenizer() -> Tokenizer:
    return Tokenizer.load(locate_model(DEFAULT_MODEL))


@dataclass
class ApiDesk:
    frontend: Frontend
    engine: EchoEngine
    http: httpx.AsyncClient
    port: int

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def post_raw(
        self, path: str, body: bytes, content_type: str = "application/json"
    ) -> httpx.Response:
        return await self.http.post(path, content=body, headers={"content-type": content_type})

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The JSON events of a streamed answer; asserts that [DONE] ends it."""
        events = [event async for event in self.stream(path, body)]
        assert events.pop() == "[DONE]"
        return events

    async def stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[Any]:
        async with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            if response.status_code != 200:
                await response.aread()
            response.raise_for_status()
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.aiter_lines():
                if line:
                    data = line.removeprefix("data: ")
                    yield data if data == "[DONE]" else orjson.loads(data)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Lets the event loop run until the condition holds; the test's own time limit is the limit."""
        while not condition():  # noqa: ASYNC110  any condition, on either side
            await asyncio.sleep(0)

    async def drained(self) -> None:
        """Nothing of any request is left on either side."""
        await self.until(lambda: self.engine.num_running == 0)
        await self.frontend.client.drained()
        ready = self.frontend.client.state == "ready"
        assert (await self.http.get("/health")).status_code == (200 if ready else 503)


@asynccontextmanager
async def api_desk(max_running: int = 64, **options: Any) -> AsyncIterator[ApiDesk]:
    tokenizer = default_tokenizer()
    config = Config.from_flat(**options)
    metrics = ServerMetrics("echo")
    client = EngineClient(metrics, config.schedule.max_unsent_tokens)
    frontend = Frontend(
        config=config,
        model_name="echo",
        tokenizer=tokenizer,
        chat_template=ChatTemplate.for_tokenizer(tokenizer),
        client=client,
        metrics=metrics,
        prompts=PromptBuilder(client, tokenizer),
    )
    engine = EchoEngine(client.on_message, max_running)
    client.connect(engine, ECHO_READY)
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        listener = HttpListener(create_app(frontend), listening)
        serving = asyncio.create_task(listener.run_until_stopped())
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
                yield ApiDesk(frontend, engine, http, port)
        finally:
            listener.stop()
            await serving


def with_api(scenario: Callable[[ApiDesk], Awaitable[None]], **options: Any) -> None:
    """Runs a scenario, and then asserts that nothing of it is left."""

    async def main() -> None:
        async with api_desk(**options) as desk:
            await scenario(desk)
            await desk.drained()

    asyncio.run(main())
