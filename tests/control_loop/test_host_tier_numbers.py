"""Compute may take a copy, and report, before control has sent the prefill behind it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from srt.core.queues import SpscQueue
from srt.core.step_messages import Command, CopyPages, PrefillBatch
from tests.control_loop.ownership import check_kv
from tests.rig import Rig
from tests.schedules import Poison, Traffic, play


class EagerQueue(SpscQueue[Command]):
    """Calls `on_copy` as soon as a copy has been put, before control goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Command] = []
        self.on_copy: Callable[[], object] = bool

    def put(self, item: Command) -> None:
        self.sent.append(item)
        super().put(item)
        if isinstance(item, CopyPages):
            self.on_copy()


def hurried(rig: Rig) -> EagerQueue:
    """The rig's commands go through such a queue; nothing has been sent yet."""
    queue = EagerQueue()
    rig.control._commands._queue = rig.compute._commands = queue
    return queue


@pytest.mark.parametrize("asynchronous", [True, False])
def test_what_a_prefill_writes_is_not_settled_by_a_copy_before_it(asynchronous: bool) -> None:
    """A stream decodes, so that compute has something to report as soon as it has applied the copy."""
    rig = Rig(num_pages=24, num_host_pages=100, asynchronous=asynchronous, vocab=503)
    queue = hurried(rig)
    rig.submit(range(1, 90), 1)
    rig.run()
    stream = rig.submit([300, 301], 30, ignore_eos=True)
    while len(stream.token_ids) < 2:
        rig.both()
    queue.sent.clear()

    def report() -> None:
        while rig.compute.step():
            pass

    queue.on_copy = report
    rig.submit(range(100, 140), 1)
    rig.control.receive()
    rig.control.schedule_prefill()
    (batch,) = (command for command in queue.sent if isinstance(command, PrefillBatch))
    assert any(isinstance(command, CopyPages) for command in queue.sent)
    pending = rig.control._manager.cache._tree.pending._nodes
    assert set(pending) == {batch.seq}
    queue.on_copy = bool
    rig.run()
    rig.check_answers()


@pytest.mark.parametrize("seed", range(40))
def test_schedules_in_which_compute_runs_between_a_copy_and_its_prefill(seed: int) -> None:
    rng = random.Random(seed)
    page_size = rng.choice([1, 4])
    rig = Rig(
        page_size=page_size,
        num_pages=64 // page_size,
        num_host_pages=rng.choice([10, 400]),
        asynchronous=seed % 2 == 0,
        fault=Poison(every=rng.choice([3, 5, 7])),
    )
    queue = hurried(rig)
    queue.on_copy = lambda: [rig.compute.step() for _ in range(rng.randrange(4))]
    play(rig, rng, Traffic(max_prompt=24, max_new=24))
    rig.check_answers()
    rig.check_drained()
    check_kv(rig)
