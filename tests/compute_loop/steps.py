"""Steps made by hand: what the compute loop would launch, with pages in any order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compute_loop.forward_batch import ForwardBatch, NewSeq
from compute_loop.runner.base import StepTokens
from compute_loop.runner.eager import EagerStep
from compute_loop.runner.load import LoadedModel, load_runner
from srt.core.config import Config
from srt.core.messages import Int32Array
from srt.core.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def load_small(model: Path | str, **options: object) -> LoadedModel:
    """A runner in float32 on one thread with a small pool; `options` override."""
    defaults: dict[str, object] = {
        "model": str(model),
        "dtype": "float32",
        "compute_threads": 1,
        "max_total_tokens": 2048,
        "max_running_requests": 8,
    }
    return load_runner(Config.from_flat(**(defaults | options)))


@dataclass
class Life:
    """A sequence in a slot: all its tokens so far, how many have KV, and its pages."""

    token_ids: list[int]
    prompt_len: int
    kv_len: int = 0
    begun: bool = False
    pages: list[int] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return self.token_ids[self.prompt_len :]


class StepDriver:
    """Launches steps on a runner and keeps what the loops would keep. Pages go out in an order that `seed` gives."""

    def __init__(self, loaded: LoadedModel, seed: int = 0) -> None:
        self.loaded = loaded
        self.runner = loaded.runner
        self.sequences: dict[int, Life] = {}
        self._free = list(range(1, loaded.num_pages + 1))
        random.Random(seed).shuffle(self._free)
        self._step = 0
        self._table: list[tuple[int, int, int]] = []
        self.last_handle: EagerStep | None = None

    def begin(
        self, slot: int, prompt: Sequence[int], cached_from: int | None = None, cached: int = 0
    ) -> None:
        """A new life of `slot`; its first `cached` tokens (whole pages) lie in pages of slot `cached_from`."""
        sequence = Life(list(prompt), len(prompt), cached)
        self.sequences[slot] = sequence
        if cached_from is not None:
            for page in self.sequences[cached_from].pages[: cached // self.loaded.page_size]:
                self._add_page(slot, page)

    def grow(self, slot: int, num_tokens: int) -> None:
        """Pages for the first `num_tokens` tokens of a sequence."""
        while len(self.sequences[slot].pages) * self.loaded.page_size < num_tokens:
            self._add_page(slot, self._free.pop())

    def end(self, slot: int) -> None:
        self._free += self.sequences.pop(slot).pages

    def step(
        self,
        chunks: dict[int, int] | None = None,
        decodes: Sequence[int] = (),
        params: SamplingParams = GREEDY,
    ) -> StepTokens:
        """One step: `chunks` is slot -> number of prompt tokens; `decodes` are slots whose prompt is done."""
        chunks = chunks or {}
        slots = [*chunks, *decodes]
        starts = [self.sequences[slot].kv_len for slot in slots]
        counts = [*chunks.values(), *(1 for _ in decodes)]
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        chunk_ids = [
            self.sequences[slot].token_ids[start : start + count]
            for (slot, count), start in zip(chunks.items(), starts, strict=False)
        ]
        new = tuple(NewSeq(slot, params) for slot in chunks if not self.sequences[slot].begun)
        for slot, end in zip(slots, ends, strict=True):
            self.grow(slot, end)
        last = [end == len(self.sequences[slot].token_ids) for slot, end in zip(slots, ends, strict=True)]
        table, self._table = np.array(self._table, np.int32).reshape(-1, 3), []
        self._step += 1
        batch = ForwardBatch(
            step=self._step,
            num_chunks=len(chunks),
            slots=_column(slots),
            generations=np.ones(len(slots), np.int64),
            starts=_column(starts),
            num_new_tokens=_column(counts),
            sampled=np.array(last, np.bool_),
            chunk_ids=_column([token for ids in chunk_ids for token in ids]),
            table_slots=table[:, 0].copy(),
            table_index=table[:, 1].copy(),
            table_pages=table[:, 2].copy(),
            new_seqs=new,
        )
        tokens = self._run(batch)
        for slot, end, token in zip(slots, ends, tokens.token_ids.tolist(), strict=True):
            self.sequences[slot].kv_len, self.sequences[slot].begun = end, True
            if token >= 0:
                self.sequences[slot].token_ids.append(token)
        return tokens

    def generate(self, slot: int, prompt: Sequence[int], count: int, chunk: int | None = None) -> list[int]:
        """One request alone: the prompt in chunks, then decodes."""
        self.begin(slot, prompt)
        for start in range(0, len(prompt), chunk or len(prompt)):
            self.step({slot: min(chunk or len(prompt), len(prompt) - start)})
        for _ in range(count - 1):
            self.step(decodes=[slot])
        return self.sequences[slot].output

    def _run(self, batch: ForwardBatch) -> StepTokens:
        handle = self.runner.launch(batch)
        self.last_handle = handle
        rows = np.flatnonzero(batch.sampled).astype(np.int32)
        if len(rows):
            self.runner.sample(handle, rows, None)
        return self.runner.wait(handle)

    def _add_page(self, slot: int, page: int) -> None:
        pages = self.sequences[slot].pages
        self._table.append((slot, len(pages), page))
        pages.append(page)


def _column(values: Sequence[Any]) -> Int32Array:
    return np.array(values, np.int32)
