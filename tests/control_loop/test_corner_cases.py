"""The corner cases of the protocol, one test each, with its number. Processes and sampling have theirs elsewhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from compute_loop.forward_batch import ForwardBatch
from compute_loop.runner.base import DeviceLost, StepTokens
from compute_loop.runner.hash_model import HashRunner, HashStep
from control_loop.page_credits import choose_victim
from control_loop.policy import MAX_OVERTAKEN
from control_loop.req import Phase
from srt.core.messages import NO_TOKEN, Drop, FlushReq, StepResult
from tests.rig import Answer, Rig
from tests.schedules import Poison, Traffic, play


class Violation(DeviceLost):
    """Not an ordinary exception: compute would take that for a failed step, and go on."""


class Witness:
    """Wraps a runner's launch and wait, and keeps what was launched and what is in flight."""

    def __init__(self, runner: HashRunner) -> None:
        self.batches: list[ForwardBatch] = []
        self.in_flight: list[ForwardBatch] = []
        self.table = np.zeros_like(runner._table)
        self.page_size = runner._page_size
        self._launch, self._wait, self._reset = runner.launch, runner.wait, runner.reset
        runner.reset = self.reset  # type: ignore[method-assign]
        runner.launch = self.launch  # type: ignore[method-assign]
        runner.wait = self.wait  # type: ignore[method-assign]

    def launch(self, batch: ForwardBatch) -> HashStep:
        self.check_slots(batch)
        self.check_pages(batch)
        self.batches.append(batch)
        self.in_flight.append(batch)
        return self._launch(batch)

    def wait(self, handle: HashStep) -> StepTokens:
        self.in_flight.remove(handle.batch)
        return self._wait(handle)

    def reset(self) -> None:
        self.in_flight.clear()
        self._reset()

    def check_slots(self, batch: ForwardBatch) -> None:
        for other in self.in_flight:
            for slot, generation in zip(other.slots, other.generations, strict=True):
                same = batch.generations[batch.slots == slot]
                if (same != generation).any():
                    raise Violation(f"slot {slot} got a new life while a launched step names the old one")

    def check_pages(self, batch: ForwardBatch) -> None:
        """What this step writes, no other life reads in a step that is still in flight."""
        readers: dict[int, set[tuple[int, int]]] = {}
        for other in self.in_flight:
            for row, page in self.pages(other, 0):
                readers.setdefault(page, set()).add(row)
        self.table[batch.table_slots, batch.table_index] = batch.table_pages
        for row, page in self.pages(batch, None):
            if readers.get(page, set()) - {row}:
                raise Violation(f"page {page} is rewritten under a launched step")

    def pages(self, batch: ForwardBatch, first: int | None) -> Iterator[tuple[tuple[int, int], int]]:
        size = self.page_size
        for index in range(batch.num_rows):
            slot = int(batch.slots[index])
            start = int(batch.starts[index]) if first is None else first
            end = int(batch.starts[index] + batch.num_new_tokens[index])
            for page in self.table[slot, start // size : -(-end // size)]:
                yield (slot, int(batch.generations[index])), int(page)

    @property
    def num_decodes(self) -> int:
        return sum(batch.num_rows - batch.num_chunks for batch in self.batches)


def prompt(length: int, start: int = 1) -> list[int]:
    return [1 + (start + index) % 20 for index in range(length)]


def finish_all(rig: Rig, rng: random.Random | None = None) -> None:
    rig.run(rng)
    rig.check_answers()
    rig.check_drained()


def until(rig: Rig, condition: Any, steps: int = 500) -> None:
    for _ in range(steps):
        if condition():
            return
        rig.both()
    raise AssertionError("the situation never came about")


# --- identity --------------------


def test_01_results_are_applied_by_slot_and_generation() -> None:
    rig = Rig(max_running=1)
    first = rig.submit(prompt(6), 20, ignore_eos=True)
    until(rig, lambda: len(first.token_ids) >= 2)
    slots = rig.control._slots
    old = int(slots.generation[1])
    rig.abort(first)
    second = rig.submit(prompt(6, start=9), 20, ignore_eos=True)
    until(rig, lambda: slots.num_in_use == 1 and int(slots.generation[1]) != old)
    stale = StepResult(
        step=1,
        epoch=0,
        applied=0,
        slots=np.array([1], np.int32),
        generations=np.array([old]),
        kv_lens=np.array([99], np.int32),
        token_ids=np.array([5], np.int32),
        dropped=((1, old),),
    )
    before = int(slots.kv_len[1]), int(slots.num_tokens[1])
    rig.control._outputs.process(stale)
    assert (int(slots.kv_len[1]), int(slots.num_tokens[1])) == before
    finish_all(rig)
    assert second.token_ids == rig.expected(second)


def test_02_no_sentinel_reaches_the_embedding_and_no_ring_wraps() -> None:
    rig = Rig(max_running=3, num_pages=40)
    witness = Witness(rig.runner)
    for index in range(60):  # many more lives than slots
        rig.submit(prompt(3 + index % 9, start=index), 5)
    finish_all(rig, random.Random(2))
    assert all((batch.chunk_ids >= 0).all() for batch in witness.batches)
    assert max(int(batch.slots.max()) for batch in witness.batches) <= 3
    assert all((batch.slots > 0).all() for batch in witness.batches)


@pytest.mark.parametrize("seed", range(10))
def test_03_and_09_slots_and_pages_wait_for_launched_steps(seed: int) -> None:
    rig = Rig(max_running=3, num_pages=18)
    Witness(rig.runner)
    rng = random.Random(seed)
    play(rig, rng, Traffic(max_prompt=16))
    finish_all(rig, rng)


# --- finish --------------------


@pytest.mark.parametrize(("max_new", "decodes"), [(0, 0), (1, 0), (2, 1), (7, 6)])
def test_04_an_end_by_length_launches_no_step_too_many(max_new: int, decodes: int) -> None:
    rig = Rig()
    witness = Witness(rig.runner)
    answer = rig.submit(prompt(6), max_new, ignore_eos=True)
    finish_all(rig)
    assert len(answer.token_ids) == max_new
    assert witness.num_decodes == decodes


def test_04_the_context_limit_ends_by_length() -> None:
    rig = Rig(context=16, num_pages=40)
    answer = rig.submit(prompt(10), 100, ignore_eos=True)
    rig.run()
    assert answer.finish is not None and answer.finish.kind == "length"
    assert len(answer.token_ids) == 6
    rig.check_drained()


def eos_prompt(rig: Rig, after: int) -> list[int]:
    """A prompt whose greedy answer ends by EOS after exactly `after` tokens."""
    for start in range(2000):
        rng = random.Random(start)
        candidate = [rng.randrange(1, rig.vocab) for _ in range(7)]
        answer = rig.submit(candidate, 40)
        expected = rig.expected(answer)
        rig.answers.pop(answer.request.key)
        rig.port.receive()  # it was only asked for its oracle
        if len(expected) == after and expected[-1] == 0:
            return candidate
    raise AssertionError("no such prompt")


def test_05_an_overrun_token_is_seen_by_nobody() -> None:
    rig = Rig(asynchronous=True)
    witness = Witness(rig.runner)
    answer = rig.submit(eos_prompt(rig, after=4), 40)
    finish_all(rig)
    assert answer.finish is not None and answer.finish.kind == "stop" and answer.finish.matched == 0
    assert witness.num_decodes == 4, "3 tokens were decoded, and one step had been launched behind the last"
    stats = rig.stats()
    assert stats.generation_tokens_total == 4
    assert stats.num_cached_tokens == (7 + 3) // 4 * 4, (
        "KV of prompt and 3 outputs; not of EOS nor the overrun"
    )


