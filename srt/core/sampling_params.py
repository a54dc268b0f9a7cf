"""How one request wants its tokens chosen, and when it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from srt.core.errors import InvalidRequest

GREEDY_BELOW = 1e-6
"""Temperatures below this mean greedy decoding: dividing logits by them would overflow to inf and NaN."""

MAX_TEMPERATURE = 1000.0
"""Above this every token is as likely as any other; float32 logits must survive the division."""

MAX_STOP_STRINGS = 32
MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and ending of one request. Complete at birth: `max_new_tokens` and `seed` are resolved numbers.

    Attributes:
        max_new_tokens: how many tokens may be generated, >= 0.
        temperature: in [0, MAX_TEMPERATURE]; below `GREEDY_BELOW` the most likely token is taken.
        top_k: keep the k most likely tokens; -1 keeps all. (0 is accepted from clients as "all".)
        top_p: keep the smallest set of most likely tokens whose mass reaches this, in (0, 1].
        min_p: drop tokens less likely than this share of the most likely one, in [0, 1].
        seed: random numbers are a pure function of (seed, position).
        stop: strings that end the text; decided by the detokenizer.
        stop_token_ids: tokens that end the request; decided by the compute loop.
        ignore_eos: the model's own end-of-sequence tokens do not end the request.
        skip_special_tokens: special tokens do not appear in the text.
        no_stop_trim: the stop string or token stays in the text.
    """

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    def validate(self, vocab_size: int) -> None:
        """Checks every field against its range.

        Raises:
            InvalidRequest: names the field, the value and the limits.
        """
        _check_range("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        _check_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("max_new_tokens", self.max_new_tokens, 0, 2**31 - 1)
        _check_range("seed", self.seed, 0, MAX_SEED)
        _check_range("top_k", self.top_k, -1, 2**31 - 1)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(
                f"stop has {len(self.stop)} strings, at most {MAX_STOP_STRINGS} are allowed", field="stop"
            )
        if any(text == "" for text in self.stop):
            raise InvalidRequest("stop has an empty string: it would end every text at once", field="stop")
        for token in self.stop_token_ids:
            if not 0 <= token < vocab_size:
                raise InvalidRequest(
                    f"stop_token_ids has {token}, the vocabulary has ids 0 to {vocab_size - 1}",
                    field="stop_token_ids",
                )


def _check_range(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    # NaN fails every comparison, so the condition is written to accept, not to reject.
    above = value > low if open_low else value >= low
    if above and value <= high and math.isfinite(value):
        return
    bracket = "(" if open_low else "["
    raise InvalidRequest(f"{name} is {value}, it must lie in {bracket}{low}, {high}]", field=name)
