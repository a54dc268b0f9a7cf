"""Pause, continue and flush under work."""

from __future__ import annotations

import random

import pytest

from srt.core.messages import (
    ContinueReply,
    ContinueReq,
    FlushReply,
    FlushReq,
    PauseMode,
    PauseReply,
    PauseReq,
)
from tests.control_loop.corner import Witness, finish_all, prompt, until
from tests.rig import Rig
from tests.schedules import Traffic, play

MODES: tuple[PauseMode, ...] = ("abort", "retract", "in_place")


def pause(rig: Rig, mode: PauseMode) -> PauseReply:
    rig.others.clear()
    rig.send(PauseReq(77, mode))
    until(rig, lambda: bool(rig.others))
    (reply,) = rig.others
    assert isinstance(reply, PauseReply)
    return reply


def go_on(rig: Rig) -> bool:
    rig.others.clear()
    rig.send(ContinueReq(78))
    until(rig, lambda: bool(rig.others))
    (reply,) = rig.others
    assert isinstance(reply, ContinueReply)
    return reply.was_paused


def busy(**options: object) -> tuple[Rig, Witness]:
    """Two rows decode, a third is in the middle of its prompt, and a fourth waits."""
    rig = Rig(**{"num_pages": 64, "page_size": 4, "chunk": 8, "max_running": 3, **options})  # type: ignore[arg-type]
    witness = Witness(rig.runner)
    streams = [rig.submit(prompt(5, start=index), 30, ignore_eos=True) for index in range(2)]
    until(rig, lambda: all(answer.token_ids for answer in streams))
    rig.submit(prompt(60, start=9), 4)
    rig.submit(prompt(6, start=3), 4)
    rig.both()
    rig.both()
    return rig, witness


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_nothing_runs_in_a_pause_and_everything_goes_on_behind_it(
    mode: PauseMode, asynchronous: bool
) -> None:
    rig, witness = busy(asynchronous=asynchronous)
    reply = pause(rig, mode)
    assert rig.stats().is_paused
    assert (reply.num_running, reply.num_waiting) == {"abort": (0, 0), "retract": (0, 4), "in_place": (3, 1)}[
        mode
    ]
    assert not witness.in_flight, "the pause is answered when no step runs"
    witness.batches.clear()
    late = rig.submit(prompt(4), 2)
    for _ in range(20):
        rig.both()
    assert not witness.batches
    assert late.accepted and not late.ended
    assert go_on(rig)
    finish_all(rig)
    kinds = {answer.finish.kind for answer in rig.answers.values() if answer.finish}
    assert ("abort" in kinds) == (mode == "abort")
    assert not rig.stats().is_paused
    assert not go_on(rig), "it is not paused any more"


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
def test_a_pause_may_follow_a_pause(first: PauseMode, second: PauseMode) -> None:
    rig, _ = busy()
    pause(rig, first)
    pause(rig, second)
    go_on(rig)
    finish_all(rig)


def test_a_row_that_is_held_can_be_aborted() -> None:
    rig, _ = busy()
    pause(rig, "in_place")
    for answer in list(rig.answers.values()):
        rig.abort(answer)
    until(rig, lambda: all(answer.ended for answer in rig.answers.values()))
    until(rig, lambda: rig.stats().num_slots_in_use == 0)
    go_on(rig)
    finish_all(rig)


def test_a_retracting_pause_lets_the_cache_be_flushed_under_waiting_requests() -> None:
    rig, _ = busy()
    pause(rig, "retract")
    assert rig.flush().flushed_tokens > 0
    assert rig.stats().num_cached_tokens == 0
    go_on(rig)
    finish_all(rig)


def test_a_continue_answers_a_pause_that_was_not_reached() -> None:
    rig, _ = busy()
    rig.others.clear()
    rig.send(PauseReq(1, "retract"))
    rig.send(ContinueReq(2))
    finish_all(rig)
    assert [type(message) for message in rig.others] == [PauseReply, ContinueReply]


@pytest.mark.parametrize("seed", range(8))
def test_random_pauses_change_no_answer(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    rig = Rig(num_pages=24, page_size=2, chunk=4, max_running=4)
    step = rig.control.step

    def step_and_pause() -> bool:
        if rng.random() < 0.05:
            rig.send(PauseReq(1, rng.choice(("retract", "in_place"))))
        if rng.random() < 0.2:
            rig.send(ContinueReq(2))
        return step()

    rig.control.step = step_and_pause  # type: ignore[method-assign]
    play(rig, rng, Traffic(num_requests=20))
    rig.control.step = step  # type: ignore[method-assign]
    go_on(rig)
    finish_all(rig)


def test_a_flush_waits_for_work_to_end_until_its_timeout() -> None:
    now = [0.0]
    rig = Rig(clock=lambda: now[0])
    answer = rig.submit(prompt(9), 12, ignore_eos=True)
    until(rig, lambda: len(answer.token_ids) >= 3)
    rig.send(FlushReq(5, timeout=10.0))
    rig.send(FlushReq(6, timeout=2.0))
    rig.both()
    assert rig.others == []
    now[0] = 3.0
    rig.both()
    (refused,) = [message for message in rig.others if isinstance(message, FlushReply)]
    assert refused.key == 6
    assert refused.error is not None and "after 2 s" in refused.error.message
    rig.others.clear()
    rig.run()
    (done,) = [message for message in rig.others if isinstance(message, FlushReply)]
    assert done.key == 5 and done.error is None and done.flushed_tokens > 0
    finish_all(rig)


def test_a_sleeping_loop_wakes_for_the_deadline_of_a_flush() -> None:
    now = [0.0]
    rig = Rig(clock=lambda: now[0])
    rig.submit(prompt(9), 40, ignore_eos=True)
    until(rig, lambda: rig.stats().num_running_reqs == 1)
    rig.send(FlushReq(5, timeout=0.25))
    rig.control.step()
    assert rig.control._sleep_seconds() == 0.25
    now[0] = 0.25
    rig.control.step()
    assert rig.control._sleep_seconds() == 1.0
    finish_all(rig)
