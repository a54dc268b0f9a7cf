"""`CopyPages` through the compute loop: done in order, acknowledged once, in any state of the loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from compute_loop.forward_batch import ForwardBatch
from compute_loop.loop import ComputeLoop
from compute_loop.runner.hash_model import UNWRITTEN, HashRunner
from mem_pool.sizing import NUM_SAVE_BUFFERS, save_buffer_pages
from srt.core.messages import empty_int32
from srt.core.queues import Doorbell, SpscQueue
from srt.core.sampling_params import SamplingParams
from srt.core.step_messages import (
    Command,
    CopyPages,
    Fence,
    PrefillBatch,
    Resume,
    ScheduledSeq,
    SeqInit,
    StepResult,
)
from tests.compute_loop.steps import StepDriver, load_small
from tests.compute_loop.tiny_models import write_hf_model

PAGE_SIZE = 4


class Desk:
    """A compute loop over the hash model, and the control side's ends of its queues."""

    def __init__(self, asynchronous: bool = True) -> None:
        self.commands: SpscQueue[Command] = SpscQueue()
        self.results: SpscQueue[StepResult] = SpscQueue()
        self.fail = False
        self.runner = HashRunner(4, 16, PAGE_SIZE, 64, 101, asynchronous, fault=self._fault, num_host_pages=8)
        self.loop = ComputeLoop(self.runner, 4, self.commands, self.results, Doorbell())
        self.seq = 0

    def _fault(self, batch: ForwardBatch) -> None:
        if self.fail:
            raise FloatingPointError("injected")

    def copy(self, src: list[int], dst: list[int], to_host: bool, epoch: int = 0) -> int:
        self.seq += 1
        columns = np.array(src, np.int32), np.array(dst, np.int32)
        self.commands.put(CopyPages(self.seq, epoch, *columns, to_host))
        return self.seq

    def prefill(self, slot: int, pages: list[int], cached: int = 0, epoch: int = 0, limit: int = 0) -> None:
        """Tokens 1, 2, ... of a prompt that fills `pages`, the first `cached` of which have KV."""
        length = len(pages) * PAGE_SIZE
        init = SeqInit(length, 0, 50, frozenset(), SamplingParams(temperature=0.0, max_new_tokens=50))
        self.seq += 1
        tokens = np.arange(1, length + 1, dtype=np.int32)
        row = ScheduledSeq(
            slot, 1, tokens[cached:], cached, 0, np.array(pages, np.int32), limit or length, True, init
        )
        self.commands.put(PrefillBatch(self.seq, epoch, (row,)))

    def settle(self) -> list[StepResult]:
        while self.loop.step():
            pass
        return self.results.drain()


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_copy_is_acknowledged_once_with_nothing_else_to_do(asynchronous: bool) -> None:
    desk = Desk(asynchronous)
    first = desk.copy([1], [0], to_host=True)
    second = desk.copy([2], [1], to_host=True)
    (result,) = desk.settle()
    assert result.copied == (first, second)
    assert result.applied == second
    assert desk.settle() == []


@pytest.mark.parametrize("asynchronous", [True, False])
def test_pages_go_out_and_come_back_elsewhere_and_a_row_reads_them(asynchronous: bool) -> None:
    desk = Desk(asynchronous)
    desk.prefill(1, [1, 2, 3])
    (first, *_) = desk.settle()
    desk.copy([1, 2], [5, 3], to_host=True)
    desk.settle()
    desk.runner._kv[:] = UNWRITTEN
    desk.copy([5, 3], [9, 8], to_host=False)
    desk.prefill(2, [9, 8, 7], cached=2 * PAGE_SIZE)  # commanded before the copy is acknowledged
    results = desk.settle()
    tokens = [result.token_ids for result in results if len(result.token_ids)]
    assert tokens[0].tolist() == first.token_ids.tolist()
    assert sum(len(result.copied) for result in results) == 1


def test_a_copy_under_a_launched_step_rides_on_the_next_result() -> None:
    desk = Desk()
    desk.prefill(1, [1, 2], limit=40)
    desk.loop.apply_commands()
    desk.loop.launch()
    seq = desk.copy([3], [0], to_host=True)
    desk.loop.apply_commands()
    assert not desk.loop.acknowledge(), "a step is in flight"
    desk.loop.finish(keep=0)
    (result,) = desk.results.drain()
    assert result.copied == (seq,)
    assert result.applied == 1, "the step was launched before the copy"


def test_a_copy_waits_behind_a_fence_and_is_done_while_compute_holds() -> None:
    desk = Desk()
    desk.commands.put(Fence(1, 0, hold=True))
    desk.seq = 1
    seq = desk.copy([1], [0], to_host=True)
    fenced, copied = desk.settle()
    assert (fenced.fenced, fenced.copied) == (1, ())
    assert copied.copied == (seq,)
    desk.commands.put(Resume(3, 0))


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_failed_step_loses_no_acknowledgement_and_voids_no_copy(asynchronous: bool) -> None:
    desk = Desk(asynchronous)
    desk.prefill(1, [1])
    desk.settle()
    desk.fail = True
    desk.prefill(2, [2])
    before = desk.copy([1], [0], to_host=True)
    desk.loop.apply_commands()
    desk.loop.launch()
    desk.loop.apply_commands()
    desk.loop.finish(keep=0)
    (fault,) = desk.results.drain()
    assert fault.fault is not None
    desk.fail = False
    after = desk.copy([1], [1], to_host=True, epoch=0)  # control has not heard of the new epoch
    results = [fault, *desk.settle()]
    copied = [seq for result in results for seq in result.copied]
    assert copied == [before, after]
    assert desk.runner.host[:2].tolist() == [[1, 2, 3, 4]] * 2


def test_an_empty_copy_is_acknowledged_too() -> None:
    desk = Desk()
    desk.commands.put(CopyPages(1, 0, empty_int32(), empty_int32(), to_host=False))
    (result,) = desk.settle()
    assert result.copied == (1,)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_real_runner_s_pages_come_back_elsewhere_with_the_same_bits_and_the_same_answer(
    tmp_path: Path, page_size: int
) -> None:
    write_hf_model(tmp_path, seed=1)
    loaded = load_small(tmp_path, page_size=page_size, cache_dir=str(tmp_path / "cache"))
    assert loaded.host is not None and loaded.identity is not None
    assert loaded.host.num_pages == NUM_SAVE_BUFFERS * save_buffer_pages(loaded.host.page_bytes)
    driver = StepDriver(loaded)
    prompt = [5, 9, 200, 17, 33, 61, 7, 8, 9]
    expected = driver.generate(1, prompt, 5)
    cached = len(prompt) // page_size * page_size - page_size
    src = driver.sequences[1].pages[: cached // page_size]
    dst = [driver._free.pop() for _ in src]
    between = np.arange(len(src), dtype=np.int32)[::-1].copy()
    driver.runner.copy_pages(np.array(src, np.int32), between, True)
    for layer in driver.runner._pool.layers:
        layer[:, :, src] = torch.nan
    driver.runner.copy_pages(between, np.array(dst, np.int32), False)
    driver.begin(2, prompt, cached=cached)
    for page in dst:
        driver._add_page(2, page)
    driver.step({2: len(prompt) - cached})
    for _ in range(4):
        driver.step(decodes=[2])
    assert driver.sequences[2].output == expected
