"""Prompts in, text out: what every surface (HTTP routes, `Engine`) does with the engine's streams."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from srt.core.errors import ErrorInfo
from srt.core.messages import FinishReason, Int32Array
from srt.core.sampling_params import SamplingParams
from srt.server.detokenizer import StreamText, TextDelta
from srt.server.engine_client import EngineClient
from srt.server.placement import COMMON, Placement
from srt.server.stop_strings import StopStrings
from srt.server.streams import Stream, StreamGroup
from srt.server.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """One choice that is asked for: the whole prompt as ids, and complete parameters."""

    rid: str
    token_ids: Int32Array
    params: SamplingParams


class Answer:
    """Thread: event loop. One choice, as far as it has come."""

    def __init__(self, index: int, prompt: Prompt, stream: Stream, text: StreamText) -> None:
        self.index = index
        self.prompt = prompt
        self.cached_tokens = 0
        self.num_retractions = 0
        self.ended_at: float | None = None
        self._stream = stream
        self._text = text

    @property
    def stream(self) -> Stream:
        return self._stream

    @property
    def text(self) -> str:
        return self._text.text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self._text.token_ids

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt.token_ids)

    @property
    def completion_tokens(self) -> int:
        return self._text.num_tokens

    @property
    def finish(self) -> FinishReason | None:
        return self._text.finish

    @property
    def error(self) -> ErrorInfo | None:
        """Why the answer failed: not set for one that was merely aborted."""
        return self.finish.error if self.finish is not None and self.finish.kind == "error" else None

    @property
    def seconds(self) -> float:
        """From the request to its end, or until now."""
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self._stream.submitted_at

    def advance(self) -> TextDelta | None:
        """Turns everything that has arrived into text; None when nothing has become visible."""
        batch = self._stream.take()
        if batch is None or self._text.finished:
            return None
        self.cached_tokens = batch.cached_tokens
        self.num_retractions = batch.num_retractions
        delta = self._text.push(batch.token_ids, batch.finish)
        if delta.finish is not None:
            self.ended_at = time.monotonic()
        return delta if delta.text or delta.token_ids or delta.finish is not None else None

    def __repr__(self) -> str:
        return f"Answer({self.index}, {self.completion_tokens} tokens, finish={self.finish})"


Change = tuple[Answer, TextDelta]


class Generation:
    """Thread: event loop. All choices of one request, from its submit to the last finish.

    ::

        async with Generation(client, tokenizer, prompts) as generation:   # refused: raises
            async for changes in generation:
                ...

    Leaving the block early, by an exception or a cancelled task, aborts what still runs.

    Raises:
        InvalidRequest: the stop strings are too long.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        prompts: Sequence[Prompt],
        *,
        placement: Placement = COMMON,
        log_request: bool = False,
    ) -> None:
        self._client = client
        self._prompts = prompts
        self._placement = placement
        self._log_request = log_request
        self._texts = _stream_texts(tokenizer, prompts)
        self._group = StreamGroup()
        self.answers: list[Answer] = []

    async def __aenter__(self) -> Generation:
        """Sends the requests, and waits until the engine has accepted every one.

        Raises:
            TwinloopError: the refusal; nothing of the request runs any more.
        """
        requests = [(prompt.rid, prompt.token_ids, prompt.params) for prompt in self._prompts]
        self._group = self._client.submit(requests, self._placement)
        columns = zip(self._prompts, self._group.streams, self._texts, strict=True)
        self.answers = [Answer(index, *column) for index, column in enumerate(columns)]
        try:
            await self._group.accepted()
        except BaseException:
            self._client.release(self._group)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.release(self._group)
        if self._log_request:
            for answer in self.answers:
                log.info("%s", _log_line(answer))

    async def __aiter__(self) -> AsyncIterator[list[Change]]:
        """Whatever became visible since the last turn: all waiting tokens of a choice are one change."""
        num_open = len(self.answers)
        while num_open:
            await self._group.wait()
            changes = [(answer, delta) for answer in self.answers if (delta := answer.advance()) is not None]
            for answer, delta in changes:
                if delta.keep_tokens is not None:
                    self._client.stop(answer.stream, delta.keep_tokens)
                num_open -= delta.finish is not None
            if changes:
                yield changes

    async def finish(self) -> list[Answer]:
        """Waits for all choices.

        Raises:
            TwinloopError: a choice failed.
        """
        async for _ in self:
            pass
        for answer in self.answers:
            if answer.error is not None:
                raise answer.error.to_exception()
        return self.answers

    def __repr__(self) -> str:
        return f"Generation({self.answers})"


def _stream_texts(tokenizer: Tokenizer, prompts: Sequence[Prompt]) -> list[StreamText]:
    stops = {params.stop: StopStrings(params.stop) for params in (prompt.params for prompt in prompts)}
    return [
        StreamText(
            tokenizer,
            stops[prompt.params.stop],
            skip_special_tokens=prompt.params.skip_special_tokens,
            no_stop_trim=prompt.params.no_stop_trim,
        )
        for prompt in prompts
    ]


def _log_line(answer: Answer) -> str:
    kind = answer.finish.kind if answer.finish is not None else "client gone"
    return (
        f"rid={answer.prompt.rid} index={answer.index} prompt_tokens={answer.prompt_tokens} "
        f"cached_tokens={answer.cached_tokens} completion_tokens={answer.completion_tokens} "
        f"seconds={answer.seconds:.3f} finish={kind}"
    )
