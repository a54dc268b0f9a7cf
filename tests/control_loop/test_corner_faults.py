"""Corner cases by their number: steps that fail, and who pays for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from compute_loop.forward_batch import ForwardBatch
from control_loop.req import Phase
from srt.core.messages import FlushReply, FlushReq
from tests.control_loop.corner import finish_all, prompt, until
from tests.control_loop.ownership import check_ownership
from tests.rig import Answer, Rig
from tests.schedules import Poison, Traffic, play


@dataclass
class FailAt:
    """Fails the steps with these numbers."""

    steps: set[int] = field(default_factory=set)

    def __call__(self, batch: ForwardBatch) -> None:
        if batch.step in self.steps:
            raise FloatingPointError(f"injected into step {batch.step}")


def retract(rig: Rig, answer: Answer) -> None:
    rig.control._outputs.retract(rig.control._live[answer.request.key])
    rig.control._outputs.send_drops()


def abort(rig: Rig, answer: Answer) -> None:
    rig.abort(answer)
    rig.control.receive()


def flush(rig: Rig, answer: Answer) -> None:
    rig.send(FlushReq(77, timeout=1e6))
    rig.control.receive()


IN_FLIGHT: dict[str, Callable[[Rig, Answer], None]] = {"retraction": retract, "abort": abort, "flush": flush}


@pytest.mark.parametrize("asynchronous", [True, False])
def test_corner_14_an_innocent_survives_any_number_of_guilty_ones(asynchronous: bool) -> None:
    """A long stream is in the company of seven requests, one after the other, each of which fails its step."""
    rig = Rig(num_pages=64, max_running=3, asynchronous=asynchronous, fault=Poison(token=22))
    stream = rig.submit(prompt(9), 90, ignore_eos=True)
    guilty = []
    for number in range(1, 8):
        until(rig, lambda number=number: len(stream.token_ids) >= 6 * number)
        guilty.append(rig.submit([22, *prompt(3 + number)], 4))
        until(rig, lambda: guilty[-1].ended)
    finish_all(rig)
    assert all(answer.finish is not None and answer.finish.kind == "error" for answer in guilty)
    assert stream.finish is not None and stream.finish.kind == "length"
    assert rig.stats().failed_steps_total == 2 * len(guilty)


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_corner_14_every_third_step_fails(seed: int, asynchronous: bool) -> None:
    """Who needs more than two steps in a row alone cannot pass; all the others get the oracle's tokens."""
    rng = random.Random(seed)
    poison = Poison(every=3)
    rig = Rig(num_pages=20, max_running=4, asynchronous=asynchronous, fault=poison)
    try:
        play(rig, rng, Traffic(max_prompt=14, max_new=16, abort_share=0.1))
        finish_all(rig)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    kinds = {answer.finish.kind for answer in rig.answers.values() if answer.finish is not None}
    assert poison.num_failures > 5 and kinds & {"length", "stop"}


@pytest.mark.parametrize("asynchronous", [True, False])
def test_corner_14_a_failure_at_any_chunk_or_token_is_made_good(asynchronous: bool) -> None:
    """One step fails, of a prompt of five chunks and eight tokens beside a running stream: each step once."""
    failures = 0
    for step in range(1, 40):
        rig = Rig(num_pages=64, chunk=8, vocab=101, asynchronous=asynchronous, fault=FailAt({step}))
        stream = rig.submit(prompt(5), 20, ignore_eos=True)
        until(rig, lambda stream=stream: len(stream.token_ids) >= 2 or stream.ended)
        rig.submit(prompt(36, start=3), 8, ignore_eos=True)
        finish_all(rig)
        failures += rig.stats().failed_steps_total
        assert all(answer.finish and answer.finish.kind == "length" for answer in rig.answers.values())
    assert failures >= 20


@pytest.mark.parametrize("what", IN_FLIGHT)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_corner_14_a_step_fails_while_something_is_in_flight(what: str, asynchronous: bool) -> None:
    """The command is given, and before compute has seen it, or while it acts on it, a step fails."""
    failures = 0
    for launched in range(2, 9):
        for behind in range(3):
            fault = FailAt()
            rig = Rig(num_pages=64, chunk=8, vocab=101, asynchronous=asynchronous, fault=fault)
            answers = [rig.submit([*prompt(22), 30 + own], 6, ignore_eos=True) for own in range(3)]
            until(rig, lambda rig=rig, launched=launched: rig.compute._builder.last_step >= launched)
            last = rig.compute._builder.last_step
            fault.steps.add(last + behind)
            req = rig.control._live.get(answers[0].request.key)
            if what == "flush" or (req is not None and req.phase in (Phase.PREFILLING, Phase.DECODING)):
                IN_FLIGHT[what](rig, answers[0])
            rig.compute.step()
            check_ownership(rig.control._manager, rig.control._slots)
            finish_all(rig, random.Random(launched))
            kinds = [answer.finish.kind for answer in answers if answer.finish is not None]
            assert kinds[1:] == ["length", "length"], kinds
            assert kinds[0] == "length" or what == "abort"
            replies = [reply for reply in rig.others if isinstance(reply, FlushReply)]
            assert len(replies) == (what == "flush") and all(reply.error is None for reply in replies)
            failures += rig.stats().failed_steps_total
    assert failures > 10


def test_corner_14_of_many_in_a_failed_step_only_the_poisoned_ones_fail() -> None:
    rig = Rig(num_pages=64, chunk=64, max_running=6, vocab=101, fault=Poison(token=22))
    good = [rig.submit(prompt(6 + own, start=own), 10, ignore_eos=True) for own in range(4)]
    bad = [rig.submit([22, *prompt(3 + own)], 10, ignore_eos=True) for own in range(2)]
    finish_all(rig)
    assert [answer.finish.kind for answer in good if answer.finish] == ["length"] * 4
    assert [answer.finish.kind for answer in bad if answer.finish] == ["error"] * 2
