"""The limits of an engine, and what becomes of a request that arrives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from control_loop.req import Req
from srt.core.errors import InvalidRequest
from srt.core.messages import TokenizedReq


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must keep to. Lengths in tokens; `eos_token_ids` end a request unless it ignores them."""

    vocab_size: int
    context_length: int
    max_total_tokens: int
    eos_token_ids: frozenset[int]


def make_req(message: TokenizedReq, limits: Limits, arrival: int, now: float) -> Req:
    """Checks a request against the limits; its output is cut where the context ends (finish "length").

    Raises:
        InvalidRequest: an empty prompt, an id outside the vocabulary, a prompt that fills the context, a request
            that the whole pool could not hold, a bad sampling parameter.
    """
    length = len(message.token_ids)
    if length == 0:
        raise InvalidRequest("the prompt is empty: it must have at least 1 token", field="input_ids")
    low, high = int(np.min(message.token_ids)), int(np.max(message.token_ids))
    if low < 0 or high >= limits.vocab_size:
        wrong = low if low < 0 else high
        raise InvalidRequest(
            f"input_ids has {wrong}, the vocabulary has ids 0 to {limits.vocab_size - 1}", field="input_ids"
        )
    message.params.validate(limits.vocab_size)
    if length >= limits.context_length:
        raise InvalidRequest(
            f"the prompt has {length} tokens, the context of this model holds {limits.context_length} "
            "including at least 1 new token",
            field="input_ids",
        )
    max_new_tokens = min(message.params.max_new_tokens, limits.context_length - length)
    req = Req(message, max_new_tokens, limits.eos_token_ids, arrival, now)
    if req.max_kv > limits.max_total_tokens:
        raise InvalidRequest(
            f"the prompt has {length} tokens and max_new_tokens is {max_new_tokens}: together {req.max_kv} tokens "
            f"of KV memory, the whole pool holds {limits.max_total_tokens}; shorten the prompt, lower max_new_tokens "
            "or start the server with a larger --max-total-tokens",
            field="max_new_tokens",
        )
    return req
