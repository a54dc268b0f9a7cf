"""What a control loop is made of, for those who work on several parts at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from control_loop.cache_manager import CacheManager
from control_loop.commands import CommandSender
from control_loop.counters import Counters
from control_loop.host_tier import HostTier
from control_loop.intake import Limits
from control_loop.outbox import Outbox
from control_loop.output_processor import OutputProcessor
from control_loop.slots import SlotTable
from control_loop.waiting_queue import WaitingQueue
from mem_pool.page_allocator import PageAllocator
from radix_cache.host_index import HostIndex
from radix_cache.journal import JournaledCache
from radix_cache.radix_cache import RadixCache
from srt.core.config import Config
from srt.core.port import ControlPort
from srt.core.queues import Doorbell, SpscQueue
from srt.core.step_messages import Command, StepResult


@dataclass(frozen=True, slots=True)
class LoopLinks:
    """The two queues between the loops, and the bell by which compute wakes a sleeping control loop."""

    commands: SpscQueue[Command]
    results: SpscQueue[StepResult]
    doorbell: Doorbell

    @classmethod
    def create(cls) -> LoopLinks:
        return cls(SpscQueue(), SpscQueue(), Doorbell())


@dataclass(frozen=True, slots=True)
class LoopParts:
    """Thread: control. The parts themselves have their own state; `clock` gives seconds."""

    port: ControlPort
    commands: CommandSender
    manager: CacheManager
    slots: SlotTable
    waiting: WaitingQueue
    outbox: Outbox
    outputs: OutputProcessor
    counters: Counters
    clock: Callable[[], float]

    @classmethod
    def build(
        cls,
        config: Config,
        limits: Limits,
        num_pages: int,
        port: ControlPort,
        links: LoopLinks,
        clock: Callable[[], float],
        host_index: HostIndex | None = None,
    ) -> LoopParts:
        """All parts, connected; nothing is in them yet."""
        page_size = config.cache.page_size
        slots = SlotTable(config.schedule.max_running_requests, limits.context_length, page_size)
        has_journal = config.events.kv_events is not None or host_index is not None
        kind = JournaledCache if has_journal else RadixCache
        cache = kind(page_size, config.cache.eviction_policy, enabled=config.cache.radix_cache)
        commands = CommandSender(links.commands)
        tier = None
        if host_index is not None and isinstance(cache, JournaledCache):
            tier = HostTier(cache, commands, host_index)
        manager = CacheManager(cache, PageAllocator(num_pages), slots, tier)
        waiting = WaitingQueue(config.schedule.max_queued_requests)
        outbox, counters = Outbox(), Counters()
        outputs = OutputProcessor(manager, slots, waiting, commands, outbox, counters, clock)
        return cls(port, commands, manager, slots, waiting, outbox, outputs, counters, clock)

    @property
    def is_quiet(self) -> bool:
        """No request holds a slot: no step runs, none is launched, and nobody reads a page."""
        return self.slots.num_in_use == 0
