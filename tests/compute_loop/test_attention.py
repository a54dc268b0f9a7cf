"""The torch attention backend against attention computed key by key in float64."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from compute_loop.attention.row_groups import SPLIT_COST, group_rows
from compute_loop.attention.torch_backend import TorchAttention
from compute_loop.forward_batch import ForwardBatch
from compute_loop.models.program import Heads
from mem_pool.kv_format import KVFormat
from mem_pool.kv_pool import KVPool
from mem_pool.page_table import PageTable
from srt.core.messages import Int32Array, empty_int32

CPU = torch.device("cpu")


@dataclass
class Case:
    """Rows of one step over KV that is there already; pages in random order, everything unused is NaN."""

    heads: Heads
    page_size: int
    starts: list[int]
    counts: list[int]
    num_chunks: int
    seed: int

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        generator = torch.Generator().manual_seed(self.seed)
        self.lengths = [start + count for start, count in zip(self.starts, self.counts, strict=True)]
        per_row = [-(-length // self.page_size) for length in self.lengths]
        num_pages = sum(per_row) + 3
        heads = self.heads
        self.pool = KVPool(
            num_pages, self.page_size, 2, heads.num_kv_heads, heads.head_dim, KVFormat(torch.float32), CPU
        )
        for layer in self.pool.layers:
            layer.fill_(math.nan)
        self.table = PageTable(len(self.starts) + 1, max(per_row) + 2, CPU)
        self.table.pages.fill_(num_pages)  # never owned: reading it yields NaN
        free = list(range(1, num_pages))
        rng.shuffle(free)
        self.keys, self.values = [], []
        for row, length in enumerate(self.lengths):
            pages = np.array([free.pop() for _ in range(per_row[row])], np.int32)
            index = np.arange(len(pages), dtype=np.int32)
            self.table.apply(np.full(len(pages), row + 1, np.int32), index, pages)
            k, v = torch.randn(2, length, heads.num_kv_heads, heads.head_dim, generator=generator)
            position = torch.arange(length)
            where = torch.from_numpy(pages).long()[position // self.page_size] * self.page_size
            self.pool.store(1, where + position % self.page_size, k, v)
            self.keys.append(k)
            self.values.append(v)
        self.q = torch.randn(sum(self.counts), heads.q_size, generator=generator)

    def run(self) -> torch.Tensor:
        backend = TorchAttention(self.pool, self.heads)
        out = torch.full_like(self.q, math.nan)
        backend.run(backend.plan(self.batch(), self.table), 1, self.q, out)
        return out

    def batch(self) -> ForwardBatch:
        return ForwardBatch(
            step=1,
            num_chunks=self.num_chunks,
            slots=np.arange(1, len(self.starts) + 1, dtype=np.int32),
            generations=np.ones(len(self.starts), np.int64),
            starts=_column(self.starts),
            num_new_tokens=_column(self.counts),
            sampled=np.ones(len(self.starts), np.bool_),
            chunk_ids=np.zeros(sum(self.counts[: self.num_chunks]), np.int32),
            table_slots=empty_int32(),
            table_index=empty_int32(),
            table_pages=empty_int32(),
        )

    def expected(self) -> torch.Tensor:
        heads = self.heads
        group = heads.num_heads // heads.num_kv_heads
        queries = self.q.double().view(-1, heads.num_heads, heads.head_dim)
        out = torch.empty_like(queries)
        token = 0
        for row, (start, count) in enumerate(zip(self.starts, self.counts, strict=True)):
            for position in range(start, start + count):
                first = 0 if heads.window is None else max(0, position + 1 - heads.window)
                seen = slice(first, position + 1)
                for head in range(heads.num_heads):
                    keys = self.keys[row][seen, head // group].double()
                    weights = (keys @ queries[token, head] / math.sqrt(heads.head_dim)).softmax(0)
                    out[token, head] = weights @ self.values[row][seen, head // group].double()
                token += 1
        return out.view(len(self.q), -1).float()


def _column(values: list[int]) -> Int32Array:
    return np.array(values, np.int32)


def check(case: Case) -> None:
    torch.testing.assert_close(
        case.run(), case.expected(), atol=2e-6, rtol=2e-5, msg=lambda text: f"{case}\n{text}"
    )


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (9, 3), (8, 2), (7, 1)])
def test_decode_rows_of_any_length(num_heads: int, num_kv_heads: int, page_size: int) -> None:
    starts = [0, 14, 15, 16, 17, 31, 32, 100, 700]
    check(Case(Heads(num_heads, num_kv_heads, 16, None), page_size, starts, [1] * len(starts), 0, seed=1))


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (9, 3), (8, 2), (7, 1)])
def test_chunks_with_and_without_a_prefix(num_heads: int, num_kv_heads: int, page_size: int) -> None:
    starts, counts = [0, 0, 0, 15, 16, 17, 33], [1, 16, 33, 1, 17, 15, 40]
    check(Case(Heads(num_heads, num_kv_heads, 16, None), page_size, starts, counts, len(starts), seed=2))


@pytest.mark.parametrize("window", [1, 2, 5, 16, 17, 64])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_sliding_window(window: int, page_size: int) -> None:
    starts, counts = [0, 0, 15, 40, 0, 3, 16, 47, 63, 64, 200], [1, 40, 20, 9, 1, 1, 1, 1, 1, 1, 1]
    check(Case(Heads(4, 2, 8, window), page_size, starts, counts, num_chunks=4, seed=3))


@pytest.mark.parametrize("seed", range(8))
def test_random_mixed_steps(seed: int) -> None:
    rng = random.Random(seed)
    num_kv_heads = rng.choice([1, 2, 3])
    heads = Heads(
        num_kv_heads * rng.choice([1, 3, 4]),
        num_kv_heads,
        rng.choice([8, 64]),
        rng.choice([None, None, 9, 30]),
    )
    num_chunks, num_decodes = rng.randint(0, 3), rng.randint(1, 12)
    starts = [rng.choice([0, rng.randint(1, 80)]) for _ in range(num_chunks)]
    starts += [rng.choice([rng.randint(0, 40), rng.randint(0, 400)]) for _ in range(num_decodes)]
    counts = [rng.randint(1, 40) for _ in range(num_chunks)] + [1] * num_decodes
    check(Case(heads, rng.choice([1, 4, 16]), starts, counts, num_chunks, seed))


def test_rows_of_like_length_form_one_group() -> None:
    groups = group_rows(_column([30, 33, 31, 32]))
    assert [group.tolist() for group in groups] == [[0, 1, 2, 3]]


def test_a_much_longer_row_gets_a_group_of_its_own() -> None:
    groups = group_rows(_column([2000, 10, 10 + SPLIT_COST, 11]))
    assert [group.tolist() for group in groups] == [[1, 3], [2], [0]]
    assert group_rows(empty_int32()) == []


def test_padding_of_a_group_costs_less_than_it_saves() -> None:
    seed = 4
    rng = np.random.default_rng(seed)
    for _ in range(50):
        lengths = rng.integers(1, 3000, rng.integers(1, 60)).astype(np.int32)
        groups = group_rows(lengths)
        assert sorted(np.concatenate(groups).tolist()) == list(range(len(lengths))), f"seed {seed}"
        for group in groups:
            ordered = np.sort(lengths[group])
            steps = np.diff(ordered) * np.arange(1, len(group))
            assert (steps <= SPLIT_COST).all(), f"seed {seed}"
