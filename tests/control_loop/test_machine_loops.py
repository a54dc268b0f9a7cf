"""Both loops over the hash model, driven in any order that hypothesis can think of, and judged by the oracle."""

from __future__ import annotations

from collections import Counter
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compute_loop.forward_batch import ForwardBatch
from control_loop.policy import POLICIES
from control_loop.req import Phase, Req
from srt.core.messages import (
    ContinueReq,
    FlushReq,
    PauseMode,
    PauseReq,
    SaveReply,
    SaveReq,
    StatsReq,
)
from tests.control_loop.corner import Witness
from tests.control_loop.ownership import check_kv, check_ownership
from tests.rig import Answer, Rig
from tests.schedules import Poison
from tests.strategies import NAMESPACES, StepCount, run_machines, token_runs

MACHINES, STEPS = 200, 60
POISON = 22
MAX_PROMPT = 24
HAPPENED = (
    "retracted_total",
    "evicted_tokens_total",
    "parked_rows_total",
    "aborted_total",
    "failed_steps_total",
    "cached_tokens_total",
    "flushed",
    "paused",
    "saved",
    "guilty",
)

which = st.integers(0, 7)
endings = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from((0.0, 0.0, 1.0)),
        "seed": st.integers(0, 2),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.sampled_from(((), (), (3,), (4, 5, 6, 7))),
    }
)


class Injected:
    """Fails the next step that runs when `armed`; and each step with a poisoned prompt in it.

    `num_alone`: steps of one row that failed without poison.
    """

    def __init__(self) -> None:
        self.armed = False
        self.num_failures = 0
        self.num_alone = 0
        self.poison = Poison(POISON)

    def __call__(self, batch: ForwardBatch) -> None:
        self.poison(batch)
        if self.armed:
            self.armed = False
            self.num_failures += 1
            self.num_alone += batch.num_rows == 1
            raise FloatingPointError(f"injected into step {batch.step}")


