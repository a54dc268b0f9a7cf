"""Whose turn it is: the order of each policy, and that nobody starves under any."""

from __future__ import annotations

import random

import pytest

from control_loop.aging import MAX_OVERTAKEN
from control_loop.policy import POLICIES
from srt.core.config import Policy, choices_of
from tests.control_loop.corner import finish_all, prompt, until
from tests.rig import Answer, Rig


def admission_order(policy: str, *requests: tuple[list[int], int, int]) -> list[int]:
    """Places in `requests` (prompt, output length, priority) in the order in which a single slot takes them."""
    rig = Rig(policy=policy, max_running=1, num_pages=64)
    rig.submit(prompt(16, start=5), 1)
    rig.run()
    blocker = rig.submit(prompt(3, start=11), 12, ignore_eos=True)
    until(rig, lambda: bool(blocker.token_ids))
    answers = [rig.submit(ids, count, None, priority, ignore_eos=True) for ids, count, priority in requests]
    order: list[Answer] = []
    while not all(answer.ended for answer in rig.answers.values()):
        rig.both()
        order += [answer for answer in answers if answer.token_ids and answer not in order]
    finish_all(rig)
    return [answers.index(answer) for answer in order]


def test_every_policy_can_be_chosen() -> None:
    assert set(choices_of("Policy") or ()) == set(POLICIES), Policy


def test_fcfs_is_the_order_of_arrival() -> None:
    assert admission_order("fcfs", (prompt(9), 1, 0), (prompt(2), 9, 5), (prompt(16, start=5), 1, 9)) == [
        0,
        1,
        2,
    ]


def test_lpm_takes_the_longest_cached_prefix_first() -> None:
    cached = prompt(16, start=5)
    requests = (prompt(9), 1, 0), (cached[:4] + prompt(9), 1, 0), ([*cached, 1], 1, 0)
    assert admission_order("lpm", *requests) == [2, 1, 0]


def test_shortest_prefill_first_counts_what_is_left_to_compute() -> None:
    cached = prompt(16, start=5)
    requests = (prompt(9), 1, 0), ([*cached, 1], 1, 0), (prompt(4), 1, 0)
    assert admission_order("shortest-prefill-first", *requests) == [1, 2, 0]


def test_dfs_weight_walks_the_busiest_branch_first() -> None:
    """The cached prompt is one branch; what waits on it goes together, before a lone request that came first."""
    cached = prompt(16, start=5)
    requests = (
        (prompt(9), 1, 0),
        ([*cached, 1], 1, 0),
        ([*cached[:8], 9, 9, 9, 9, 9], 1, 0),
        ([*cached, 2], 1, 0),
    )
    order = admission_order("dfs-weight", *requests)
    assert sorted(order) == [0, 1, 2, 3]
    assert abs(order.index(1) - order.index(3)) == 1, "they share the longest prefix"


def test_dfs_weight_keeps_groups_together() -> None:
    """Two groups arrive in turns; a pass takes the larger one whole before it begins the other."""
    rig = Rig(policy="dfs-weight", max_running=4, num_pages=64, chunk=64)
    groups = [prompt(12, start=start) for start in (1, 9)]
    for group in groups:
        rig.submit([*group, 1], 1)
    rig.run()
    for tail, which in enumerate((0, 1, 1, 0, 1)):
        rig.submit([*groups[which], 2, tail], 4)
    rig.control.step()
    firsts = [int(req.token_ids[0]) for req in rig.control._slots.reqs()]
    assert firsts == [groups[1][0]] * 3 + [groups[0][0]]
    finish_all(rig)


def test_lof_takes_the_longest_output_first() -> None:
    assert admission_order("lof", (prompt(4), 3, 0), (prompt(5), 9, 0), (prompt(6), 6, 0)) == [1, 2, 0]


def test_priority_is_highest_first_and_then_the_order_of_arrival() -> None:
    requests = (prompt(4), 1, -1), (prompt(5), 1, 3), (prompt(6), 1, 0), (prompt(7), 1, 3)
    assert admission_order("priority", *requests) == [1, 3, 2, 0]


def test_random_is_some_other_order_and_always_the_same() -> None:
    requests = [(prompt(4, start=index), 1, 0) for index in range(12)]
    first = admission_order("random", *requests)
    assert sorted(first) == list(range(12)) != first
    assert admission_order("random", *requests) == first


@pytest.mark.parametrize("policy", POLICIES)
def test_corner_24_a_cold_request_starts_within_a_bounded_number_of_passes(policy: str) -> None:
    """Everything about the others is better: they are cached, short, with longer outputs and more priority."""
    rig = Rig(policy=policy, max_running=2, num_pages=64, chunk=8)
    rig.submit(prompt(16), 1)
    rig.run()
    cold = rig.submit(prompt(40, start=7), 3, priority=-5, ignore_eos=True)
    younger: list[Answer] = []
    passes_before = 0
    while not cold.token_ids:
        younger += [rig.submit(prompt(9), 4, priority=5, ignore_eos=True) for _ in range(2)]
        started = sum(answer.cached_tokens >= 0 for answer in younger)
        rig.both()
        passes_before += sum(answer.cached_tokens >= 0 for answer in younger) > started
        assert passes_before <= MAX_OVERTAKEN + 8, "the cold request starves"
    finish_all(rig)


def test_corner_24_an_aged_request_is_not_preempted() -> None:
    rig = Rig(policy="priority", preemption_threshold=0, max_running=1, num_pages=64)
    low = rig.submit(prompt(6), 30, priority=0, ignore_eos=True)
    until(rig, lambda: bool(low.token_ids))
    count = 0
    while not low.ended:
        if rig.stats().num_queue_reqs < 3:
            rig.submit(prompt(5, start=count % 7), 2, priority=9, ignore_eos=True)
            count += 1
        rig.both()
        assert count < 20 * MAX_OVERTAKEN, "the request starves"
    assert low.num_retractions > 0, "it was preempted while it was young"
    finish_all(rig)


@pytest.mark.parametrize("seed", range(6))
def test_lpm_orders_a_thousand_as_a_fresh_match_would(seed: int) -> None:
    """Whatever is remembered of earlier matches, the order is that of the tree as it is now."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    rig = Rig(policy="lpm", max_running=2, num_pages=24, page_size=2, chunk=8)
    for _ in range(60):
        shared = prompt(rng.randrange(1, 12), start=rng.randrange(3))
        rig.submit(shared + [rng.randrange(1, 20) for _ in range(rng.randrange(1, 6))], rng.randrange(1, 5))
        for _ in range(rng.randrange(3)):
            rig.both()
        manager, waiting = rig.control._manager, list(rig.control._waiting)
        assert manager.match_lengths(waiting) == [
            manager.cache.match_length(req.radix_key) for req in waiting
        ]
    finish_all(rig)
