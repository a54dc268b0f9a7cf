"""What the pool has no room for is kept in host memory and comes back: one wrong page would be a wrong token."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from radix_cache.eviction import EVICTION_POLICIES
from tests.rig import Rig
from tests.schedules import Poison, Traffic, play

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]


def flooded(rig: Rig, rng: random.Random) -> None:
    """Other prompts, until nothing of `PROMPT` is left in the pool."""
    for _ in range(8):
        rig.submit([rng.randrange(1, 23) for _ in range(24)], max_new_tokens=4)
        rig.run()


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("page_size", [1, 4])
def test_an_evicted_prompt_comes_back_from_host_memory(page_size: int, asynchronous: bool) -> None:
    rig = Rig(page_size=page_size, num_pages=40 // page_size, num_host_pages=400, asynchronous=asynchronous)
    rig.submit(PROMPT, ignore_eos=True)
    rig.run()
    flooded(rig, random.Random(7))
    before = rig.stats()
    assert before.evicted_tokens_total > 40 and before.num_host_tokens > 40
    again = rig.submit(PROMPT, ignore_eos=True)
    rig.run()
    rig.check_answers()
    after = rig.stats()
    assert after.host_hit_tokens_total - before.host_hit_tokens_total == 12, (
        "all whole pages but the last token"
    )
    assert after.cached_tokens_total - before.cached_tokens_total == 12
    assert len(again.token_ids) == 8
    rig.check_drained()


def test_a_stream_goes_on_while_pages_come_back() -> None:
    rig = Rig(num_pages=16, num_host_pages=100, chunk=4)
    rig.submit(PROMPT, ignore_eos=True)
    rig.run()
    flooded(rig, random.Random(8))
    stream = rig.submit([3, 4, 5], max_new_tokens=24, ignore_eos=True)
    while not stream.token_ids:
        rig.both()
    again = rig.submit(PROMPT, max_new_tokens=3, ignore_eos=True)
    while not again.ended:
        before = len(stream.token_ids)
        for _ in range(4):
            rig.both()
        assert stream.ended or len(stream.token_ids) > before
    assert rig.stats().host_hit_tokens_total >= 12
    rig.run()
    rig.check_answers()
    rig.check_drained()


def test_tenants_do_not_share_host_pages() -> None:
    rig = Rig(num_pages=10, num_host_pages=100)
    rig.submit(PROMPT, namespace="one")
    rig.run()
    flooded(rig, random.Random(9))
    before = rig.stats().host_hit_tokens_total
    rig.submit(PROMPT, namespace="two")
    rig.submit(PROMPT)
    rig.run()
    assert rig.stats().host_hit_tokens_total == before
    rig.submit(PROMPT, namespace="one")
    rig.run()
    assert rig.stats().host_hit_tokens_total == before + 12
    rig.check_answers()


def test_a_flush_empties_host_memory_too() -> None:
    rig = Rig(num_pages=10, num_host_pages=100)
    rig.submit(PROMPT)
    rig.run()
    flooded(rig, random.Random(10))
    assert rig.stats().num_host_tokens > 0
    assert rig.flush().error is None
    assert rig.stats().num_host_tokens == 0
    before = rig.stats().host_hit_tokens_total
    rig.submit(PROMPT)
    rig.run()
    assert rig.stats().host_hit_tokens_total == before


@pytest.mark.slow
@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_corner_25_26_random_schedules_with_a_host_tier_equal_the_oracle(policy: str) -> None:
    """Small pools and small host memories, aborts, retractions, failed steps; prompts that come again."""
    counts: Counter[str] = Counter()
    for seed in range(60):
        rng = random.Random(seed)
        page_size = rng.choice([1, 4])
        rig = Rig(
            page_size=page_size,
            num_pages=rng.choice([14, 16, 20]) * 4 // page_size,
            num_host_pages=rng.choice([3, 10, 50, 400]),
            chunk=rng.choice([4, 8, 64]),
            asynchronous=rng.random() < 0.7,
            eviction_policy=policy,
            fault=Poison(every=rng.choice([7, 23, 60])) if rng.random() < 0.3 else None,
        )
        try:
            play(rig, rng, Traffic(max_prompt=12, max_new=44))
            rig.check_answers()
            rig.check_drained()
            for name in ("host_hit_tokens_total", "retracted_total", "aborted_total", "failed_steps_total"):
                counts[name] += int(getattr(rig.stats(), name))
        except BaseException:
            print(f"policy {policy}, seed {seed}")
            raise
    assert len(counts) == 4 and all(counts.values()), f"something never happened: {counts}"
