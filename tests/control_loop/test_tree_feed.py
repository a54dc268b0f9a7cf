"""What control says about changes of the tree makes a router's copy equal to the tree."""

from __future__ import annotations

import itertools
import random

import numpy as np
import orjson
import pytest

from compute_loop.forward_batch import ForwardBatch
from radix_cache.journal import JournaledCache
from srt.core.config import CacheOptions
from srt.core.errors import StepFailure
from srt.core.event_options import EventOptions
from srt.core.messages import EngineMessage
from srt.core.tree_messages import TreeChanges
from srt.server.ipc import decode, encode
from srt.server.kv_events import KvEventPublisher
from srt.server.placement import Placement
from tests.radix_cache.model import contents
from tests.replica import Prefix, Replica
from tests.rig import Rig

TENANTS = [
    Placement.of(extra_key, cache_salt, None).namespace
    for extra_key, cache_salt in ((None, None), ("a", None), ("a", "salt"))
]


class FedRig(Rig):
    """Thread: the test's. A rig whose clients keep a copy of the tree, from what a publisher puts on the wire."""

    def __init__(self, page_size: int, directory: object, **options: object) -> None:
        address = f"ipc://{directory}/events"
        self.replica = Replica(page_size)
        self.publisher = KvEventPublisher(EventOptions(kv_events=address), CacheOptions(page_size=page_size))
        super().__init__(page_size=page_size, kv_events=address, **options)  # type: ignore[arg-type]

    def read_message(self, message: EngineMessage) -> None:
        if isinstance(message, TreeChanges):
            crossed = decode(encode(message))
            assert isinstance(crossed, TreeChanges)
            self.publisher.apply(crossed)
        else:
            super().read_message(message)

    def check_replica(self) -> None:
        """The copy has exactly the pages of the tree, at any moment between two passes."""
        batches = self.publisher.replay(self.replica.next_number or 0)
        assert batches is not None
        assert all(self.replica.read(*batch) for batch in batches)
        cache = self.control._manager.cache
        assert isinstance(cache, JournaledCache)
        assert self.replica.prefixes() == {prefix_of(*prefix) for prefix in contents(cache)}


def prefix_of(namespace: str | None, tokens: tuple[int, ...]) -> Prefix:
    extra_key, cache_salt = (None, None) if namespace is None else orjson.loads(namespace)
    return extra_key, cache_salt, tokens


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_replica_made_from_events_equals_the_tree(page_size: int, seed: int, tmp_path: object) -> None:
    """Splits, evictions, retractions, aborts, failing steps and flushes, in a pool that is too small."""
    rng, steps = random.Random(seed), itertools.count(1)

    def fault(batch: ForwardBatch) -> None:
        if next(steps) % 20 == 0:
            raise StepFailure("injected")

    rig = FedRig(page_size, tmp_path, num_pages=48 // page_size, chunk=8, fault=fault)
    try:
        for _ in range(3):
            answers = []
            for _ in range(10):
                prompt = [*[1, 2, 3, 4] * rng.randint(0, 3), *rng.choices((1, 2), k=rng.randint(1, 8))]
                answers.append(rig.submit(prompt, rng.randint(1, 10), rng.choice(TENANTS)))
            for _ in range(150):
                (rig.control if rng.random() < 0.5 else rig.compute).step()
                rig.read()
                rig.check_replica()
                if rng.random() < 0.02:
                    rig.abort(rng.choice(answers))
            rig.run(rng)
            rig.check_replica()
            assert rig.replica.blocks, f"seed {seed}"
            rig.flush()
            rig.check_replica()
            assert not rig.replica.blocks, f"seed {seed}"
        rig.check_answers()
        stats = rig.stats()
        assert stats.evicted_tokens_total > 0 and stats.failed_steps_total > 0, f"seed {seed}: {stats}"
    finally:
        rig.publisher.close()


def test_without_the_option_nothing_is_written_down() -> None:
    rig = Rig(page_size=2)
    rig.submit(np.arange(1, 9).tolist(), 4)
    rig.run()
    assert not isinstance(rig.control._manager.cache, JournaledCache)
    assert not any(isinstance(message, TreeChanges) for message in rig.others)
