"""The hand-over between threads: in order, nothing lost, no wake-up missed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest

from srt.core.queues import Doorbell, SpscQueue


@pytest.fixture
def bell() -> Iterator[Doorbell]:
    doorbell = Doorbell()
    yield doorbell
    doorbell.close()


def test_items_come_out_in_order() -> None:
    queue: SpscQueue[int] = SpscQueue()
    for item in range(5):
        queue.put(item)
    assert len(queue) == 5
    assert queue.get() == 0
    assert queue.get_nowait() == 1
    assert queue.drain() == [2, 3, 4]
    assert queue.get_nowait() is None


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("ccpp"))))
def test_no_interleaving_loses_a_wake_up(order: tuple[str, ...], bell: Doorbell) -> None:
    """Every order of the consumer's two moves before it sleeps and of the producer's two."""
    queue: SpscQueue[int] = SpscQueue()
    seen_at_recheck: list[int] = []

    def recheck() -> None:
        seen_at_recheck.extend(queue.drain())

    consumer: Iterator[Callable[[], None]] = iter([bell.arm, recheck])
    producer: Iterator[Callable[[], None]] = iter([lambda: queue.put(7), bell.ring])
    for who in order:
        next(consumer if who == "c" else producer)()
    woken = bell.wait(timeout=0)
    assert seen_at_recheck == [7] or woken, "the consumer would sleep beside an item"
    bell.disarm()
    assert [*seen_at_recheck, *queue.drain()] == [7]


def test_a_ring_while_awake_costs_no_wake_up_later(bell: Doorbell) -> None:
    bell.ring()
    bell.arm()
    assert not bell.wait(timeout=0)
    bell.ring()
    assert bell.wait(timeout=0)
    bell.disarm()
    bell.arm()
    assert not bell.wait(timeout=0), "an old ring wakes nobody twice"


def test_ten_million_items_under_load_in_order_none_lost() -> None:
    total, queue = 10_000_000, SpscQueue[int]()

    def produce() -> None:
        for item in range(total):
            queue.put(item)

    producer = threading.Thread(target=produce)
    producer.start()
    expected = 0
    while expected < total:
        batch = [queue.get(), *queue.drain()]
        assert batch == list(range(expected, expected + len(batch)))
        expected += len(batch)
    producer.join()
    assert queue.get_nowait() is None


def test_a_sleeping_consumer_gets_every_item(bell: Doorbell) -> None:
    """The full protocol on two threads: the consumer sleeps whenever it finds nothing."""
    total, queue = 20_000, SpscQueue[int]()
    received: list[int] = []

    def consume() -> None:
        while len(received) < total:
            received.extend(queue.drain())
            bell.arm()
            if not len(queue) and len(received) < total:
                assert bell.wait(timeout=60), f"asleep with {len(received)} of {total} items"
            bell.disarm()

    consumer = threading.Thread(target=consume)
    consumer.start()
    for item in range(total):
        queue.put(item)
        bell.ring()
    consumer.join(120)
    assert received == list(range(total))
