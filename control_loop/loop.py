"""The control loop: requests, tree, memory and policy. One `step` is one pass over its verbs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from control_loop.cache_manager import CacheManager
from control_loop.collector import Collector
from control_loop.commands import CommandSender
from control_loop.counters import Counters, snapshot
from control_loop.intake import Limits, make_req
from control_loop.outbox import Outbox
from control_loop.output_processor import OutputProcessor
from control_loop.req import Req
from control_loop.scheduler import Scheduler
from control_loop.slots import SlotTable
from control_loop.waiting_queue import WaitingQueue
from mem_pool.page_allocator import PageAllocator
from radix_cache.radix_cache import RadixCache
from srt.core.config import Config
from srt.core.errors import Aborted, Busy, QueueFull, TwinloopError
from srt.core.messages import (
    AbortReq,
    Accepted,
    EngineStats,
    FinishReason,
    FlushReply,
    FlushReq,
    Heartbeat,
    Refused,
    StatsReply,
    StatsReq,
    TokenizedReq,
)
from srt.core.port import ControlPort
from srt.core.queues import Doorbell, SpscQueue
from srt.core.step_messages import Command, Fence, Shutdown, StepResult

HEARTBEAT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LoopLinks:
    """The two queues between the loops, and the bell by which compute wakes a sleeping control loop."""

    commands: SpscQueue[Command]
    results: SpscQueue[StepResult]
    doorbell: Doorbell

    @classmethod
    def create(cls) -> LoopLinks:
        return cls(SpscQueue(), SpscQueue(), Doorbell())


class InvariantError(AssertionError):
    """The idle check found pages, locks or slots that nobody owns."""


class ControlLoop:
    """Thread: control. The only writer of tree and allocator; never touches the device, never blocks in `step`."""

    def __init__(
        self,
        config: Config,
        limits: Limits,
        num_pages: int,
        port: ControlPort,
        links: LoopLinks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        page_size = config.cache.page_size
        self._limits = limits
        self._port = port
        self._links = links
        self._clock = clock
        self._collector = Collector()
        self._slots = SlotTable(config.schedule.max_running_requests, limits.context_length, page_size)
        cache = RadixCache(page_size, config.cache.eviction_policy, enabled=config.cache.radix_cache)
        self._manager = CacheManager(cache, PageAllocator(num_pages), self._slots)
        self._waiting = WaitingQueue(config.schedule.max_queued_requests)
        self._commands = CommandSender(links.commands)
        self._outbox = Outbox()
        self._counters = Counters()
        self._outputs = OutputProcessor(
            self._manager, self._slots, self._waiting, self._commands, self._outbox, self._counters
        )
        self._scheduler = Scheduler(
            config.schedule,
            self._manager,
            self._slots,
            self._waiting,
            self._commands,
            self._counters,
            self._outputs.recovery,
        )
        self._live: dict[int, Req] = {}
        self._flush: tuple[FlushReq, int] | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            TokenizedReq: self._accept,
            AbortReq: self._abort,
            FlushReq: self._begin_flush,
            StatsReq: self._report,
        }
        self._checked_idle = True
        self._last_result = self._last_heartbeat = clock()
        self.stopped = False

    def step(self) -> bool:
        started = self._clock()
        received = self.receive()
        processed = self.process_results()
        sent = self.schedule_prefill()
        sent |= self.grant_pages()
        self.deliver()
        self._beat(started)
        self._collector.between_passes()
        if self._port.closed:
            self._commands.send(Shutdown)
            self.stopped = True
        if received or processed or sent:
            self._counters.control_seconds_total += self._clock() - started
            return True
        return False

    def wait(self) -> None:
        """Sleeps until a message or a result arrives; with work in flight also until the next heartbeat."""
        if self.is_idle:
            self.check_idle()
            self._collector.when_idle()
        doorbell = self._links.doorbell
        doorbell.arm()
        if not self._port.pending and not len(self._links.results):
            self._port.sleep(doorbell, None if self.is_idle else HEARTBEAT_SECONDS)
        doorbell.disarm()

    # --- the verbs --------------------

    def receive(self) -> bool:
        """Takes in what clients sent; aborts are applied before the results that are ready by now."""
        messages = self._port.receive()
        for message in messages:
            self._handlers[type(message)](message)
        stalled = self._port.take_stalled()
        for key in stalled:
            self._abort_stalled(key)
        self._outputs.send_drops()
        return bool(messages or stalled)

    def process_results(self) -> bool:
        results = self._links.results.drain()
        for result in results:
            self._outputs.process(result)
            if result.fenced is not None:
                self._end_flush(result.fenced)
        if results:
            self._last_result = self._clock()
        return bool(results)

    def schedule_prefill(self) -> bool:
        if self._flush is not None:
            return False  # the tree is about to be emptied: nobody may lean on it
        if self._scheduler.schedule_prefill():
            return True
        victim = self._scheduler.blocked_suspect_victim()
        if victim is not None:
            self._outputs.retract(victim)
        return self._outputs.send_drops()

    def grant_pages(self) -> bool:
        sent, victim = self._scheduler.grant_pages()
        if victim is not None:
            self._outputs.retract(victim)
        return self._outputs.send_drops() or sent

    def deliver(self) -> None:
        """Sends what the pass has to say to clients: after its commands, so that compute goes on meanwhile."""
        output = self._outbox.take()
        if output is None:
            return
        for finish in output.finishes:
            self._live.pop(int(output.keys[finish.row]), None)
        self._port.send(output)

    # --- state --------------------

    @property
    def is_idle(self) -> bool:
        """No request waits and no slot is in use: no launched step names any page."""
        return not len(self._waiting) and self._slots.num_in_use == 0 and self._flush is None

    def stats(self) -> EngineStats:
        return snapshot(self._counters, self._manager, self._slots, self._waiting)

    def check_idle(self) -> None:
        """Every page is free or cached, nothing is locked, no slot is in use. Checked once each time it gets idle.

        Raises:
            InvariantError: with the figures.
        """
        if self._checked_idle:
            return
        self._checked_idle = True
        stats = self.stats()
        lost = stats.max_total_num_tokens - stats.num_free_tokens - stats.num_cached_tokens
        if lost or stats.num_locked_tokens or stats.num_slots_in_use:
            raise InvariantError(f"idle, but {lost} tokens of KV memory are lost: {stats}")

    # --- handlers --------------------

    def _accept(self, message: TokenizedReq) -> None:
        self._counters.requests_total += 1
        try:
            # Who arrives with a slot free does not wait, though no pass has admitted him yet.
            if len(self._waiting) >= self._waiting.max_queued + self._slots.num_free:
                raise QueueFull(
                    f"{len(self._waiting)} requests wait already, --max-queued-requests is "
                    f"{self._waiting.max_queued}; try again later"
                )
            req = make_req(message, self._limits, self._counters.requests_total)
        except TwinloopError as error:
            self._port.send(Refused(message.key, error.info()))
            return
        if self.is_idle:
            self._last_result = self._clock()  # the time without work is nobody's delay
        self._checked_idle = False
        self._live[req.key] = req
        self._waiting.push(req)
        self._port.send(Accepted(req.key))

    def _abort(self, message: AbortReq) -> None:
        req = self._live.get(message.key)
        if req is not None:
            self._outputs.abort(req, message.keep_tokens)

    def _abort_stalled(self, key: int) -> None:
        req = self._live.get(key)
        if req is not None:
            error = Aborted("the client does not read its output: more than --max-unsent-tokens are waiting")
            self._outputs.abort(req, None, FinishReason("abort", error=error.info()))

    def _begin_flush(self, message: FlushReq) -> None:
        if not self.is_idle:
            busy = Busy(
                f"cannot flush the cache: {self._slots.num_in_use} requests run, {len(self._waiting)} wait; "
                "try again when they have ended"
            )
            self._port.send(FlushReply(message.key, error=busy.info()))
            return
        self._flush = message, self._commands.send(Fence)

    def _end_flush(self, fence: int) -> None:
        if self._flush is None or self._flush[1] != fence:
            return
        message, self._flush = self._flush[0], None
        self._port.send(FlushReply(message.key, self._manager.flush() * self._slots.page_size))

    def _report(self, message: StatsReq) -> None:
        self._port.send(StatsReply(message.key, self.stats()))

    def _beat(self, now: float) -> None:
        if self._slots.num_in_use and now - self._last_heartbeat >= HEARTBEAT_SECONDS:
            self._last_heartbeat = now
            self._port.send(Heartbeat(now - self._last_result))

    def __repr__(self) -> str:
        return f"ControlLoop({self._slots!r}, {self._waiting!r}, {self._manager!r})"
