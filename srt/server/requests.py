"""From what a client wrote to prompts that the engine can take: encoding, limits, seeds."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Sequence

import numpy as np

from srt.core.errors import InvalidRequest, Unavailable
from srt.core.messages import EngineReady, Int32Array
from srt.core.sampling_params import MAX_SEED
from srt.server.engine_client import EngineClient
from srt.server.generation import Prompt
from srt.server.protocol import SamplingFields
from srt.server.tokenizer import Tokenizer

INLINE_CHARACTERS = 2048
"""A longer text is encoded off the event loop: handing it to a helper thread costs about 0.1 ms."""


class PromptBuilder:
    """Thread: event loop. Checks everything that can be checked before the engine sees a request."""

    def __init__(self, client: EngineClient, tokenizer: Tokenizer) -> None:
        self._client = client
        self._tokenizer = tokenizer

    @property
    def limits(self) -> EngineReady:
        """What the engine announced.

        Raises:
            Unavailable: no engine has started yet.
        """
        self._client.check_available()
        if self._client.ready is None:
            raise Unavailable("the model is still loading, try again soon")
        return self._client.ready

    async def encode(self, texts: Sequence[str], *, field: str) -> list[Int32Array]:
        """Token ids of texts; special tokens in them are special, as the native API has it.

        Raises:
            InvalidRequest: a text cannot be encoded, or gives no token.
        """
        if sum(map(len, texts)) <= INLINE_CHARACTERS:
            encoded = self._tokenizer.encode_batch(texts, field=field)
        else:
            encoded = await asyncio.to_thread(self._tokenizer.encode_batch, texts, field=field)
        for index, token_ids in enumerate(encoded):
            _check_not_empty(token_ids, _item(field, index, texts))
        return encoded

    async def encode_chat(self, rendered: str) -> Int32Array:
        """Token ids of a rendered chat template.

        Raises:
            InvalidRequest: as `encode`.
        """
        if len(rendered) <= INLINE_CHARACTERS:
            return self._tokenizer.encode_chat(rendered)
        return await asyncio.to_thread(self._tokenizer.encode_chat, rendered)

    def check_ids(self, prompts: Sequence[Sequence[int]], *, field: str) -> list[Int32Array]:
        """Prompts that came as token ids.

        Raises:
            InvalidRequest: one is empty, or has an id outside the vocabulary.
        """
        for index, token_ids in enumerate(prompts):
            _check_not_empty(token_ids, _item(field, index, prompts))
        self.check_vocabulary(prompts, field=field)
        return [np.array(token_ids, np.int32) for token_ids in prompts]

    def check_vocabulary(self, prompts: Sequence[Sequence[int]], *, field: str) -> None:
        """Raises:
        InvalidRequest: a list has an id outside the vocabulary.
        """
        size = self.limits.vocab_size
        for index, token_ids in enumerate(prompts):
            for extreme in (min(token_ids, default=0), max(token_ids, default=0)):
                if not 0 <= extreme < size:
                    name = _item(field, index, prompts)
                    raise InvalidRequest(
                        f"{name} has the id {extreme}, the vocabulary has ids 0 to {size - 1}", field=field
                    )

    def build(
        self,
        rid: str | None,
        token_ids: Int32Array,
        sampling: SamplingFields,
        *,
        max_new_tokens: int | None,
        default_max_new_tokens: int | None,
        max_field: str,
        prompt_field: str,
    ) -> list[Prompt]:
        """The choices (`n`) that are asked for one prompt, with seeds `seed`, `seed` + 1, ...

        Args:
            rid: what the client calls the request; None: each choice gets an id of its own.
            max_new_tokens: as the client asked.
            default_max_new_tokens: where it did not; None: as many as fit.
            max_field, prompt_field: what these are called on the client's route.

        Raises:
            InvalidRequest: names the field, the value and the limits.
        """
        limits = self.limits
        in_context = _room(limits.context_length, "the context length is", len(token_ids), prompt_field)
        in_pool = _room(limits.max_total_tokens, "the KV pool holds", len(token_ids), prompt_field)
        if max_new_tokens is None:
            max_new_tokens = min(in_context, in_pool, default_max_new_tokens or in_context)
        elif max_new_tokens < 0:
            raise InvalidRequest(f"{max_field} is {max_new_tokens}, it must be 0 or more", field=max_field)
        max_new_tokens = min(max_new_tokens, in_context)
        if max_new_tokens > in_pool:
            raise InvalidRequest(
                f"{prompt_field} has {len(token_ids)} tokens and {max_field} is {max_new_tokens}: together "
                f"{len(token_ids) + max_new_tokens}, the KV pool holds {limits.max_total_tokens}",
                field=max_field,
            )
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        choices = [
            Prompt(rid or new_rid(), token_ids, sampling.params(max_new_tokens, (seed + index) & MAX_SEED))
            for index in range(sampling.n or 1)
        ]
        choices[0].params.validate(limits.vocab_size)
        return choices


def _room(limit: int, what_limits: str, num_tokens: int, prompt_field: str) -> int:
    """How many tokens may follow a prompt: at least one."""
    if num_tokens >= limit:
        raise InvalidRequest(
            f"{prompt_field} has {num_tokens} tokens, {what_limits} {limit}: at least one must be left for the answer; "
            f"shorten it",
            field=prompt_field,
        )
    return limit - num_tokens


def new_rid() -> str:
    """A request id for a client that gave none."""
    return uuid.uuid4().hex


def _item(field: str, index: int, items: Sequence[object]) -> str:
    return field if len(items) == 1 else f"{field}[{index}]"


def _check_not_empty(token_ids: Sequence[int] | Int32Array, field: str) -> None:
    if len(token_ids) == 0:
        raise InvalidRequest(f"{field} is empty: a prompt needs at least one token", field=field)
