"""What the corner-case tests share: a witness of what was launched, and ways into a situation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from compute_loop.forward_batch import ForwardBatch
from compute_loop.runner.base import DeviceLost, StepTokens
from compute_loop.runner.hash_model import HashRunner, HashStep
from tests.rig import Answer, Rig


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


def tight(**options: Any) -> tuple[Rig, list[Answer]]:
    """Four requests that fit one by one, and never together."""
    rig = Rig(**{"num_pages": 16, "page_size": 4, "max_running": 4, "vocab": 101, **options})
    return rig, [rig.submit(prompt(5, start=7 * index), 56, ignore_eos=True) for index in range(4)]
