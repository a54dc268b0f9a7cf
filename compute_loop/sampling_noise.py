"""Gumbel noise that is a pure function of (seed, position, token id).

The generator is counter-based: there is no state to advance, so a token's noise depends neither on the batch around
the row, nor on its slot, nor on the device, nor on which other tokens are asked for. The bits come from SplitMix64
(Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014), which is random access: output n of
seed s is ``mix64(s + (n + 1) * GAMMA)``. It is used three times over::

    output 0 of the seed          -> start of the request
    output `position` of that     -> key of the row
    output `token // 2` of that   -> 64 bits, 31 of each half for one of two tokens

Why the maximum of logits + Gumbel noise is a sample of their softmax: Gumbel 1954; Yellott, "The relationship between
Luce's choice axiom ...", 1977.
"""

from __future__ import annotations

import torch


def _signed(word: int) -> int:
    """The int64 with the bits of an unsigned word: torch has no arithmetic for uint64, wrapping int64 does the same."""
    return word - (1 << 64) if word >= 1 << 63 else word


GAMMA = _signed(0x9E3779B97F4A7C15)

_MIX = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)), (31, 1))
"""Rounds of ``z = (z ^ (z >> shift)) * factor``."""

_BITS = 0x7FFFFFFF
_TO_UNIT = 2.0**-31 * (1.0 - 2.0**-24)
"""Odd 31-bit integer, rounded to float32 -> (0, 1), neither end included."""

_CHUNK = 1 << 17
"""Tokens worked on at once: what fits a core's cache."""


def mix64(words: torch.Tensor, scratch: torch.Tensor | None = None) -> torch.Tensor:
    """SplitMix64's finaliser on int64 `words`, in place; `scratch` is of the same shape."""
    scratch = torch.empty_like(words) if scratch is None else scratch
    for shift, factor in _MIX:
        torch.bitwise_right_shift(words, shift, out=scratch)
        # The shift of a signed word drags its sign along.
        scratch.bitwise_and_((1 << (64 - shift)) - 1)
        words.bitwise_xor_(scratch)
        if factor != 1:
            words.mul_(factor)
    return words


def row_keys(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """int64 ``[rows]``: what the noise of a row is made from."""
    starts = mix64(seeds.to(torch.int64) + GAMMA)
    return mix64(starts.add_((positions.to(torch.int64) + 1) * GAMMA))


def _gumbel_(unit: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in (0, 1) -> Gumbel noise, in place.

    ``-log(-log(1 - u))``: large noise, which decides, comes from small u, which floats resolve finely.
    """
    return unit.neg_().log1p_().neg_().log_().neg_()


class TokenNoise:
    """Thread: compute. Gumbel noise for rows of one vocabulary; owns scratch memory, no random state."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        num_words = (vocab_size + 1) // 2
        self._rows_at_once = max(1, _CHUNK // vocab_size)
        self._offsets = torch.arange(1, num_words + 1, dtype=torch.int64, device=device) * GAMMA
        self._words = torch.empty((self._rows_at_once, num_words), dtype=torch.int64, device=device)
        self._scratch = torch.empty_like(self._words)
        self._unit = torch.empty((self._rows_at_once, 2 * num_words), dtype=torch.float32, device=device)

    def add_to(self, scores: torch.Tensor, keys: torch.Tensor) -> None:
        """Adds the noise of every token to float32 `scores` ``[rows, vocab]``; `keys` are from `row_keys`."""
        for first in range(0, len(keys), self._rows_at_once):
            part = keys[first : first + self._rows_at_once]
            words, scratch, unit = (
                buffer[: len(part)] for buffer in (self._words, self._scratch, self._unit)
            )
            torch.add(part.unsqueeze(1), self._offsets, out=words)
            bits = mix64(words, scratch).view(torch.int32)
            unit.copy_(bits.bitwise_and_(_BITS).bitwise_or_(1)).mul_(_TO_UNIT)
            scores[first : first + len(part)] += _gumbel_(unit)[:, : self.vocab_size]

    def of(self, keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """The noise of some tokens, float32 ``[rows, k]`` for int64 `token_ids` ``[rows, k]``."""
        words = mix64(keys.unsqueeze(1) + (token_ids // 2 + 1) * GAMMA)
        halves = torch.where(token_ids % 2 == 1, words >> 32, words)
        return _gumbel_(
            halves.bitwise_and_(_BITS).bitwise_or_(1).to(torch.int32).to(torch.float32).mul_(_TO_UNIT)
        )

    def __repr__(self) -> str:
        return f"TokenNoise(vocab_size={self.vocab_size}, rows_at_once={self._rows_at_once})"
