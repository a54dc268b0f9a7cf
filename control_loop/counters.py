"""What the control loop counts; read as a frozen `EngineStats`."""

from __future__ import annotations

from dataclasses import dataclass

from control_loop.cache_manager import CacheManager
from control_loop.slots import SlotTable
from control_loop.waiting_queue import WaitingQueue
from srt.core.messages import EngineStats
from srt.core.step_messages import StepResult


@dataclass(slots=True)
class Counters:
    """Thread: control. Plain sums since the start; tokens unless said otherwise."""

    steps_total: int = 0
    requests_total: int = 0
    finished_total: int = 0
    aborted_total: int = 0
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    computed_tokens_total: int = 0
    generation_tokens_total: int = 0
    prefill_chunks_total: int = 0
    retracted_total: int = 0
    preempted_total: int = 0
    parked_rows_total: int = 0
    failed_steps_total: int = 0
    device_busy_seconds_total: float = 0.0
    device_gap_seconds_total: float = 0.0
    control_seconds_total: float = 0.0

    def add_step(self, result: StepResult) -> None:
        self.steps_total = max(self.steps_total, result.step)
        self.parked_rows_total += result.num_parked
        self.device_busy_seconds_total += result.busy
        self.device_gap_seconds_total += result.gap


def snapshot(
    counters: Counters, manager: CacheManager, slots: SlotTable, waiting: WaitingQueue, is_paused: bool
) -> EngineStats:
    """All that a guest may want to know, as of now."""
    page_size = slots.page_size
    allocator, cache = manager.allocator, manager.cache
    sums = {name: getattr(counters, name) for name in Counters.__slots__}
    return EngineStats(
        num_running_reqs=slots.num_in_use,
        num_queue_reqs=len(waiting),
        max_total_num_tokens=allocator.num_pages * page_size,
        num_used_tokens=allocator.num_used * page_size,
        num_cached_tokens=cache.num_pages * page_size,
        num_free_tokens=allocator.num_free * page_size,
        num_locked_tokens=cache.num_protected * page_size,
        num_slots_in_use=slots.num_in_use,
        is_paused=is_paused,
        evicted_tokens_total=manager.evicted_pages * page_size,
        num_host_tokens=0 if manager.tier is None else manager.tier.num_pages * page_size,
        host_hit_tokens_total=0 if manager.tier is None else manager.tier.hit_pages * page_size,
        **sums,
    )
