"""The same requests give the same tokens however they are scheduled: random workloads against the oracle."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from control_loop.policy import POLICIES
from tests.rig import Rig
from tests.schedules import Poison, Traffic, play

STRESS = Traffic(max_prompt=12, max_new=44)
HAPPENED = (
    "retracted_total",
    "evicted_tokens_total",
    "parked_rows_total",
    "aborted_total",
    "failed_steps_total",
    "preempted_total",
    "cached_tokens_total",
    "prefill_chunks_total",
)


def random_options(rng: random.Random) -> dict[str, Any]:
    page_size = rng.choice([1, 4])
    policy = rng.choice(list(POLICIES))
    return {
        "page_size": page_size,
        "num_pages": rng.choice([14, 16, 20]) * 4 // page_size,
        "chunk": rng.choice([4, 8, 64]),
        "max_running": rng.choice([4, 8]),
        "radix_cache": rng.random() < 0.85,
        "policy": policy,
        "preemption_threshold": rng.choice([None, 0]) if policy == "priority" else None,
        "conservativeness": rng.choice([0.0, 0.0, 0.0, 1.0]),
        "asynchronous": rng.random() < 0.7,
        "vocab": rng.choice([23, 101]),
        "fault": Poison(every=rng.choice([7, 23, 60])) if rng.random() < 0.2 else None,
    }


def run_one(seed: int, traffic: Traffic, counts: Counter[str]) -> None:
    rng = random.Random(seed)
    options = random_options(rng)
    try:
        rig = Rig(**options)
        play(rig, rng, traffic)
        rig.check_answers()
        rig.check_drained()
        counts.update({name: int(getattr(rig.stats(), name)) for name in HAPPENED})
        assert rig.flush().error is None
        assert rig.stats().num_free_tokens == rig.stats().max_total_num_tokens
    except BaseException:
        print(f"seed {seed}, {options}")
        raise


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_corner_25_26_random_schedules_equal_the_oracle(block: int) -> None:
    """100 seeded schedules a block. Then every page is free or cached, nothing is locked, no slot in use."""
    counts: Counter[str] = Counter()
    for seed in range(block * 100, block * 100 + 100):
        run_one(seed, STRESS, counts)
    assert all(counts[name] > 0 for name in HAPPENED), f"something never happened: {counts}"


@pytest.mark.long
@pytest.mark.parametrize("block", range(100))
def test_corner_25_26_many_more_schedules(block: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(100_000 + block * 100, 100_000 + block * 100 + 100):
        run_one(seed, STRESS, counts)


SIXTY = Traffic(num_requests=60, max_prompt=24, max_new=70, patience=0.6)
VARIANTS: dict[str, dict[str, Any]] = {
    "overlap": {"asynchronous": True},
    "no overlap": {"asynchronous": False},
    "no cache": {"radix_cache": False},
    "page 1": {"page_size": 1, "num_pages": 96},
    "page 16": {"page_size": 16, "num_pages": 6},
    "lpm": {"policy": "lpm"},
    "whole prompts": {"chunk": 64},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_corner_25_sixty_requests_in_a_pool_too_small(variant: str, seed: int) -> None:
    """Staggered arrivals, aborts, chunks, evictions and retractions: each of them did happen."""
    options = {
        "num_pages": 24,
        "page_size": 4,
        "chunk": 16,
        "max_running": 8,
        "vocab": 503,
        **VARIANTS[variant],
    }
    rig = Rig(**options)
    rng = random.Random(seed)
    play(rig, rng, SIXTY)
    rig.check_answers()
    rig.check_drained()
    stats = rig.stats()
    assert stats.retracted_total > 0
    assert stats.aborted_total > 0
    assert (
        stats.prefill_chunks_total > stats.requests_total - stats.aborted_total or variant == "whole prompts"
    )
    if options.get("radix_cache", True):
        assert stats.evicted_tokens_total > 0
        assert stats.cached_tokens_total > 0
