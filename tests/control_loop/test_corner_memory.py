"""Corner cases by their number: pages, locks and leases."""

from __future__ import annotations

import random

import pytest

from control_loop.page_credits import choose_victim
from control_loop.req import Phase
from tests.control_loop.corner import finish_all, prompt, tight, until
from tests.rig import Rig
from tests.schedules import Poison

# --- memory --------------------


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_corner_10_a_retracted_token_in_flight_is_neither_lost_nor_doubled(
    seed: int, asynchronous: bool
) -> None:
    rig, answers = tight(asynchronous=asynchronous)
    finish_all(rig, random.Random(seed))
    assert rig.stats().retracted_total > 0
    assert sum(answer.num_retractions for answer in answers) == rig.stats().retracted_total


def test_corner_11_nobody_is_retracted_while_pages_are_still_fenced() -> None:
    rig, _ = tight()
    until(rig, lambda: any(req.phase is Phase.LEAVING for req in rig.control._slots.reqs()))
    assert choose_victim(rig.control._slots.reqs(), rig.control._slots) is None
    leaving_at_once = 0
    for _ in range(3000):
        leaving = [
            req for req in rig.control._slots.reqs() if req.phase is Phase.LEAVING and req.finish is None
        ]
        leaving_at_once = max(leaving_at_once, len(leaving))
        if not rig.both():
            break
    assert leaving_at_once == 1
    finish_all(rig)


def test_corner_12_a_duplicate_prefix_stays_private_until_its_row_is_dropped() -> None:
    rig = Rig(page_size=4, num_pages=32, chunk=64)
    first = rig.submit(prompt(8), 20, ignore_eos=True)
    until(rig, lambda: len(first.token_ids) >= 1)
    second = rig.submit(prompt(8), 20, ignore_eos=True)  # may match 4 tokens only: the last must be computed
    until(rig, lambda: len(second.token_ids) >= 1)
    slots = rig.control._slots
    one, two = (req.slot for req in slots.reqs())
    assert slots.pages[one, 0] == slots.pages[two, 0]
    assert slots.pages[one, 1] != slots.pages[two, 1], "the tree has the first one's page"
    assert not slots.owned[one, :2].any()
    assert slots.owned[two, :2].tolist() == [False, True], "the duplicate is the second row's own"
    finish_all(rig)
    assert second.cached_tokens == 4


@pytest.mark.parametrize("chunk", [4, 64])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_corner_13_an_abort_in_any_state_releases_everything_once(asynchronous: bool, chunk: int) -> None:
    """Aborts each of four requests (a leader, two followers, one that waits for a slot) after each number of steps."""
    phases = set()
    for victim in range(4):
        for steps in range(40):
            rig = Rig(max_running=3, chunk=chunk, asynchronous=asynchronous)
            answers = [rig.submit([*prompt(14), 3 + index], 6, ignore_eos=True) for index in range(4)]
            moves = [rig.control.step, rig.compute.step]
            for index in range(steps):
                moves[index % 2]()
            rig.read()
            req = rig.control._live.get(answers[victim].request.key)
            phases.add(req.phase if req else None)
            rig.abort(answers[victim])
            finish_all(rig)
            assert rig.flush().error is None
            assert rig.stats().num_free_tokens == rig.stats().max_total_num_tokens
    assert phases >= {None, Phase.WAITING, Phase.DECODING} | ({Phase.PREFILLING} if chunk == 4 else set())


@pytest.mark.parametrize("asynchronous", [True, False])
def test_corner_14_only_the_guilty_request_of_a_failed_step_fails(asynchronous: bool) -> None:
    poison = Poison(token=22)
    rig = Rig(num_pages=64, max_running=6, vocab=101, asynchronous=asynchronous, fault=poison)
    good = [rig.submit(prompt(9, start=index), 12, ignore_eos=True) for index in range(4)]
    until(rig, lambda: all(answer.token_ids for answer in good))
    bad = rig.submit([22, *prompt(6)], 12)
    late = rig.submit(prompt(9), 12, ignore_eos=True)
    finish_all(rig)
    assert bad.finish is not None and bad.finish.kind == "error"
    assert bad.finish.error is not None and "injected into step" in bad.finish.error.message
    assert poison.num_failures == 2, "once in company, once alone"
    for answer in [*good, late]:
        assert answer.finish is not None and answer.finish.kind == "length"
    assert rig.stats().failed_steps_total == 2


def test_corner_14_a_failed_step_leaves_nothing_matchable() -> None:
    poison = Poison(token=22)
    rig = Rig(num_pages=64, chunk=64, fault=poison)
    rig.submit([22, *prompt(15)], 4)
    finish_all(rig)
    assert rig.stats().num_cached_tokens == 0


@pytest.mark.parametrize("page_size", [1, 4])
def test_corner_15_a_prefix_hit_leaves_one_token_to_compute(page_size: int) -> None:
    rig = Rig(page_size=page_size, num_pages=128 // page_size)
    for _ in range(2):
        answer = rig.submit(prompt(12), 3)
        finish_all(rig)
    assert answer.cached_tokens == (11 if page_size == 1 else 8)


@pytest.mark.parametrize(
    ("length", "max_new", "fits"), [(65, 1, False), (40, 26, False), (40, 25, True), (64, 1, True)]
)
def test_corner_16_what_the_whole_pool_cannot_hold_is_refused_at_once(
    length: int, max_new: int, fits: bool
) -> None:
    rig = Rig(num_pages=16, page_size=4)  # 64 tokens; the last output token needs no memory
    answer = rig.submit(prompt(length), max_new, ignore_eos=True)
    small = rig.submit(prompt(4), 2)
    rig.run()
    assert small.finish is not None
    if fits:
        assert answer.finish is not None and answer.token_ids == rig.expected(answer)
    else:
        assert answer.refused is not None and answer.refused.error.status == 400
        assert "64" in answer.refused.error.message and str(length) in answer.refused.error.message
    rig.check_drained()
