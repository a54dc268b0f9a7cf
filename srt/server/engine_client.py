"""The client of the engine: the books of what was asked, and whom to tell when it dies."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, get_args

from srt.core.errors import Aborted, ErrorInfo, InvalidRequest, TwinloopError, Unavailable
from srt.core.messages import (
    AbortReq,
    Accepted,
    ClientMessage,
    EngineMessage,
    EngineReady,
    FinishKind,
    FinishReason,
    Int32Array,
    Question,
    Refused,
    Reply,
    TokenizedReq,
    TokenOutput,
)
from srt.core.sampling_params import SamplingParams
from srt.core.tree_messages import TreeChanges
from srt.server.ipc import Link
from srt.server.kv_events import KvEventPublisher
from srt.server.metrics import ServerMetrics
from srt.server.placement import COMMON, Placement
from srt.server.streams import Replies, Stream, StreamGroup

EngineState = Literal["starting", "ready", "draining", "dead"]


class EngineClient:
    """Thread: event loop. Keeps the books of all live requests of one server, across restarts of the engine.

    A request is known by its `key`, a number that is never used twice; messages with a key that is no longer
    known speak of a request that has ended here, and are ignored. A `rid` is the user's name for one or
    several requests of one submit; live requests of two submits never share one.

    Attributes:
        ready: what the last engine announced.
    """

    def __init__(
        self, metrics: ServerMetrics, max_unsent_tokens: int, events: KvEventPublisher | None = None
    ) -> None:
        self._metrics = metrics
        self._events = events
        self._max_unsent_tokens = max_unsent_tokens
        self._keys = itertools.count(1)
        self._link: Link | None = None
        self._death: TwinloopError | None = None
        self._draining = False
        self._streams: dict[int, Stream] = {}
        self._by_rid: dict[str, set[Stream]] = {}
        self._replies = Replies()
        self._idle = asyncio.Event()
        self._idle.set()
        self._connected = asyncio.Event()
        self._handlers: dict[type[EngineMessage], Callable[[Any], None]] = {
            Accepted: self._on_accepted,
            Refused: self._on_refused,
            TokenOutput: self._on_output,
            TreeChanges: self._on_tree_changes,
            **dict.fromkeys(get_args(Reply), self._on_reply),
        }
        self.ready: EngineReady | None = None

    @property
    def state(self) -> EngineState:
        if self._draining:
            return "draining"
        if self._link is not None:
            return "ready"
        return "starting" if self._death is None else "dead"

    @property
    def is_owed(self) -> bool:
        """The engine has been asked for something that has not come."""
        return bool(self._streams or self._replies)

    @property
    def num_live(self) -> int:
        return len(self._streams)

    def connect(self, link: Link, ready: EngineReady) -> None:
        """An engine can serve."""
        self._link = link
        self._death = None
        self.ready = ready
        self._connected.set()

    def disconnect(self, error: TwinloopError) -> None:
        """The engine is gone: everything that waits for it ends with `error`, at once."""
        self._link = None
        self._death = error
        reason = FinishReason("error", error=error.info())
        for stream in list(self._streams.values()):
            if stream.accepted:
                self._end(stream, reason, 0)
            else:
                self._refuse(stream, error.info())
        self._replies.fail(error)
        if self._events is not None:
            self._events.clear()

    async def wait_ready(self) -> EngineReady:
        """Waits until an engine can serve for the first time; what it announced."""
        await self._connected.wait()
        assert self.ready is not None
        return self.ready

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self._draining = True

    async def drained(self) -> None:
        """Waits until no request is live."""
        await self._idle.wait()

    def check_available(self) -> None:
        """Raises:
        Unavailable: the engine takes no request now; says why.
        """
        if self._draining:
            raise Unavailable("the server is shutting down and takes no new requests")
        if self._link is None:
            if self._death is not None:
                raise Unavailable(f"the engine is restarting, try again soon ({self._death.message})")
            raise Unavailable("the model is still loading, try again soon")

    def submit(
        self, requests: Sequence[tuple[str, Int32Array, SamplingParams]], placement: Placement = COMMON
    ) -> StreamGroup:
        """Sends requests (rid, prompt ids, parameters) to the engine.

        Raises:
            InvalidRequest: a request with one of these rids is running.
            Unavailable: there is no engine, or the server is draining.
        """
        self.check_available()
        assert self._link is not None
        for rid, _, _ in requests:
            if rid in self._by_rid:
                raise InvalidRequest(
                    f"rid {rid!r} is the id of a request that is still running; choose another or wait",
                    field="rid",
                )
        group = StreamGroup()
        for rid, token_ids, params in requests:
            stream = Stream(next(self._keys), rid, group)
            group.streams.append(stream)
            self._streams[stream.key] = stream
            self._by_rid.setdefault(rid, set()).add(stream)
            where = placement.namespace, placement.priority
            self._link.send(TokenizedReq(stream.key, rid, token_ids, params, *where))
        self._update_idle()
        return group

    def release(self, group: StreamGroup) -> None:
        """Nobody reads the group any more: what still runs of it is aborted, and its rids are free."""
        for stream in group.streams:
            self._cut(stream, "abort")

    def stop(self, stream: Stream, keep_tokens: int) -> None:
        """The text of a stream ended at a stop string: `keep_tokens` output tokens belong to the answer."""
        self._cut(stream, "stop", keep_tokens)

    def _cut(self, stream: Stream, kind: FinishKind, keep_tokens: int | None = None) -> None:
        if stream.key in self._streams:
            self._send(AbortReq(stream.key, keep_tokens))
            self._forget(stream, kind)

    def abort_rid(self, rid: str) -> int:
        """Aborts the requests of exactly this rid: they end with finish "abort". Returns how many.

        The id is free at once: a request is known to the engine by its key, so a new one gets nothing of theirs.
        """
        return self._abort(self._by_rid.pop(rid, ()))

    def abort_all(self) -> int:
        """Aborts every live request; their streams end with finish "abort". Returns how many."""
        self._by_rid.clear()
        return self._abort(self._streams.values())

    def _abort(self, streams: Collection[Stream]) -> int:
        for stream in streams:
            self._send(AbortReq(stream.key))
        return len(streams)

    async def ask(self, question: Callable[[int], Question]) -> Any:
        """Sends ``question(key)`` and waits for the reply that names the key.

        Raises:
            Unavailable: there is no engine.
            EngineFailure: it died before it answered.
        """
        if self._link is None:
            raise Unavailable("there is no engine to ask: it is starting, or it died and is being restarted")
        key = next(self._keys)
        reply = self._replies.expect(key)
        self._link.send(question(key))
        try:
            return await reply
        finally:
            self._replies.forget(key)

    def on_message(self, message: EngineMessage) -> None:
        """Takes one message of the engine."""
        self._handlers[type(message)](message)

    def _on_accepted(self, message: Accepted) -> None:
        stream = self._streams.get(message.key)
        if stream is not None:
            stream.accept()

    def _on_refused(self, message: Refused) -> None:
        stream = self._streams.get(message.key)
        if stream is not None:
            self._refuse(stream, message.error)

    def _on_output(self, message: TokenOutput) -> None:
        now = time.monotonic()
        finishes = {finish.row: finish for finish in message.finishes}
        offsets, token_ids = message.offsets.tolist(), message.token_ids.tolist()
        cached_tokens = message.cached_tokens.tolist()
        self._metrics.generated(len(token_ids))
        for row, key in enumerate(message.keys.tolist()):
            stream = self._streams.get(key)
            if stream is None:
                continue
            new_ids = token_ids[offsets[row] : offsets[row + 1]]
            if new_ids:
                self._time_tokens(stream, now, len(new_ids))
            stream.push(new_ids, cached_tokens[row])
            finish = finishes.get(row)
            if finish is not None:
                self._end(stream, finish.reason, finish.num_retractions)
            elif stream.num_unread > self._max_unsent_tokens:
                self._end_stalled(stream)

    def _on_tree_changes(self, message: TreeChanges) -> None:
        if self._events is not None:
            self._events.apply(message)

    def _on_reply(self, message: Reply) -> None:
        self._replies.answer(message.key, message)

    def _time_tokens(self, stream: Stream, now: float, count: int) -> None:
        if stream.last_token_at is None:
            self._metrics.first_token(now - stream.submitted_at)
        else:
            self._metrics.inter_token((now - stream.last_token_at) / count)
        stream.last_token_at = now

    def _end_stalled(self, stream: Stream) -> None:
        error = Aborted(
            f"the client left {stream.num_unread} tokens unread, the limit is --max-unsent-tokens "
            f"{self._max_unsent_tokens}"
        )
        self._send(AbortReq(stream.key))
        self._end(stream, FinishReason("abort", error=error.info()), 0)

    def _end(self, stream: Stream, reason: FinishReason, num_retractions: int) -> None:
        stream.finish(reason, num_retractions)
        self._forget(stream, reason.kind)

    def _refuse(self, stream: Stream, error: ErrorInfo) -> None:
        stream.refuse(error)
        self._metrics.refused(error.label)
        self._forget(stream, None)

    def _forget(self, stream: Stream, kind: FinishKind | None) -> None:
        del self._streams[stream.key]
        namesakes = self._by_rid.get(stream.rid, set())
        namesakes.discard(stream)
        if not namesakes:
            self._by_rid.pop(stream.rid, None)
        if kind is not None:
            self._metrics.finished(kind, time.monotonic() - stream.submitted_at)
        self._update_idle()

    def _send(self, message: ClientMessage) -> None:
        if self._link is not None:
            self._link.send(message)

    def _update_idle(self) -> None:
        (self._idle.clear if self._streams else self._idle.set)()

    def __repr__(self) -> str:
        return f"EngineClient({self.state}, {len(self._streams)} live requests)"
