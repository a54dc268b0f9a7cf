"""The Python API: ``with Engine(model=...) as engine: engine.generate("...")``."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from compute_loop.models.files import locate_model
from srt.core.config import Config
from srt.core.errors import EngineFailure
from srt.core.loop_thread import LoopThread
from srt.core.messages import PauseMode
from srt.server import operations
from srt.server.admin_api import describe
from srt.server.engine_body import generate_body
from srt.server.engine_client import EngineClient
from srt.server.engine_host import HOSTS, EngineHost
from srt.server.event_loop import EventLoop
from srt.server.frontend import Frontend
from srt.server.native_api import answer_body, prepare
from srt.server.protocol import GenerateBody

log = logging.getLogger(__name__)

T = TypeVar("T")
Answer = dict[str, Any]
Prompts = str | Sequence[str]
TokenIds = Sequence[int] | Sequence[Sequence[int]]
SamplingDict = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Engine:
    """A model in an engine process of its own, for programs that need no HTTP. Any thread may call it.

    Args:
        model: a GGUF file, a directory, a hub id; default: the default model.
        in_process: run both loops in this process instead; for tests and debugging.
        options: the options of ``twinloop serve`` by name, say ``page_size=1``.

    Raises:
        ModelError: the model cannot be found or loaded.
        ConfigError: an option is unknown or has a wrong value.
    """

    def __init__(self, model: str | None = None, *, in_process: bool = False, **options: Any) -> None:
        chosen = {"log_level": "warning", **options} | ({} if model is None else {"model": model})
        self._config = Config.from_flat(**chosen)
        self._loop = EventLoop()
        self._thread = LoopThread("engine-client", self._loop, _on_failure)
        self._thread.start()
        self._open = True
        self._running: asyncio.Task[None] | None = None
        try:
            self._frontend, self._host, self._running = self._wait(self._start(in_process))
        except BaseException:
            self._end_loop()
            raise
        atexit.register(self.shutdown)

    # --- generation ---------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: Prompts | None = None,
        sampling_params: SamplingDict | None = None,
        *,
        input_ids: TokenIds | None = None,
        rid: str | Sequence[str] | None = None,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        priority: int | None = None,
        stream: bool = False,
    ) -> Any:
        """Answers one prompt or a list of them, as POST /generate does.

        Args:
            prompt: a text or a list of texts; or give `input_ids`.
            sampling_params: as in the body of /generate; a list: one for each prompt.
            rid: the request's id.
            extra_key, cache_salt: prompts share cached prefixes only within one such pair.
            priority: higher goes first, with `schedule_policy="priority"`.
            stream: an iterator over the answers so far; each has the whole text so far.

        Returns:
            A dict with text, output_ids and meta_info; a list of them for a list of prompts or n > 1.

        Raises:
            InvalidRequest: names the field, the value and the limits.
            QueueFull, Unavailable, EngineFailure: try again.
        """
        body = generate_body(
            text=prompt,
            sampling_params=sampling_params,
            input_ids=input_ids,
            rid=rid,
            extra_key=extra_key,
            cache_salt=cache_salt,
            priority=priority,
        )
        if stream:
            return self._iterate(body)
        return self._wait(self._generate(body))

    async def async_generate(
        self,
        prompt: Prompts | None = None,
        sampling_params: SamplingDict | None = None,
        *,
        input_ids: TokenIds | None = None,
        rid: str | Sequence[str] | None = None,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        priority: int | None = None,
        stream: bool = False,
    ) -> Any:
        """`generate` for a program with an event loop of its own. With `stream`, await it for an async iterator."""
        body = generate_body(
            text=prompt,
            sampling_params=sampling_params,
            input_ids=input_ids,
            rid=rid,
            extra_key=extra_key,
            cache_salt=cache_salt,
            priority=priority,
        )
        if stream:
            return self._iterate_async(body)
        return await asyncio.wrap_future(self._submit(self._generate(body)))

    # --- the engine ---------------------------------------------------------------------------------------

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The prompt of a chat, as the model's chat template writes it; to be given as `input_ids`."""
        rendered = self._frontend.chat_template.render(messages)
        ids: list[int] = self._frontend.tokenizer.encode_chat(rendered).tolist()
        return ids

    def abort(self, rid: str) -> int:
        """Aborts the requests with exactly this id; how many."""
        return self._wait(self._call(lambda client: client.abort_rid(rid)))

    def flush_cache(self, timeout: float = 0.0) -> int:
        """Empties the prefix cache; how many tokens it held.

        Raises:
            Busy: the engine has work, and still has it after `timeout` seconds.
        """
        return self._wait(operations.flush(self._frontend.client, timeout))

    def save_cache(self) -> int:
        """Writes the prefix cache to `cache_dir`, while requests run; how many tokens of KV.

        Raises:
            InvalidRequest: there is no `cache_dir`.
            CacheFileError: it could not be written; the file from before is still there.
        """
        return self._wait(operations.save_cache(self._frontend.client)).saved_tokens

    def pause_generation(self, mode: PauseMode = "abort") -> None:
        """Lets the engine stand still: requests end (abort), wait without memory (retract) or stay (in_place)."""
        self._wait(operations.pause(self._frontend.client, mode))

    def continue_generation(self) -> bool:
        """Lets a paused engine go on; whether it was paused."""
        return self._wait(operations.resume(self._frontend.client))

    def server_info(self) -> dict[str, Any]:
        """Options, limits and current state, as GET /server_info shows them."""
        return self._wait(describe(self._frontend))

    def shutdown(self) -> None:
        """Saves the cache if there is a `cache_dir` and no request runs, and ends the engine process.

        Requests that run end with an error. May be called twice.
        """
        if not self._open:
            return
        atexit.unregister(self.shutdown)
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop.loop).result()
        self._end_loop()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"Engine({self._config.model.model}, {'open' if self._open else 'shut down'})"

    # --- in the event loop --------------------------------------------------------------------------------

    async def _start(self, in_process: bool) -> tuple[Frontend, EngineHost, asyncio.Task[None]]:
        options = self._config.model
        files = await asyncio.to_thread(locate_model, options.model, options.revision)
        frontend = Frontend.build(self._config, files)
        module, name = HOSTS[in_process]
        host: EngineHost = getattr(importlib.import_module(module), name)(self._config, frontend.client)
        running = asyncio.create_task(host.run())
        ready = asyncio.create_task(frontend.client.wait_ready())
        await asyncio.wait({ready, running}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            await running
        return frontend, host, running

    async def _stop(self) -> None:
        self._frontend.client.drain()
        if self._config.cache.cache_dir is not None and not self._frontend.client.num_live:
            await operations.save_before_end(self._frontend.client, self._config.server.cache_save_timeout)
        await self._host.stop()
        # Why an engine ended was told to its requests; here it only has to be over.
        assert self._running is not None
        await asyncio.gather(self._running, return_exceptions=True)
        await self._frontend.close()

    async def _generate(self, body: GenerateBody) -> Answer | list[Answer]:
        call = await prepare(self._frontend, body)
        async with self._frontend.generation(call.prompts, call.placement) as generation:
            answers = [answer_body(answer) for answer in await generation.finish()]
        return answers if call.is_batch else answers[0]

    async def _stream(self, body: GenerateBody) -> AsyncGenerator[list[Answer], None]:
        call = await prepare(self._frontend, body)
        async with self._frontend.generation(call.prompts, call.placement) as generation:
            async for changes in generation:
                for answer, _ in changes:
                    if answer.error is not None:
                        raise answer.error.to_exception()
                yield [answer_body(answer, call.is_batch) for answer, _ in changes]

    async def _call(self, action: Callable[[EngineClient], T]) -> T:
        return action(self._frontend.client)

    # --- from other threads -------------------------------------------------------------------------------

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if not self._open:
            work.close()
            raise EngineFailure("this Engine was shut down; make a new one")
        if self._running is not None and self._running.done():
            work.close()
            raise EngineFailure(f"the engine ended: {self._running.exception()}; make a new Engine")
        return asyncio.run_coroutine_threadsafe(work, self._loop.loop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: the request is aborted
            raise

    def _iterate(self, body: GenerateBody) -> Iterator[Answer]:
        """Asks the event loop for more whenever the caller does, so that a slow caller skips answers."""
        stream = self._stream(body)
        try:
            while True:
                try:
                    yield from self._wait(_next(stream))
                except StopAsyncIteration:
                    return
        finally:
            self._wait(stream.aclose())

    async def _iterate_async(self, body: GenerateBody) -> AsyncIterator[Answer]:
        stream = self._stream(body)
        try:
            while True:
                try:
                    answers = await asyncio.wrap_future(self._submit(_next(stream)))
                except StopAsyncIteration:
                    return
                for answer in answers:
                    yield answer
        finally:
            await asyncio.wrap_future(self._submit(stream.aclose()))

    def _end_loop(self) -> None:
        self._open = False
        self._loop.stop()
        self._thread.join()


async def _next(stream: AsyncGenerator[T, None]) -> T:
    return await anext(stream)


def _on_failure(failure: BaseException) -> None:
    log.error("the event loop of an Engine failed", exc_info=failure)
