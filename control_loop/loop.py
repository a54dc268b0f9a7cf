"""The control loop: requests, tree, memory and policy. One `step` is one pass over its verbs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from control_loop.cache_restore import CopyIn, restore
from control_loop.cache_saver import CacheSaver
from control_loop.collector import Collector
from control_loop.counters import snapshot
from control_loop.flush import CacheFlush
from control_loop.intake import Limits, make_req
from control_loop.parts import LoopLinks, LoopParts
from control_loop.pause import Pause
from control_loop.req import Req
from control_loop.scheduler import Scheduler
from control_loop.timeouts import Timeouts
from control_loop.tree_feed import TreeFeed
from control_loop.tree_guide import TreeGuide
from radix_cache.host_index import HostIndex
from radix_cache.journal import JournaledCache
from srt.core.config import Config
from srt.core.errors import Aborted, QueueFull, TwinloopError
from srt.core.messages import (
    AbortReq,
    Accepted,
    ContinueReq,
    EngineStats,
    FinishReason,
    FlushReq,
    Heartbeat,
    PauseReq,
    Refused,
    SaveReq,
    StatsReply,
    StatsReq,
    TokenizedReq,
)
from srt.core.port import ControlPort
from srt.core.save_messages import SavedRun, SaveLinks
from srt.core.step_messages import Shutdown
from srt.core.tree_messages import TreeViewReq

HEARTBEAT_SECONDS = 1.0


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
        saving: SaveLinks | None = None,
        host_index: HostIndex | None = None,
    ) -> None:
        self._limits = limits
        self._port = port
        self._links = links
        self._clock = clock
        self._collector = Collector()
        parts = LoopParts.build(config, limits, num_pages, port, links, clock, host_index)
        self._slots, self._waiting, self._manager = parts.slots, parts.waiting, parts.manager
        self._commands, self._outputs, self._counters = parts.commands, parts.outputs, parts.counters
        self._outbox = parts.outbox
        self._scheduler = Scheduler(config.schedule, parts)
        self._pause = Pause(parts)
        self._flush = CacheFlush(parts, lambda: self._pause.mode is not None)
        self._saver = CacheSaver(parts, saving, lambda: not self._flush.is_draining)
        self._timeouts = Timeouts(config.schedule, parts)
        self._feed = None
        if config.events.kv_events is not None:
            assert isinstance(parts.manager.cache, JournaledCache)
            self._feed = TreeFeed(parts.manager.cache, port)
        self._live: dict[int, Req] = {}
        self._handlers: dict[type, Callable[[Any], None]] = {
            TokenizedReq: self._accept,
            AbortReq: self._abort,
            StatsReq: self._report,
            FlushReq: self._flush.ask,
            PauseReq: self._pause.ask,
            ContinueReq: self._pause.resume,
            TreeViewReq: TreeGuide(parts).show,
            SaveReq: self._saver.ask,
        }
        self._by_priority = config.schedule.schedule_policy == "priority"
        self._checked_idle = True
        self._last_result = self._last_heartbeat = clock()
        self.stopped = False

    def step(self) -> bool:
        started = self._clock()
        received = self.receive()
        processed = self.process_results()
        sent = self.advance_operations()
        sent |= self.schedule_prefill()
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
        if not self._port.pending and not len(self._links.results) and not self._saver.has_word:
            self._port.sleep(doorbell, self._sleep_seconds())
        doorbell.disarm()

    def restore(self, runs: Iterable[SavedRun], copy_in: CopyIn) -> int:
        """Before the first step: brings a saved cache back (see `control_loop.cache_restore`); how many tokens."""
        return restore(self._manager, runs, copy_in)

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
            for seq in result.copied:
                self._saver.on_copied(seq)
            if result.fenced is not None:
                self._flush.on_fence(result.fenced)
                self._pause.on_fence(result.fenced)
        if results:
            self._last_result = self._clock()
        return bool(results)

    def advance_operations(self) -> bool:
        """Goes on with what operators have asked for and could not be done at once; ends what took too long."""
        late = self._timeouts.advance(self._live.values())
        flushed, paused, saved = self._flush.advance(), self._pause.advance(), self._saver.advance()
        return late or flushed or paused or saved

    def schedule_prefill(self) -> bool:
        if self._flush.is_draining or self._pause.mode is not None:
            return self._outputs.send_drops()
        sent = self._scheduler.schedule_prefill()
        return self._outputs.send_drops() or sent

    def grant_pages(self) -> bool:
        if self._pause.mode is not None:
            return False
        sent = self._scheduler.grant_pages()
        return self._outputs.send_drops() or sent

    def deliver(self) -> None:
        """Sends what the pass has to say to clients: after its commands, so that compute goes on meanwhile."""
        if self._feed is not None:
            self._feed.deliver()
        output = self._outbox.take()
        if output is None:
            return
        for finish in output.finishes:
            self._live.pop(int(output.keys[finish.row]), None)
        self._port.send(output)

    # --- state --------------------

    @property
    def is_idle(self) -> bool:
        """No request waits, no slot is in use and nothing is owed: no launched step names any page."""
        owed = self._flush.is_owed or self._pause.is_owed or self._saver.is_owed
        return not (owed or len(self._waiting) or self._slots.num_in_use)

    def stats(self) -> EngineStats:
        is_paused = self._pause.mode is not None
        return snapshot(self._counters, self._manager, self._slots, self._waiting, is_paused)

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
            req = make_req(message, self._limits, self._counters.requests_total, self._clock())
            self._make_room_for(req)
        except TwinloopError as error:
            self._port.send(Refused(message.key, error.info()))
            return
        if self.is_idle:
            self._last_result = self._clock()  # the time without work is nobody's delay
        self._checked_idle = False
        self._live[req.key] = req
        self._waiting.push(req)
        self._port.send(Accepted(req.key))

    def _make_room_for(self, req: Req) -> None:
        """Raises:
        QueueFull: the queue is, and nobody in it is less important.
        """
        # Who arrives with a slot free does not wait, though no pass has admitted him yet.
        if len(self._waiting) < self._waiting.max_queued + self._slots.num_free:
            return
        full = f"{len(self._waiting)} requests wait, --max-queued-requests is {self._waiting.max_queued}"
        weakest = self._waiting.weakest() if self._by_priority else None
        if weakest is None or weakest.priority >= req.priority:
            raise QueueFull(f"{full}; try again later")
        error = QueueFull(f"{full}: a request of higher priority took this one's place; try again later")
        self._outputs.abort(weakest, None, FinishReason("error", error=error.info()))

    def _abort(self, message: AbortReq) -> None:
        req = self._live.get(message.key)
        if req is not None:
            self._outputs.abort(req, message.keep_tokens)

    def _abort_stalled(self, key: int) -> None:
        req = self._live.get(key)
        if req is not None:
            error = Aborted("the client does not read its output: more than --max-unsent-tokens are waiting")
            self._outputs.abort(req, None, FinishReason("abort", error=error.info()))

    def _report(self, message: StatsReq) -> None:
        self._port.send(StatsReply(message.key, self.stats()))

    def _sleep_seconds(self) -> float | None:
        """How long nothing but a message or a result can bring work; None: for ever."""
        deadline = self._flush.deadline
        if deadline is not None:
            return min(HEARTBEAT_SECONDS, max(0.0, deadline - self._clock()))
        return None if self.is_idle else HEARTBEAT_SECONDS

    def _beat(self, now: float) -> None:
        in_use = self._slots.num_in_use
        if self._pause.holds_rows or (self._saver.awaits_disk and not in_use):
            self._last_result = now
        if (in_use or self._saver.is_owed) and now - self._last_heartbeat >= HEARTBEAT_SECONDS:
            self._last_heartbeat = now
            self._port.send(Heartbeat(now - self._last_result))

    def __repr__(self) -> str:
        return f"ControlLoop({self._slots!r}, {self._waiting!r}, {self._manager!r})"