class LoopsMachine(RuleBasedStateMachine):
    """Thread: the test's. A rig on which time stands still, and what was asked of it."""

    def __init__(self, count: StepCount) -> None:
        super().__init__()
        self.count = count
        self.fault = Injected()
        self.asked: list[int] = []
        self.poisoned: list[Answer] = []
        self.checked = 0
        self.directory = TemporaryDirectory(prefix="twinloop-test-")
        self.rig: Rig

    @initialize(
        page_size=st.sampled_from((1, 4)),
        pool_tokens=st.sampled_from((40, 48, 80)),
        chunk=st.sampled_from((4, 8, 64)),
        policy=st.sampled_from(list(POLICIES)),
        asynchronous=st.booleans(),
        radix_cache=st.sampled_from((True, True, True, False)),
        eviction_policy=st.sampled_from(("lru", "fifo", "slru")),
    )
    def start(self, page_size: int, pool_tokens: int, policy: str, **options: Any) -> None:
        self.rig = Rig(
            page_size=page_size,
            num_pages=pool_tokens // page_size,
            policy=policy,
            preemption_threshold=0 if policy == "priority" else None,
            fault=self.fault,
            clock=lambda: 0.0,
            cache_dir=self.directory.name if options["radix_cache"] else None,
            **options,
        )
        Witness(self.rig.runner)

    # --- clients --------------------

    @rule(
        data=st.data(),
        namespace=NAMESPACES,
        max_new_tokens=st.integers(0, 16),
        priority=st.integers(0, 2),
        params=endings,
        count=st.integers(1, 3),
    )
    def submit(
        self,
        data: st.DataObject,
        namespace: str | None,
        max_new_tokens: int,
        priority: int,
        params: dict[str, Any],
        count: int,
    ) -> None:
        """Requests that arrive together share all but their ends."""
        prompt = data.draw(token_runs(4, MAX_PROMPT))
        for own in range(count):
            self.rig.submit([*prompt, 7 + own], max_new_tokens, namespace, priority, **params)

    @precondition(lambda self: len(self.poisoned) < 3)
    @rule(length=st.integers(1, 12))
    def submit_poisoned(self, length: int) -> None:
        self.poisoned.append(self.rig.submit([POISON, *range(1, length)], 8, ignore_eos=True))

    @precondition(lambda self: self.live())
    @rule(index=which, keep=st.booleans())
    def abort(self, index: int, keep: bool) -> None:
        live = self.live()
        answer = live[index % len(live)]
        self.rig.abort(answer, len(answer.token_ids) if keep else None)

    def live(self) -> list[Answer]:
        return [answer for answer in self.rig.answers.values() if not answer.ended]

    # --- the loops --------------------

    @rule(count=st.integers(1, 3))
    def control(self, count: int) -> None:
        for _ in range(count):
            self.rig.control.step()

    @rule(count=st.integers(1, 3))
    def compute(self, count: int) -> None:
        for _ in range(count):
            self.rig.compute.step()

    @rule(count=st.integers(1, 8))
    def both(self, count: int) -> None:
        for _ in range(count):
            self.rig.both()

    # --- what goes wrong --------------------

    @precondition(lambda self: self.rows())
    @rule(index=which)
    def retract(self, index: int) -> None:
        rows = self.rows()
        self.rig.control._outputs.retract(rows[index % len(rows)])
        self.rig.control._outputs.send_drops()

    def rows(self) -> list[Req]:
        return [
            req for req in self.rig.control._slots.reqs() if req.phase in (Phase.PREFILLING, Phase.DECODING)
        ]

    @precondition(lambda self: not self.fault.armed and self.fault.num_failures < 3)
    @rule()
    def fail_next_step(self) -> None:
        self.fault.armed = True

    # --- operators --------------------

    def ask(self) -> int:
        self.asked.append(1000 + len(self.asked))
        return self.asked[-1]

    @rule(timeout=st.sampled_from((0.0, 1e6)))
    def flush(self, timeout: float) -> None:
        self.rig.send(FlushReq(self.ask(), timeout))

    @precondition(lambda self: self.rig.store is not None)
    @rule()
    def save(self) -> None:
        self.rig.send(SaveReq(self.ask()))

    @precondition(lambda self: self.rig.store is not None)
    @rule(count=st.integers(1, 3))
    def write_files(self, count: int) -> None:
        for _ in range(count):
            self.rig.store.helper.step()  # type: ignore[union-attr]

    @rule()
    def stats(self) -> None:
        self.rig.send(StatsReq(self.ask()))

    @rule(mode=st.sampled_from(("abort", "retract", "in_place")))
    def pause(self, mode: PauseMode) -> None:
        self.rig.send(PauseReq(self.ask(), mode))

    @rule()
    def go_on(self) -> None:
        self.rig.send(ContinueReq(self.ask()))

    # --- judging --------------------

    @invariant()
    def holds_together(self) -> None:
        self.rig.read()
        copying = [node for _, part, _ in self.rig.control._saver._copying.values() for node in part.nodes]
        check_ownership(self.rig.control._manager, self.rig.control._slots, copying)
        for answer in self.live():
            expected = self.rig.expected(answer)
            assert answer.token_ids == expected[: len(answer.token_ids)], answer
        self.checked += 1

    def teardown(self) -> None:
        self.count.total += max(0, self.checked - 2)  # the first looks are before the first step
        with self.directory:
            if self.checked >= 2:  # it has been set up
                self.judge()

    def judge(self) -> None:
        self.rig.send(ContinueReq(self.ask()))
        self.rig.run()
        self.rig.check_answers()
        self.rig.check_drained()
        replies = Counter(int(reply.key) for reply in self.rig.others)  # type: ignore[union-attr]
        assert replies == Counter(self.asked), "every question has one reply"
        self.check_errors()
        self.check_saved()
        self.note_happened()
        assert self.rig.flush().error is None
        assert self.rig.stats().num_free_tokens == self.rig.stats().max_total_num_tokens

    def check_errors(self) -> None:
        """Only who was poisoned fails, or was alone in a step that failed."""
        innocent = 0
        for answer in self.rig.answers.values():
            if answer.finish is None or answer.finish.kind != "error":
                continue
            expected = self.rig.expected(answer)
            assert answer.token_ids == expected[: len(answer.token_ids)]
            innocent += answer not in self.poisoned
        assert innocent <= self.fault.num_alone, "an innocent failed"

    def check_saved(self) -> None:
        """What was saved comes back with the KV of its tokens, whatever went on meanwhile."""
        saved = [reply for reply in self.rig.others if isinstance(reply, SaveReply)]
        assert all(reply.error is None for reply in saved), saved
        if saved:
            page_size, pool = self.rig.config.cache.page_size, self.rig.control._manager.allocator
            restarted = Rig(num_pages=pool.num_pages, page_size=page_size, cache_dir=self.directory.name)
            assert restarted.restored == saved[-1].saved_tokens
            check_kv(restarted)
            restarted.check_drained()

    def note_happened(self) -> None:
        stats, happened = self.rig.stats(), self.count.happened
        happened.update({name: int(getattr(stats, name)) for name in HAPPENED if hasattr(stats, name)})
        happened["guilty"] += sum(
            answer.finish is not None and answer.finish.kind == "error" for answer in self.poisoned
        )
        happened["saved"] += sum(getattr(reply, "saved_tokens", 0) > 0 for reply in self.rig.others)
        happened["flushed"] += sum(getattr(reply, "flushed_tokens", 0) > 0 for reply in self.rig.others)
        happened["paused"] += sum(getattr(reply, "num_running", 0) > 0 for reply in self.rig.others)


@pytest.mark.slow
@pytest.mark.timeout(900)  # hypothesis shrinks what fails
def test_corner_25_any_interleaving_of_both_loops_gives_the_oracle_s_tokens() -> None:
    count = StepCount()
    run_machines(lambda: LoopsMachine(count), MACHINES, STEPS)
    assert count.total >= MACHINES * STEPS // 2, count
    assert all(count.happened[name] for name in HAPPENED), f"something never happened: {count}"