def test_06_the_slot_of_an_overrun_row_is_freed_once() -> None:
    rig = Rig(asynchronous=True)
    rig.submit(eos_prompt(rig, after=3), 40)
    dropped: list[tuple[int, int]] = []
    process = rig.control._outputs.process

    def record(result: StepResult) -> None:
        dropped.extend(result.dropped)
        process(result)

    rig.control._outputs.process = record  # type: ignore[method-assign]
    finish_all(rig)
    assert len(dropped) == 1


# --- memory --------------------


def tight(**options: Any) -> tuple[Rig, list[Answer]]:
    """Four requests that fit one by one, and never together."""
    rig = Rig(**{"num_pages": 16, "page_size": 4, "max_running": 4, "vocab": 101, **options})
    return rig, [rig.submit(prompt(5, start=7 * index), 56, ignore_eos=True) for index in range(4)]


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_10_a_retracted_token_in_flight_is_neither_lost_nor_doubled(seed: int, asynchronous: bool) -> None:
    rig, answers = tight(asynchronous=asynchronous)
    finish_all(rig, random.Random(seed))
    assert rig.stats().retracted_total > 0
    assert sum(answer.num_retractions for answer in answers) == rig.stats().retracted_total


def test_11_nobody_is_retracted_while_pages_are_still_fenced() -> None:
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


