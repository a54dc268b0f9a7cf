"""Corner cases by their number: who a result belongs to, and how a request ends."""

from __future__ import annotations

import random

import numpy as np
import pytest

from srt.core.step_messages import StepResult
from tests.control_loop.corner import Witness, eos_prompt, finish_all, prompt, until
from tests.rig import Rig
from tests.schedules import Traffic, play

# --- identity --------------------


def test_corner_01_results_are_applied_by_slot_and_generation() -> None:
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


def test_corner_02_no_sentinel_reaches_the_embedding_and_no_ring_wraps() -> None:
    rig = Rig(max_running=3, num_pages=40)
    witness = Witness(rig.runner)
    for index in range(60):  # many more lives than slots
        rig.submit(prompt(3 + index % 9, start=index), 5)
    finish_all(rig, random.Random(2))
    assert all((batch.chunk_ids >= 0).all() for batch in witness.batches)
    assert max(int(batch.slots.max()) for batch in witness.batches) <= 3
    assert all((batch.slots > 0).all() for batch in witness.batches)


@pytest.mark.parametrize("seed", range(10))
def test_corner_03_09_slots_and_pages_wait_for_launched_steps(seed: int) -> None:
    rig = Rig(max_running=3, num_pages=18)
    Witness(rig.runner)
    rng = random.Random(seed)
    play(rig, rng, Traffic(max_prompt=16))
    finish_all(rig, rng)


# --- finish --------------------


@pytest.mark.parametrize(("max_new", "decodes"), [(0, 0), (1, 0), (2, 1), (7, 6)])
def test_corner_04_an_end_by_length_launches_no_step_too_many(max_new: int, decodes: int) -> None:
    rig = Rig()
    witness = Witness(rig.runner)
    answer = rig.submit(prompt(6), max_new, ignore_eos=True)
    finish_all(rig)
    assert len(answer.token_ids) == max_new
    assert witness.num_decodes == decodes


def test_corner_04_the_context_limit_ends_by_length() -> None:
    rig = Rig(context=16, num_pages=40)
    answer = rig.submit(prompt(10), 100, ignore_eos=True)
    rig.run()
    assert answer.finish is not None and answer.finish.kind == "length"
    assert len(answer.token_ids) == 6
    rig.check_drained()


@pytest.mark.parametrize("page_size", [1, 4])
def test_corner_05_an_overrun_token_is_seen_by_nobody(page_size: int) -> None:
    rig = Rig(asynchronous=True, page_size=page_size, num_pages=64 // page_size)
    witness = Witness(rig.runner)
    answer = rig.submit(eos_prompt(rig, after=4), 40)
    finish_all(rig)
    assert answer.finish is not None and answer.finish.kind == "stop" and answer.finish.matched == 0
    assert witness.num_decodes == 4, "3 tokens were decoded, and one step had been launched behind the last"
    stats = rig.stats()
    assert stats.generation_tokens_total == 4
    assert stats.num_cached_tokens == (7 + 3) // page_size * page_size, (
        "KV of prompt and 3 outputs; not of EOS nor the overrun"
    )


def test_corner_06_the_slot_of_an_overrun_row_is_freed_once() -> None:
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
