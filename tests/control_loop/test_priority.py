"""Priorities: who is preempted, who is turned out of a full queue, who is retracted."""

from __future__ import annotations

import random

import pytest

from tests.control_loop.corner import finish_all, prompt, until
from tests.rig import Answer, Rig
from tests.schedules import Traffic, play


def start(rig: Rig, *priorities: int, length: int = 12) -> list[Answer]:
    """Requests that all run and go on for long."""
    answers = [
        rig.submit(prompt(length, start=3 * index), 30, priority=priority, ignore_eos=True)
        for index, priority in enumerate(priorities)
    ]
    until(rig, lambda: all(answer.token_ids for answer in answers))
    return answers


def preemptive(num_pages: int = 64, max_running: int = 3) -> Rig:
    return Rig(policy="priority", preemption_threshold=2, num_pages=num_pages, max_running=max_running)


def test_the_least_important_gives_way_and_comes_back() -> None:
    rig = preemptive()
    low, lower, high = start(rig, 1, 0, 5)
    urgent = rig.submit(prompt(8, start=11), 2, priority=9, ignore_eos=True)
    until(rig, lambda: urgent.ended)
    assert not lower.ended
    finish_all(rig)
    assert [answer.num_retractions for answer in (low, lower, high, urgent)] == [0, 1, 0, 0]
    assert rig.stats().preempted_total == rig.stats().retracted_total == 1


@pytest.mark.parametrize(("priority", "preempts"), [(2, False), (3, True)])
def test_only_beyond_the_threshold(priority: int, preempts: bool) -> None:
    rig = preemptive()
    start(rig, 0, 0, 0)
    rig.submit(prompt(8, start=11), 2, priority=priority)
    finish_all(rig)
    assert (rig.stats().preempted_total > 0) == preempts


def test_it_frees_enough_or_does_nothing() -> None:
    """The weak rows together hold less than the urgent request needs: none of them is touched."""
    rig = preemptive(num_pages=32, max_running=4)
    strong = rig.submit(prompt(40), 20, priority=8, ignore_eos=True)
    start(rig, 0, 0, length=5)
    urgent = rig.submit(prompt(90, start=7), 1, priority=9, ignore_eos=True)
    while not strong.ended:
        assert rig.stats().preempted_total == 0 and urgent.cached_tokens < 0
        rig.both()
    finish_all(rig)
    assert rig.stats().preempted_total > 0, "with the strong one gone they do free enough"


def test_pages_that_a_stronger_row_shares_count_for_nothing() -> None:
    """Two rows lean on one long prefix: retracting the weak one alone would give back next to nothing."""
    rig = preemptive(num_pages=16, max_running=4)
    shared = prompt(40)
    strong = rig.submit([*shared, 1], 4, priority=8, ignore_eos=True)
    weak = rig.submit([*shared, 2], 4, priority=0, ignore_eos=True)
    until(rig, lambda: bool(strong.token_ids) and bool(weak.token_ids))
    rig.submit(prompt(40, start=9), 1, priority=9)
    rig.both()
    rig.both()
    assert rig.stats().preempted_total == 0
    finish_all(rig)


def test_no_preemption_without_a_threshold() -> None:
    rig = Rig(policy="priority", num_pages=64, max_running=2)
    start(rig, 0, 0)
    rig.submit(prompt(8, start=11), 2, priority=9)
    finish_all(rig)
    assert rig.stats().preempted_total == 0


def test_a_full_queue_gives_the_place_of_the_least_important() -> None:
    rig = Rig(policy="priority", max_running=1, max_queued=2)
    start(rig, 0)
    old, young = (rig.submit(prompt(4, start=index), 1, priority=1) for index in range(2))
    same = rig.submit(prompt(4, start=4), 1, priority=1)
    higher = rig.submit(prompt(4, start=5), 1, priority=2)
    rig.both()
    assert same.refused is not None and same.refused.error.label == "queue_full"
    assert young.finish is not None and young.finish.kind == "error"
    assert young.finish.error is not None and young.finish.error.label == "queue_full"
    assert young.finish.error.status == 503 and young.finish.error.retryable
    assert old.finish is None and higher.accepted
    finish_all(rig)


def test_without_the_policy_priorities_mean_nothing() -> None:
    rig = Rig(max_running=1, max_queued=1)
    start(rig, 0)
    first = rig.submit(prompt(4), 1)
    second = rig.submit(prompt(4, start=4), 1, priority=9)
    rig.both()
    assert second.refused is not None and not first.ended
    finish_all(rig)


def test_of_rows_that_run_out_of_memory_the_least_important_is_retracted() -> None:
    rig = Rig(policy="priority", num_pages=16, page_size=4, max_running=3, vocab=101)
    first, second, third = (
        rig.submit(prompt(5, start=7 * index), 50, priority=priority, ignore_eos=True)
        for index, priority in enumerate((5, 0, 5))
    )
    finish_all(rig)
    assert second.num_retractions >= max(first.num_retractions, third.num_retractions)
    assert second.num_retractions > 0


def test_corner_25_random_preemptions_change_no_answer() -> None:
    preempted = 0
    for seed in range(12):
        print(f"seed {seed}")
        rng = random.Random(seed)
        rig = Rig(
            policy="priority",
            preemption_threshold=0,
            max_running=2,
            num_pages=24,
            page_size=2,
            chunk=4,
            vocab=101,
            conservativeness=rng.choice([0.0, 1.0]),
        )
        play(rig, rng, Traffic(num_requests=40, max_prompt=16, max_new=20))
        finish_all(rig)
        preempted += rig.stats().preempted_total
    assert preempted > 12
