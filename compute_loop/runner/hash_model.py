"""A language model made of a hash: the next token is a hash of all tokens before it, read through the KV pages.

One wrong page, one page rewritten too early, one position off, and the tokens differ from `next_token` over the plain
list. That makes it the judge of every protocol question, thousands of schedules a minute, without a real model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compute_loop.forward_batch import ForwardBatch
from compute_loop.runner.base import StepTokens
from srt.core.messages import Int32Array
from srt.core.sampling_params import SamplingParams
from srt.core.step_messages import NO_TOKEN

UNWRITTEN = -1
_MULTIPLIER = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


class UnwrittenKV(AssertionError):
    """A row read a KV position that no step had written."""


def next_token(token_ids: Int32Array, params: SamplingParams, vocab_size: int) -> int:
    """The token behind `token_ids`: a function of all of them, and of the seed where the request is random.

    Source of the final mixing: splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
    """
    state = len(token_ids) if params.is_greedy else (params.seed * 31 + len(token_ids)) & _MASK
    weights = np.cumprod(np.full(len(token_ids), _MULTIPLIER, np.uint64))
    total = int(np.sum((token_ids.astype(np.uint64) + np.uint64(1)) * weights, dtype=np.uint64))
    mixed = (total + state * _MULTIPLIER) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) % vocab_size


NextToken = Callable[[Int32Array, SamplingParams, int], int]
"""The model: all tokens so far, the parameters and the size of the vocabulary to the token behind them."""


def generate(
    prompt: list[int],
    params: SamplingParams,
    vocab_size: int,
    stops: frozenset[int],
    choose: NextToken = next_token,
) -> list[int]:
    """The oracle: all output tokens of a request, computed from nothing but its prompt."""
    token_ids = list(prompt)
    while len(token_ids) - len(prompt) < params.max_new_tokens:
        token_ids.append(choose(np.array(token_ids, np.int32), params, vocab_size))
        if token_ids[-1] in stops:
            break
    return token_ids[len(prompt) :]


@dataclass(slots=True, eq=False)
class HashStep:
    """A launched step; `token_ids` once it has run."""

    batch: ForwardBatch
    sampled: Int32Array
    token_ids: Int32Array | None = None


class HashRunner:
    """Thread: compute. Runs a step when it is launched, or, `asynchronous`, as late as the order of steps allows.

    `fault` is called with each batch before it runs and may raise: an injected failure. `choose` is the model.

    Attributes:
        host: the KV of host pages, ``[num_host_pages, page_size]``.
    """

    name = "hash-model"
    one_call = True

    def __init__(
        self,
        num_slots: int,
        num_pages: int,
        page_size: int,
        max_tokens: int,
        vocab_size: int,
        asynchronous: bool = True,
        fault: Callable[[ForwardBatch], None] | None = None,
        choose: NextToken = next_token,
        num_host_pages: int = 0,
    ) -> None:
        self.asynchronous = asynchronous
        self._choose = choose
        self._vocab_size = vocab_size
        self._page_size = page_size
        self._fault = fault
        self._kv = np.full((num_pages + 1, page_size), UNWRITTEN, np.int64)
        self.host = np.full((num_host_pages, page_size), UNWRITTEN, np.int64)
        self._table = np.zeros((num_slots + 1, -(-max_tokens // page_size)), np.int32)
        self._last_token = np.full(num_slots + 1, NO_TOKEN, np.int64)
        self._params: dict[int, SamplingParams] = {}
        self._launched: deque[HashStep] = deque()

    def launch(self, batch: ForwardBatch) -> HashStep:
        step = HashStep(batch, np.empty(0, np.int32))
        self._launched.append(step)
        return step

    def sample(self, handle: HashStep, rows: Int32Array, masks: npt.NDArray[Any] | None) -> None:
        if masks is not None:
            raise NotImplementedError("the hash model takes no token masks")
        handle.sampled = rows

    def wait(self, handle: HashStep) -> StepTokens:
        while handle.token_ids is None:
            self._run(self._launched.popleft())
        return StepTokens(handle.token_ids)

    def copy_pages(self, src: Int32Array, dst: Int32Array, to_host: bool) -> None:
        if to_host:
            self.host[dst] = self._kv[src]
        else:
            self._kv[dst] = self.host[src]

    def reset(self) -> None:
        self._launched.clear()
        self._last_token[:] = NO_TOKEN

    def close(self) -> None:
        self.reset()

    def _run(self, step: HashStep) -> None:
        batch = step.batch
        if self._fault is not None:
            self._fault(batch)
        self._table[batch.table_slots, batch.table_index] = batch.table_pages
        for new in batch.new_seqs:
            self._params[new.slot] = new.params
        self._store(batch)
        token_ids = np.full(batch.num_rows, NO_TOKEN, np.int32)
        for row in step.sampled:
            slot = int(batch.slots[row])
            seen = self._read(slot, int(batch.starts[row] + batch.num_new_tokens[row]))
            token_ids[row] = self._choose(seen, self._params[slot], self._vocab_size)
        self._last_token[batch.slots[step.sampled]] = token_ids[step.sampled]
        step.token_ids = token_ids

    def _store(self, batch: ForwardBatch) -> None:
        """All rows write before any row reads."""
        decodes = self._last_token[batch.slots[batch.num_chunks :]]
        if (decodes == NO_TOKEN).any():
            raise UnwrittenKV("a row decodes without a token of a step before")
        values = np.concatenate([batch.chunk_ids, decodes])
        rows = np.repeat(np.arange(batch.num_rows), batch.num_new_tokens)
        ends = np.cumsum(batch.num_new_tokens)
        positions = np.arange(len(values)) - (ends - batch.num_new_tokens)[rows] + batch.starts[rows]
        pages = self._table[batch.slots[rows], positions // self._page_size]
        if (pages == 0).any():
            raise UnwrittenKV("a row writes to a position without a page")
        self._kv[pages, positions % self._page_size] = values

    def _read(self, slot: int, length: int) -> Int32Array:
        pages = self._table[slot, : -(-length // self._page_size)]
        tokens = self._kv[pages].reshape(-1)[:length]
        if (tokens == UNWRITTEN).any():
            raise UnwrittenKV(
                f"slot {slot} reads position {int(np.argmin(tokens))}, which no step has written"
            )
        return tokens.astype(np.int32)
