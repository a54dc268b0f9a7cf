"""How much is left to running rows, and what ends because it takes too long."""

from __future__ import annotations

from itertools import pairwise

import pytest

from control_loop.admission import DECAY_STEPS, NewTokenRatio
from tests.control_loop.corner import finish_all, prompt, until
from tests.rig import Answer, Rig


def four(conservativeness: float, **params: object) -> tuple[Rig, list[Answer]]:
    """Four requests whose prompts fit together, and whose outputs do not."""
    rig = Rig(num_pages=32, page_size=4, max_running=4, vocab=101, conservativeness=conservativeness)
    answers = [rig.submit(prompt(5, start=7 * index), 56, **params) for index in range(4)]  # type: ignore[arg-type]
    finish_all(rig)
    return rig, answers


def test_what_surely_grows_is_not_admitted_into_a_retraction() -> None:
    rig, _ = four(0.0, ignore_eos=True)
    assert rig.stats().retracted_total > 0
    rig, _ = four(1.0, ignore_eos=True)
    assert rig.stats().retracted_total == 0


def test_half_a_mind_lies_between() -> None:
    counts = []
    for conservativeness in (0.0, 0.3, 1.0):
        rig, _ = four(conservativeness, ignore_eos=True)
        counts.append(rig.stats().retracted_total)
    assert counts[0] >= counts[1] >= counts[2] == 0


def test_one_request_always_runs_whatever_is_believed_of_it() -> None:
    rig = Rig(num_pages=16, page_size=4, conservativeness=10.0)
    answer = rig.submit(prompt(5), 59, ignore_eos=True)
    finish_all(rig)
    assert len(answer.token_ids) == 59


def test_the_ratio_falls_with_steps_jumps_at_retractions_and_begins_anew() -> None:
    ratio = NewTokenRatio(1.0)
    first = ratio.value
    ratio.on_steps(DECAY_STEPS // 2)
    half = ratio.value
    ratio.on_steps(10 * DECAY_STEPS)
    least = ratio.value
    assert 0 < least < half < first < 1
    ratio.on_retractions(1)
    assert least < ratio.value < first
    ratio.on_retractions(100)
    assert ratio.value == 1.0
    ratio.reset()
    assert ratio.value == first
    assert NewTokenRatio(0.0).value == 0.0


def test_the_scheduler_learns_from_steps_and_retractions() -> None:
    rig = Rig(num_pages=16, page_size=4, max_running=4, vocab=101, conservativeness=0.05)
    ratio = rig.control._scheduler._ratio
    answers = [rig.submit(prompt(5, start=7 * index), 56, temperature=1.0, seed=index) for index in range(4)]
    first, seen = ratio.value, []
    while not all(answer.ended for answer in answers):
        rig.both()
        seen.append((rig.stats().retracted_total, ratio.value))
    assert min(value for _, value in seen) < first
    jumps = [after > before for (n, before), (m, after) in pairwise(seen) if m > n]
    assert jumps and all(jumps)
    finish_all(rig)


# --- time limits --------------------


def timed(**options: object) -> tuple[Rig, list[float]]:
    now = [0.0]
    return Rig(max_running=1, clock=lambda: now[0], **options), now  # type: ignore[arg-type]


def test_a_request_that_waits_too_long_ends_with_a_503() -> None:
    rig, now = timed(waiting_timeout=5.0)
    running = rig.submit(prompt(5), 40, ignore_eos=True)
    until(rig, lambda: bool(running.token_ids))
    waiting = rig.submit(prompt(5, start=4), 4)
    rig.both()
    now[0] = 4.9
    rig.both()
    assert not waiting.ended
    now[0] = 5.0
    rig.both()
    assert waiting.finish is not None and waiting.finish.error is not None
    error = waiting.finish.error
    assert (waiting.finish.kind, error.label, error.status, error.retryable) == (
        "error",
        "timeout",
        503,
        True,
    )
    assert "--waiting-timeout" in error.message and "5 s" in error.message
    assert running.finish is None, "it has not waited"
    finish_all(rig)


def test_a_request_that_runs_too_long_ends_and_frees_its_memory() -> None:
    rig, now = timed(running_timeout=3.0)
    running = rig.submit(prompt(5), 50, ignore_eos=True)
    until(rig, lambda: len(running.token_ids) > 3)
    waiting = rig.submit(prompt(5, start=4), 4)
    rig.both()
    now[0] = 3.0
    rig.both()
    assert running.finish is not None and running.finish.error is not None
    assert "--running-timeout" in running.finish.error.message
    until(rig, lambda: waiting.ended)
    assert waiting.finish is not None and waiting.finish.kind != "error"
    finish_all(rig)


def test_waiting_counts_anew_after_a_retraction() -> None:
    rig, now = timed(waiting_timeout=5.0)
    answer = rig.submit(prompt(5), 50, ignore_eos=True)
    until(rig, lambda: bool(answer.token_ids))
    now[0] = 60.0
    (req,) = rig.control._slots.reqs()
    rig.control._outputs.retract(req)
    finish_all(rig)
    assert answer.num_retractions == 1


@pytest.mark.parametrize("option", ["waiting_timeout", "running_timeout"])
def test_without_a_limit_nothing_ends(option: str) -> None:
    rig, now = timed(**{option: None})
    answers = [rig.submit(prompt(5, start=index), 9) for index in range(2)]
    rig.both()
    now[0] = 1e6
    finish_all(rig)
    assert all(answer.finish and answer.finish.kind != "error" for answer in answers)
