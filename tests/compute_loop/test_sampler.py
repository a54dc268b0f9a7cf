"""The batched sampler against the rules in plain Python, its distribution, and its independence of the batch."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from compute_loop.sampler import SlotSampling, argmax, sample
from compute_loop.sampling_prefix import SHORTLIST, PrefixLimits, shortlist
from srt.core.sampling_params import SamplingParams
from tests.compute_loop.sampling_reference import choose, kept_tokens

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def sample_with(
    logits: torch.Tensor, params: list[SamplingParams], positions: list[int] | None = None
) -> list[int]:
    """Row i in slot i."""
    state = SlotSampling(len(params), logits.shape[1], CPU)
    for slot, each in enumerate(params):
        state.set(slot, each)
    index = torch.tensor(positions or [0] * len(params))
    chosen = sample(logits, torch.arange(len(params)), index, state)
    assert chosen.dtype == torch.int32
    return [int(token) for token in chosen]


def draw(logits: torch.Tensor, params: SamplingParams, count: int) -> torch.Tensor:
    """`count` tokens of one request: `logits` ``[vocab]`` at positions 0 to count - 1."""
    state = SlotSampling(1, len(logits), CPU)
    state.set(0, params)
    rows = max(1, 2**22 // len(logits))
    parts = []
    for first in range(0, count, rows):
        positions = torch.arange(first, min(count, first + rows))
        slots = torch.zeros(len(positions), dtype=torch.int32)
        parts.append(sample(logits.expand(len(positions), -1), slots, positions, state))
    return torch.cat(parts)


def assert_distributed(tokens: torch.Tensor, probabilities: torch.Tensor) -> None:
    """Chi-square at p = 1e-6 (Wilson-Hilferty bound), rare tokens pooled so that each bin expects 10 or more."""
    expected = probabilities.double() * len(tokens)
    seen = torch.bincount(tokens.long(), minlength=len(expected)).double()
    assert int(seen[expected == 0].sum()) == 0, "a token that was filtered out was chosen"
    common = expected >= 10
    bins = [(seen[common], expected[common])]
    if float(expected[~common].sum()) >= 10:
        bins.append((seen[~common].sum().view(1), expected[~common].sum().view(1)))
    statistic = sum(float(((s - e) ** 2 / e).sum()) for s, e in bins)
    freedom = sum(len(s) for s, _ in bins) - 1
    if freedom == 0:
        return
    limit = freedom * (1 - 2 / (9 * freedom) + 4.76 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit, f"chi-square {statistic:.1f} over {limit:.1f} with {freedom} degrees of freedom"


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.05, "temperature": 1.3},
]


@pytest.mark.parametrize("vocab_size", [2, 50, 1000])
@pytest.mark.parametrize("filters", FILTERS)
def test_distribution(vocab_size: int, filters: dict[str, Any]) -> None:
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(7)) * 2
    params = SamplingParams(seed=11, **filters)
    kept = kept_tokens(logits.tolist(), params)
    scores = torch.full_like(logits, -math.inf)
    scores[kept] = logits[kept] / params.temperature
    assert_distributed(draw(logits, params, 40_000), scores.softmax(dim=0))


def test_distribution_over_seeds() -> None:
    """One token each of many requests: seeds are as good as positions."""
    logits = torch.randn(30, generator=torch.Generator().manual_seed(3))
    count = 20_000
    state = SlotSampling(count, 30, CPU)
    for slot in range(count):
        state.set(slot, SamplingParams(seed=slot))
    tokens = sample(logits.expand(count, -1), torch.arange(count), torch.full((count,), 17), state)
    assert_distributed(tokens, logits.softmax(dim=0))


def random_logits(rng: random.Random, kind: str, vocab_size: int) -> list[float]:
    makers: dict[str, Callable[[], float]] = {
        "plain": lambda: rng.gauss(0, 4),
        "flat": lambda: rng.gauss(0, 0.01),
        "ties": lambda: float(rng.randrange(-3, 3)),
        "masked": lambda: rng.gauss(0, 4) if rng.random() < 0.3 else -math.inf,
        "equal": lambda: 1.5,
    }
    logits = [makers[kind]() for _ in range(vocab_size)]
    logits[rng.randrange(vocab_size)] = 3.25
    # What the sampler sees are float32.
    return [float(np.float32(logit)) for logit in logits]


def random_params(rng: random.Random, vocab_size: int) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0.0, 1e-30, 1e-4, 0.3, 1.0, 1.0, 2.5, 100.0]),
        top_k=rng.choice(
            [-1, -1, 0, 1, 2, 7, SHORTLIST - 1, SHORTLIST, SHORTLIST + 1, vocab_size, vocab_size + 9]
        ),
        # Not a sum of equal shares: there, rounding may decide either way.
        top_p=rng.choice([1.0, 1.0, 0.9137, 0.5013, 1e-6]),
        min_p=rng.choice([0.0, 0.0, 0.0317, 0.6113, 1.0]),
        seed=rng.randrange(2**63),
    )


@pytest.mark.parametrize("kind", ["plain", "flat", "ties", "masked", "equal"])
@pytest.mark.parametrize("vocab_size", [1, 2, 127, 128, 129, 700, 5003])
def test_equals_the_rules(kind: str, vocab_size: int) -> None:
    rng = random.Random(f"{kind} {vocab_size}")
    num_rows = 24 if vocab_size > 1000 else 80
    rows = [random_logits(rng, kind, vocab_size) for _ in range(num_rows)]
    params = [random_params(rng, vocab_size) for _ in rows]
    positions = [rng.randrange(10_000) for _ in rows]
    chosen = sample_with(torch.tensor(rows), params, positions)
    for row, each, position, token in zip(rows, params, positions, chosen, strict=True):
        assert token == choose(row, each, position), each


@pytest.mark.parametrize("vocab_size", [700, 30_001])
def test_corner_19_one_row_is_chosen_alike_in_any_company(vocab_size: int) -> None:
    rng = random.Random(5)
    num_rows = 24
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 3
    params = [random_params(rng, vocab_size) for _ in range(num_rows)]
    positions = torch.randint(0, 9999, (num_rows,), generator=generator)
    together = sample_with(logits, params, positions.tolist())
    for row in range(num_rows):
        assert sample_with(logits[row : row + 1], [params[row]], [int(positions[row])]) == [together[row]], (
            row
        )
    state = SlotSampling(100, vocab_size, CPU)
    slots = torch.randperm(100, generator=generator)[:num_rows]
    for row, slot in enumerate(slots.tolist()):
        state.set(slot, params[row])
    for _ in range(5):
        order = torch.randperm(num_rows, generator=generator)[: rng.randrange(1, num_rows + 1)]
        chosen = sample(logits[order], slots[order], positions[order], state)
        assert chosen.tolist() == [together[row] for row in order.tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_are_left_alone_in_any_dtype(dtype: torch.dtype) -> None:
    logits = (torch.randn(6, 1000, generator=torch.Generator().manual_seed(2)) * 3).to(dtype)
    before = logits.clone()
    params = [SamplingParams(seed=row, **FILTERS[row]) for row in range(6)]
    chosen = sample_with(logits, params)
    assert torch.equal(logits, before)
    assert chosen == sample_with(logits.float(), params)


def test_what_counts_as_greedy() -> None:
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(1))
    best = logits.argmax(dim=1).tolist()
    for each in (
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1e-30),
        SamplingParams(temperature=9e-7, top_p=0.5),
        SamplingParams(temperature=5.0, top_k=1),
        SamplingParams(temperature=1e-4),
        SamplingParams(temperature=2.0, top_p=1e-6),
        SamplingParams(temperature=2.0, min_p=1.0),
    ):
        assert sample_with(logits, [each] * 4, [0, 1, 2, 3]) == best, each


def test_unfiltered_values_of_top_k_are_alike() -> None:
    logits = torch.zeros(300)
    whole = draw(logits, SamplingParams(seed=4), 200)
    assert len(set(whole.tolist())) > 100
    for top_k in (0, -1, 300, 10**6):
        assert torch.equal(draw(logits, SamplingParams(seed=4, top_k=top_k), 200), whole)


def test_seed_and_position_decide() -> None:
    logits = torch.randn(2000, generator=torch.Generator().manual_seed(8))
    first = draw(logits, SamplingParams(seed=1), 300)
    assert torch.equal(first, draw(logits, SamplingParams(seed=1), 300))
    assert int((first == draw(logits, SamplingParams(seed=2), 300)).sum()) < 30
    assert len(set(first.tolist())) > 100


def test_a_filter_that_spares_the_choice_does_not_change_it() -> None:
    """The same noise is used with and without filters."""
    logits = torch.randn(3000, generator=torch.Generator().manual_seed(8)) * 3
    free = draw(logits, SamplingParams(seed=1), 200)
    for params in (
        SamplingParams(seed=1, top_k=50),
        SamplingParams(seed=1, top_p=0.9),
        SamplingParams(seed=1, min_p=0.01),
    ):
        kept = torch.tensor(kept_tokens(logits.tolist(), params))
        spared = torch.isin(free, kept)
        assert 0 < int(spared.sum()) < 200, params
        assert torch.equal(draw(logits, params, 200)[spared], free[spared]), params


def test_corner_19_a_slot_forgets_its_last_request() -> None:
    logits = torch.randn(1, 400, generator=torch.Generator().manual_seed(6))
    slots, positions = torch.tensor([1]), torch.tensor([0])
    state = SlotSampling(2, 400, CPU)
    assert sample(logits, slots, positions, state).item() == int(logits.argmax()), "an unset slot is greedy"
    for params in (
        SamplingParams(temperature=9.0, top_k=3, top_p=0.5, min_p=0.5, seed=5),
        SamplingParams(temperature=9.0, seed=6),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=9.0, seed=7),
    ):
        state.set(1, params)
        assert sample(logits, slots, positions, state).item() == choose(logits[0].tolist(), params, 0)
    assert repr(state) == "SlotSampling(2 slots: 1 greedy, 0 with top-k or top-p, vocab 400, cpu)"


def test_a_plan_made_beforehand_is_the_same() -> None:
    logits = torch.randn(8, 900, generator=torch.Generator().manual_seed(6))
    state = SlotSampling(8, 900, CPU)
    for slot in range(7):
        state.set(slot, SamplingParams(seed=slot, **FILTERS[slot]))
    slots, positions = torch.arange(8), torch.arange(8)
    plan = state.plan(np.arange(8))
    assert (plan.greedy.tolist(), plan.unsorted.tolist(), plan.sorted.tolist()) == (
        [7],
        [0, 1, 2, 5],
        [3, 4, 6],
    )
    assert torch.equal(sample(logits, slots, positions, state, plan), sample(logits, slots, positions, state))


@pytest.mark.parametrize("width", [1, 5, 127, 128, 129, 255, 256, 257, 300, 1000, 4096, 4097])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_argmax_is_the_lowest_of_the_largest(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    for top in (2, 10, 10**6):
        values = torch.randint(-top, top, (50, width), generator=generator).to(dtype)
        expected = [row.index(max(row)) for row in values.tolist()]
        assert argmax(values).tolist() == expected
    assert argmax(torch.full((2, width), -math.inf)).tolist() == [0, 0]


def test_rows_that_are_all_masked_give_some_token() -> None:
    logits = torch.full((3, 600), -math.inf)
    params = [SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_k=5)]
    assert all(0 <= token < 600 for token in sample_with(logits, params))


def test_what_the_shortlist_decides() -> None:
    """Rows whose filters end within the shortlist, or that have few tokens above -inf, need no look at the others."""
    scores = torch.arange(0, -2000, -1, dtype=torch.float32).repeat(6, 1) / 100
    scores[4:, 10:] = -torch.inf
    limits = PrefixLimits(
        top_k=torch.tensor([SHORTLIST - 1, SHORTLIST, 2000, 2000, 500, 2000]),
        top_p=torch.tensor([1.0, 1.0, 0.3, 0.99, 1.0, 0.9999]),
        min_p=torch.zeros(6),
    )
    assert shortlist(scores, limits).decided.tolist() == [True, False, True, False, True, True]
    assert shortlist(
        scores[4:], PrefixLimits(torch.tensor([50, 50]), torch.ones(2), torch.zeros(2))
    ).decided.all()
