"""What the cycle collector may look at in an engine process."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from control_loop.collector import PASSES_BETWEEN, Collector, give_back_collection, take_over_collection


class Thing:
    other: Thing | None = None


@pytest.fixture
def collector() -> Iterator[Collector]:
    take_over_collection()
    yield Collector()
    give_back_collection()


def passes(collector: Collector, count: int) -> None:
    for _ in range(count):
        collector.between_passes()


def test_new_cycles_go_between_passes(collector: Collector) -> None:
    thing = Thing()
    thing.other, gone = thing, weakref.ref(thing)
    del thing
    passes(collector, PASSES_BETWEEN - 1)
    assert gone() is not None
    passes(collector, 1)
    assert gone() is None


def test_new_cycles_go_when_there_is_nothing_to_do(collector: Collector) -> None:
    thing = Thing()
    thing.other, gone = thing, weakref.ref(thing)
    del thing
    collector.when_idle()
    assert gone() is not None, "nothing was done since: nothing is looked for"
    passes(collector, 1)
    collector.when_idle()
    assert gone() is None


def test_what_was_seen_once_is_not_looked_at_again_and_still_freed(collector: Collector) -> None:
    kept = [Thing() for _ in range(10_000)]
    gone = weakref.ref(kept[0])
    passes(collector, PASSES_BETWEEN)
    assert gc.get_freeze_count() > len(kept)
    assert sum(isinstance(item, Thing) for item in gc.get_objects()) == 0, (
        "get_objects leaves out what is frozen"
    )
    kept.clear()
    assert gone() is None


def test_nothing_is_done_while_python_collects_by_itself() -> None:
    frozen = gc.get_freeze_count()
    passes(Collector(), PASSES_BETWEEN)
    assert gc.isenabled() and gc.get_freeze_count() == frozen