def test_12_a_duplicate_prefix_stays_private_until_its_row_is_dropped() -> None:
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
def test_13_an_abort_in_any_state_releases_everything_once(asynchronous: bool, chunk: int) -> None:
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
def test_14_only_the_guilty_request_of_a_failed_step_fails(asynchronous: bool) -> None:
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


def test_14_a_failed_step_leaves_nothing_matchable() -> None:
    poison = Poison(token=22)
    rig = Rig(num_pages=64, chunk=64, fault=poison)
    rig.submit([22, *prompt(15)], 4)
    finish_all(rig)
    assert rig.stats().num_cached_tokens == 0


@pytest.mark.parametrize("page_size", [1, 4])
def test_15_a_prefix_hit_leaves_one_token_to_compute(page_size: int) -> None:
    rig = Rig(page_size=page_size, num_pages=128 // page_size)
    for _ in range(2):
        answer = rig.submit(prompt(12), 3)
        finish_all(rig)
    assert answer.cached_tokens == (11 if page_size == 1 else 8)


@pytest.mark.parametrize(
    ("length", "max_new", "fits"), [(65, 1, False), (40, 26, False), (40, 25, True), (64, 1, True)]
)
def test_16_what_the_whole_pool_cannot_hold_is_refused_at_once(length: int, max_new: int, fits: bool) -> None:
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


# --- control --------------------


def test_20_an_abort_comes_before_the_results_that_are_ready() -> None:
    rig = Rig(asynchronous=False)
    answer = rig.submit(prompt(6), 20, ignore_eos=True)
    until(rig, lambda: len(answer.token_ids) >= 2)
    rig.compute.step()
    assert len(rig.links.results) > 0, "a token is ready"
    seen = len(answer.token_ids)
    rig.abort(answer)
    rig.control.step()
    rig.read()
    assert answer.finish is not None and answer.finish.kind == "abort"
    assert len(answer.token_ids) == seen
    finish_all(rig)


def test_21_a_flush_is_refused_while_busy_and_needs_a_drained_pipeline() -> None:
    rig = Rig()
    answer = rig.submit(prompt(9), 12, ignore_eos=True)
    until(rig, lambda: len(answer.token_ids) >= 3)
    rig.send(FlushReq(5))
    rig.both()
    (reply,) = rig.others
    assert reply.error is not None and reply.error.label == "busy" and "1 requests run" in reply.error.message  # type: ignore[union-attr]
    finish_all(rig)
    assert rig.stats().num_cached_tokens > 0
    assert rig.flush().flushed_tokens > 0
    assert rig.stats().num_cached_tokens == 0
    rig.check_drained()


def test_21_a_request_behind_a_flush_waits_for_it() -> None:
    rig = Rig()
    first = rig.submit(prompt(9), 2)
    finish_all(rig)
    rig.send(FlushReq(5))
    second = rig.submit(prompt(9), 2)
    rig.control.step()
    assert rig.control._slots.num_in_use == 0
    finish_all(rig)
    assert second.cached_tokens == 0
    assert second.token_ids == first.token_ids


def test_22_the_last_launched_step_is_drained() -> None:
    rig = Rig(asynchronous=True)
    rig.submit(eos_prompt(rig, after=5), 30)
    finish_all(rig)
    assert not rig.compute._in_flight


def test_24_a_long_prompt_does_not_stall_running_streams() -> None:
    rig = Rig(num_pages=128, chunk=8, max_running=3)
    witness = Witness(rig.runner)
    streams = [rig.submit(prompt(5, start=index), 60, ignore_eos=True) for index in range(2)]
    until(rig, lambda: all(answer.token_ids for answer in streams))
    witness.batches.clear()
    long = rig.submit(prompt(200, start=3), 1)
    until(rig, lambda: bool(long.token_ids))
    mixed = [batch for batch in witness.batches if batch.num_chunks]
    assert len(mixed) >= 200 // 8
    assert all(batch.num_rows - batch.num_chunks == 2 for batch in mixed), (
        "every step decodes both streams too"
    )
    assert all(len(batch.chunk_ids) <= 8 for batch in mixed)
    finish_all(rig)


def test_24_a_cold_request_is_overtaken_a_bounded_number_of_times() -> None:
    rig = Rig(policy="lpm", max_running=1, num_pages=64)
    rig.submit(prompt(12), 2)
    rig.run()
    running = rig.submit(prompt(12), 30, ignore_eos=True)
    until(rig, lambda: bool(running.token_ids))
    cold = rig.submit(prompt(12, start=9), 1)
    hot = 0
    while not cold.ended:
        rig.submit(prompt(12), 1)
        hot += 1
        rig.both()
        assert hot < 40 * MAX_OVERTAKEN, "the cold request starves"
    finish_all(rig)
    overtakers = sum(
        1 for answer in rig.answers.values() if answer.request.key > cold.request.key and answer.ended
    )
    assert overtakers > 0


# --- protocol --------------------


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("num_pages", [16, 64])
def test_27_parked_rows_are_granted_or_somebody_is_retracted(asynchronous: bool, num_pages: int) -> None:
    rig, answers = tight(asynchronous=asynchronous, num_pages=num_pages)
    all_parked = 0
    while not all(answer.ended for answer in answers):
        while rig.compute.step():  # control is slow: compute goes on until nothing more can run
            pass
        assert not rig.compute._in_flight
        all_parked += rig.compute._num_parked > 0
        assert rig.control.step(), "nothing in flight, and control does not know of it"
        rig.read()
    assert all_parked > 0, "the situation never came about"
    assert (rig.stats().retracted_total > 0) == (num_pages == 16)
    finish_all(rig)


def test_28_a_drop_is_acknowledged_without_a_step_and_void_after_the_end() -> None:
    rig = Rig(asynchronous=False, page_size=4, num_pages=32)
    answer = rig.submit(prompt(6), 60, ignore_eos=True)
    until(rig, lambda: len(answer.token_ids) >= 2)
    slots = rig.control._slots
    row = 1, int(slots.generation[1])
    while rig.compute.step():  # runs out of credit: nothing in flight, nothing to launch
        pass
    rig.control.process_results()
    rig.control._outputs.ask_to_drop(slots.req(1))
    rig.control._outputs.send_drops()
    assert rig.compute.step()
    (result,) = rig.links.results.drain()
    assert result.dropped == (row,) and len(result.slots) == 0
    rig.control._commands.send(lambda seq, epoch: Drop(seq, epoch, (row,)))
    rig.compute.step()
    (again,) = rig.links.results.drain()
    assert again.dropped == (), "the generation is over"
    assert again.applied == rig.control._commands.last_seq
    rig.control._outputs.process(result)
    rig.control._outputs.process(again)
    finish_all(rig)


@pytest.mark.parametrize("how", ["abort", "retract", "fail"])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_29_followers_go_on_when_their_leader_leaves_at_any_chunk(how: str, asynchronous: bool) -> None:
    shared = prompt(32)
    for chunk_number in range(1, 9):
        failing = {"step": 0}

        def fault(batch: ForwardBatch, failing: dict[str, int] = failing) -> None:
            if batch.step == failing["step"]:
                raise FloatingPointError("injected")

        rig = Rig(num_pages=64, chunk=4, page_size=4, max_running=4, asynchronous=asynchronous, fault=fault)
        witness = Witness(rig.runner)
        leader = rig.submit([*shared, 2], 4, ignore_eos=True)
        followers = [rig.submit([*shared, 3 + index], 4, ignore_eos=True) for index in range(2)]
        slots = rig.control._slots
        if how == "fail":
            failing["step"] = chunk_number
        else:
            until(rig, lambda w=witness, n=chunk_number: len(w.batches) >= n)
            req = rig.control._live.get(leader.request.key)
            if req is not None and req.phase in (Phase.PREFILLING, Phase.DECODING):
                if how == "abort":
                    rig.abort(leader)
                else:
                    rig.control._outputs.retract(req)
                    rig.control._outputs.send_drops()
        finish_all(rig)
        assert all(answer.finish is not None and answer.finish.kind == "length" for answer in followers)
        assert slots.num_in_use == 0
        if how == "abort":
            computed = sum(len(batch.chunk_ids) for batch in witness.batches)
            assert computed <= 32 + 3 * 4, "the shared prefix was computed once"


@pytest.mark.parametrize("chunk", [8, 256])
def test_a_shared_prefix_is_computed_once_among_requests_that_arrive_together(chunk: int) -> None:
    rig = Rig(num_pages=200, page_size=4, chunk=chunk, max_running=8, context=600)
    answers = [rig.submit([*prompt(120), 1 + index, 2], 3) for index in range(8)]
    finish_all(rig)
    assert rig.stats().computed_tokens_total == 120 + 8 * 2
    assert sum(answer.cached_tokens for answer in answers) == 7 * 120
    assert NO_TOKEN not in answers[0].token_ids
