"""Corner cases by their number: the two loops and their queues."""

from __future__ import annotations

import pytest

from compute_loop.forward_batch import ForwardBatch
from control_loop.aging import MAX_OVERTAKEN
from control_loop.req import Phase
from srt.core.messages import FlushReq
from srt.core.step_messages import NO_TOKEN, Drop
from tests.control_loop.corner import Witness, eos_prompt, finish_all, prompt, tight, until
from tests.rig import Rig

# --- control --------------------


def test_corner_20_an_abort_comes_before_the_results_that_are_ready() -> None:
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


def test_corner_21_a_flush_is_refused_while_busy_and_needs_a_drained_pipeline() -> None:
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


def test_corner_21_a_request_behind_a_flush_waits_for_it() -> None:
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


def test_corner_22_the_last_launched_step_is_drained() -> None:
    rig = Rig(asynchronous=True)
    rig.submit(eos_prompt(rig, after=5), 30)
    finish_all(rig)
    assert not rig.compute._in_flight


def test_corner_24_a_long_prompt_does_not_stall_running_streams() -> None:
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


def test_corner_24_a_cold_request_is_overtaken_a_bounded_number_of_times() -> None:
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
def test_corner_27_parked_rows_are_granted_or_somebody_is_retracted(
    asynchronous: bool, num_pages: int
) -> None:
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


def test_corner_28_a_drop_is_acknowledged_without_a_step_and_void_after_the_end() -> None:
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
def test_corner_29_followers_go_on_when_their_leader_leaves_at_any_chunk(
    how: str, asynchronous: bool
) -> None:
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


def test_a_full_queue_refuses_and_free_slots_count() -> None:
    rig = Rig(max_running=2, max_queued=3, num_pages=64)
    answers = [rig.submit(prompt(4), 4, ignore_eos=True) for _ in range(7)]
    rig.run()
    refused = [answer.refused for answer in answers]
    assert refused[:5] == [None] * 5, "two slots were free and three may wait"
    for refusal in refused[5:]:
        assert refusal is not None and refusal.error.status == 503 and refusal.error.retryable
        assert "--max-queued-requests is 3" in refusal.error.message
    rig.check_drained()
