"""What OpenAI's clients expect to read: whole answers, chunks, usage."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar

from srt.server.detokenizer import TextDelta
from srt.server.generation import Answer, Generation
from srt.server.http_errors import openai_error
from srt.server.sse import event


class OpenAiShape(ABC):
    """Thread: event loop. How one request's answers look on one route.

    Args:
        rid: the request's id.
        model: name of the model.
        n: choices per prompt.
    """

    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    id_prefix: ClassVar[str]

    def __init__(self, rid: str, model: str, n: int) -> None:
        self._id = self.id_prefix + rid
        self._model = model
        self._n = n
        self._created = int(time.time())

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = [self._with_finish(self._choice(answer), answer) for answer in answers]
        return {**self._envelope(self.whole_object), "choices": choices, "usage": self._usage(answers)}

    async def events(self, generation: Generation, include_usage: bool) -> AsyncGenerator[bytes, None]:
        """The chunks of a streamed answer, without the final mark; all that is ready in one turn is one item."""
        head = b"".join(self._chunk(self._opening(answer)) for answer in generation.answers)
        async for changes in generation:
            text = b"".join(self._change(answer, delta) for answer, delta in changes)
            yield head + text
            head = b""
        if include_usage:
            envelope = self._envelope(self.chunk_object)
            yield event({**envelope, "choices": [], "usage": self._usage(generation.answers)})

    def _change(self, answer: Answer, delta: TextDelta) -> bytes:
        if answer.error is not None:
            return event(openai_error(answer.error))
        # A client counts the finish reasons: the last chunk of a choice, and no other, has one.
        if delta.finish is not None:
            return self._chunk(self._with_finish(self._delta(answer, delta.text), answer))
        return self._chunk(self._delta(answer, delta.text)) if delta.text else b""

    def _chunk(self, choice: dict[str, Any] | None) -> bytes:
        if choice is None:
            return b""
        return event({**self._envelope(self.chunk_object), "choices": [choice]})

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _with_finish(self, choice: dict[str, Any], answer: Answer) -> dict[str, Any]:
        assert answer.finish is not None
        return {**choice, "finish_reason": answer.finish.kind, "matched_stop": answer.finish.matched}

    def _usage(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The choices of one prompt share it: it counts once."""
        firsts = answers[:: self._n]
        prompt_tokens = sum(answer.prompt_tokens for answer in firsts)
        completion_tokens = sum(answer.completion_tokens for answer in answers)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(answer.cached_tokens for answer in firsts)},
        }

    def _opening(self, answer: Answer) -> dict[str, Any] | None:
        """The first chunk of a choice, before there is text."""
        return None

    @abstractmethod
    def _choice(self, answer: Answer) -> dict[str, Any]:
        """A whole choice, its finish reason open."""

    @abstractmethod
    def _delta(self, answer: Answer, text: str) -> dict[str, Any]:
        """More text of a choice, its finish reason open."""


class CompletionShape(OpenAiShape):
    """/v1/completions."""

    whole_object = "text_completion"
    chunk_object = "text_completion"
    id_prefix = "cmpl-"

    def _choice(self, answer: Answer) -> dict[str, Any]:
        return self._delta(answer, answer.text)

    def _delta(self, answer: Answer, text: str) -> dict[str, Any]:
        return {"index": answer.index, "text": text, "logprobs": None, "finish_reason": None}


class ChatShape(OpenAiShape):
    """/v1/chat/completions."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    id_prefix = "chatcmpl-"

    def _choice(self, answer: Answer) -> dict[str, Any]:
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        return {"index": answer.index, "message": message, "logprobs": None, "finish_reason": None}

    def _opening(self, answer: Answer) -> dict[str, Any]:
        return self._with_delta(answer, {"role": "assistant", "content": ""})

    def _delta(self, answer: Answer, text: str) -> dict[str, Any]:
        return self._with_delta(answer, {"content": text} if text else {})

    def _with_delta(self, answer: Answer, delta: dict[str, str]) -> dict[str, Any]:
        return {"index": answer.index, "delta": delta, "logprobs": None, "finish_reason": None}
