"""Tree, allocator and credits in any order that hypothesis can think of, checked after every step."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from control_loop.req import Phase, Req
from radix_cache.errors import TreeStateError
from tests.control_loop.leases import ABORT, Leases
from tests.strategies import NAMESPACES, StepCount, run_machines, token_runs

POOL_TOKENS = 32
MAX_PROMPT = 18
NUM_SLOTS = 4
MACHINES, STEPS = 600, 105
LEAST_STEPS = 50_000
"""For each of two page sizes: 100,000 together."""
HAPPENED = (
    "leaned on pending pages",
    "jumped over pages computed since",
    "kept a duplicate",
    "was retracted for memory",
    "evicted for a lease",
    "failed with rows on pending pages",
)

which = st.integers(0, 5)


class LeaseMachine(RuleBasedStateMachine):
    """Thread: the test's."""

    def __init__(self, page_size: int, count: StepCount) -> None:
        super().__init__()
        self.count = count
        self.leases = Leases(page_size, POOL_TOKENS // page_size, NUM_SLOTS, POOL_TOKENS + 8)
        self.checked = 0

    # --- requests --------------------

    @precondition(lambda self: len(self.leases.waiting) < 3)
    @rule(data=st.data(), namespace=NAMESPACES, max_new_tokens=st.integers(0, 14), count=st.integers(1, 3))
    def arrive(self, data: st.DataObject, namespace: str | None, max_new_tokens: int, count: int) -> None:
        """Requests that arrive together share all but their ends."""
        prompt = data.draw(token_runs(self.leases.page_size, MAX_PROMPT))
        for shorter in range(count):
            self.leases.arrive(prompt[: max(1, len(prompt) - shorter)], namespace, max_new_tokens)

    @precondition(lambda self: self.leases.waiting or self.leases.lives(Phase.PREFILLING))
    @rule(chunk=st.sampled_from((4, 4, 8, 64)), headroom=st.sampled_from((0, 0, 0, 2)), turn=which)
    def schedule(self, chunk: int, headroom: int, turn: int) -> None:
        before = {req.key: int(self.leases.slots.cached[req.slot]) for req in self.leases.slots.reqs()}
        self.leases.schedule(chunk, headroom, turn)
        self.note_sharing(before)

    def note_sharing(self, cached: dict[int, int]) -> None:
        happened, slots = self.count.happened, self.leases.slots
        for req in slots.reqs():
            happened["jumped over pages computed since"] += int(
                slots.cached[req.slot] > cached.get(req.key, slots.cached[req.slot])
            )
            node = self.leases.manager._nodes[req.slot]
            happened["leaned on pending pages"] += node.pending is not None and node.lock_ref > 2
            commanded = int(min(slots.scheduled[req.slot], slots.prefill_len[req.slot]))
            happened["kept a duplicate"] += int(slots.owned[req.slot, : commanded // slots.page_size].any())

    @precondition(lambda self: self.leases.lives(Phase.DECODING))
    @rule()
    def decode(self) -> None:
        self.leases.launch()

    @precondition(lambda self: self.leases.lives(Phase.DECODING))
    @rule()
    def grant(self) -> None:
        before = len(self.leases.lives(Phase.LEAVING))
        self.leases.grant()
        self.count.happened["was retracted for memory"] += len(self.leases.lives(Phase.LEAVING)) - before

    # --- results --------------------

    @precondition(lambda self: self.leases.steps)
    @rule(count=st.integers(1, 3))
    def settle(self, count: int) -> None:
        for _ in range(min(count, len(self.leases.steps))):
            self.leases.run_step()

    @precondition(lambda self: self.leases.steps)
    @rule()
    def fail(self) -> None:
        pending = self.leases.manager.cache.stats().num_pending
        self.count.happened["failed with rows on pending pages"] += pending > 0
        self.leases.fail()
        assert self.leases.slots.num_in_use == 0
        assert self.leases.manager.cache.num_protected == 0

    @precondition(lambda self: self.leases.lives(Phase.DECODING))
    @rule(count=st.integers(1, 6))
    def serve(self, count: int) -> None:
        """Nothing happens for a while but that rows decode."""
        for _ in range(count):
            self.grant()
            self.leases.launch()
            while self.leases.steps:
                self.leases.run_step()

    # --- ends --------------------

    @precondition(lambda self: self.leases.waiting or self.leases.slots.num_in_use)
    @rule(index=which, how=st.sampled_from(("retract", "abort", "finish")))
    def end(self, index: int, how: str) -> None:
        whom = {
            "retract": self.leases.lives(Phase.PREFILLING, Phase.DECODING),
            "abort": [*self.leases.waiting, *self.leases.slots.reqs()],
            "finish": self.finishable(),
        }[how]
        if not whom:
            return
        req = whom[index % len(whom)]
        if how == "finish":
            self.leases.end(req)
        else:
            self.leases.leave(req, ABORT if how == "abort" else None)

    def finishable(self) -> list[Req]:
        """Who has sampled a token: it may have been a stop token."""
        slots = self.leases.slots
        lives = self.leases.lives(Phase.DECODING, Phase.LEAVING)
        return [
            req
            for req in lives
            if slots.num_tokens[req.slot] > slots.prefill_len[req.slot]
            and not self.leases.rows[req.slot, req.generation].ended
        ]

    @precondition(lambda self: self.leases.lives(Phase.LEAVING))
    @rule()
    def tell(self) -> None:
        self.leases.tell()

    @precondition(lambda self: self.leases.droppable())
    @rule(index=which, keep_tokens=st.sampled_from((None, None, 0, 2)))
    def drop(self, index: int, keep_tokens: int | None) -> None:
        rows = self.leases.droppable()
        req = rows[index % len(rows)]
        self.leases.drop(req, keep_tokens if req.finish is not None else None)

    # --- memory --------------------

    @precondition(lambda self: self.leases.manager.cache.num_evictable)
    @rule(count=st.integers(1, 4))
    def evict(self, count: int) -> None:
        manager = self.leases.manager
        expected = min(count, manager.cache.num_evictable)
        pages = manager.cache.evict(count)
        assert len(pages) == expected
        manager.allocator.free(pages)

    @precondition(lambda self: self.leases.manager.cache.num_pages)
    @rule()
    def flush(self) -> None:
        manager = self.leases.manager
        if manager.cache.num_protected:
            with pytest.raises(TreeStateError, match="locked or pending"):
                manager.flush()
        else:
            assert manager.flush() > 0
            assert manager.cache.num_pages == 0

    # --- judging --------------------

    @invariant()
    def holds_together(self) -> None:
        self.leases.check()
        self.checked += 1

    def teardown(self) -> None:
        self.count.total += self.checked - 1  # the first look is before the first step
        self.count.happened["evicted for a lease"] += self.leases.manager.evicted_pages
        self.leases.drain()


@pytest.mark.slow
@pytest.mark.timeout(900)  # hypothesis shrinks what fails
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_hundred_thousand_steps_leave_no_page_and_no_lock_astray(page_size: int) -> None:
    count = StepCount()
    run_machines(lambda: LeaseMachine(page_size, count), MACHINES, STEPS)
    assert count.total >= LEAST_STEPS, count
    assert all(count.happened[name] for name in HAPPENED), f"something never happened: {count}"
