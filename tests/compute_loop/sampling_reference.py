"""The rules of sampling, one row at a time, in plain Python: what the batched sampler is compared with."""

from __future__ import annotations

import math

from srt.core.sampling_params import SamplingParams

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def splitmix64(seed: int, index: int) -> int:
    """Output `index` of the generator, as published: advance the state, then mix it."""
    z = (seed + (index + 1) * GAMMA) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def gumbel(seed: int, position: int, token: int) -> float:
    """The noise of one token: 31 bits of the key's stream, two tokens an output."""
    start = splitmix64(seed, 0)
    key = splitmix64(start, position)
    word = splitmix64(key, token // 2)
    bits = (word >> 32 if token % 2 else word) & 0x7FFFFFFF | 1
    return -math.log(-math.log1p(-bits * 2.0**-31 * (1 - 2.0**-24)))


def tempered(logits: list[float], temperature: float) -> list[float]:
    largest = max(logits)
    return [(logit - largest) / temperature for logit in logits]


def kept_tokens(logits: list[float], params: SamplingParams) -> list[int]:
    """Ids that the filters leave, in descending order of logit, equal ones by ascending id."""
    scores = tempered(logits, params.temperature)
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    order = [token for token in order if scores[token] > -math.inf]
    if params.top_k > 0:
        order = order[: params.top_k]
    total = math.fsum(math.exp(scores[token]) for token in order)
    kept: list[int] = []
    mass = 0.0
    for token in order:
        if params.top_p < 1.0 and mass >= params.top_p * total:
            break
        kept.append(token)
        mass += math.exp(scores[token])
    likeliest = math.exp(scores[order[0]])
    return [token for token in kept if math.exp(scores[token]) >= params.min_p * likeliest]


def choose(logits: list[float], params: SamplingParams, position: int) -> int:
    """The token that the sampler must choose."""
    if params.is_greedy:
        return logits.index(max(logits))
    scores = tempered(logits, params.temperature)
    return max(
        kept_tokens(logits, params),
        key=lambda token: (scores[token] + gumbel(params.seed, position, token), -token),
    )
