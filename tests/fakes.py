"""Stand-ins for what is slow or outside: an engine that repeats its prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from control_loop.tree_guide import make_reply
from radix_cache.radix_cache import RadixCache
from srt.core.errors import Busy, QueueFull
from srt.core.messages import (
    AbortReq,
    Accepted,
    ClientMessage,
    ContinueReply,
    ContinueReq,
    EngineMessage,
    EngineReady,
    EngineStats,
    FinishReason,
    FlushReply,
    FlushReq,
    PauseReply,
    PauseReq,
    Refused,
    RowFinish,
    SaveReply,
    SaveReq,
    StatsReply,
    StatsReq,
    TokenizedReq,
    TokenOutput,
)
from srt.core.tree_messages import TreeViewReq


class EchoEngine:
    """Thread: event loop. A link to an engine that answers each prompt with the prompt, over and over.

    It gives one token to each request in a turn of the event loop. While `held` it gives none, so that a test decides
    what happens before the next token. With `fail_with`, every answer ends so. `cache` is a real tree, which only the
    test fills.

    Args:
        on_message: the client's.
        max_running: more requests than this are refused with `QueueFull`.
        eos_id: ends an answer, unless the request ignores it.
    """

    def __init__(
        self, on_message: Callable[[EngineMessage], None], max_running: int = 64, eos_id: int = 2
    ) -> None:
        self.held = False
        self.fail_with: FinishReason | None = None
        self.aborts: list[AbortReq] = []
        self.requests: list[TokenizedReq] = []
        self.cache = RadixCache(page_size=1)
        self._on_message = on_message
        self._max_running = max_running
        self._eos_id = eos_id
        self._running: dict[int, tuple[TokenizedReq, int]] = {}
        self._loop = asyncio.get_running_loop()
        self._ticking = False

    @property
    def num_running(self) -> int:
        return len(self._running)

    def send(self, message: ClientMessage) -> None:
        if isinstance(message, TokenizedReq):
            self._receive(message)
        elif isinstance(message, AbortReq):
            self.aborts.append(message)
            if message.key in self._running:
                del self._running[message.key]
                self._say(_output([message.key], [[]], {0: FinishReason("abort")}))
        elif isinstance(message, FlushReq):
            error = Busy(f"{self.num_running} requests run").info() if self._running else None
            self._say(FlushReply(message.key, 0 if error else 32, error))
        elif isinstance(message, SaveReq):
            self._say(SaveReply(message.key, 64, 4096))
        elif isinstance(message, StatsReq):
            self._say(StatsReply(message.key, EngineStats(num_running_reqs=self.num_running)))
        elif isinstance(message, PauseReq):
            self.held = True
            self._say(PauseReply(message.key, self.num_running, 0))
        elif isinstance(message, ContinueReq):
            self._say(ContinueReply(message.key, self.held))
            self.release()
        elif isinstance(message, TreeViewReq):
            view = self.cache.snapshot(message.max_nodes, message.head_tokens, message.max_depth)
            self._say(make_reply(message.key, view))

    def close(self) -> None:
        self._running.clear()

    def release(self) -> None:
        """Ends `held`."""
        self.held = False
        self._tick_soon()

    def _receive(self, request: TokenizedReq) -> None:
        self.requests.append(request)
        if self.num_running >= self._max_running:
            error = QueueFull(f"{self.num_running} requests wait, the limit is {self._max_running}")
            self._say(Refused(request.key, error.info()))
            return
        self._say(Accepted(request.key))
        self._running[request.key] = (request, 0)
        self._tick_soon()

    def _tick_soon(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._ticking = False
        if self.held or not self._running:
            return
        keys, columns, finishes = [], [], {}
        for row, (key, (request, count)) in enumerate(list(self._running.items())):
            new_ids, reason = self._next(request, count)
            keys.append(key)
            columns.append(new_ids)
            self._running[key] = (request, count + len(new_ids))
            if reason is not None:
                finishes[row] = reason
                del self._running[key]
        self._on_message(_output(keys, columns, finishes))
        self._tick_soon()

    def _next(self, request: TokenizedReq, count: int) -> tuple[list[int], FinishReason | None]:
        if self.fail_with is not None:
            return [], self.fail_with
        if request.params.max_new_tokens == 0:
            return [], FinishReason("length")
        token = int(request.token_ids[count % len(request.token_ids)])
        stops = {*request.params.stop_token_ids} | (set() if request.params.ignore_eos else {self._eos_id})
        if token in stops:
            return [token], FinishReason("stop", token)
        return [token], FinishReason("length") if count + 1 == request.params.max_new_tokens else None

    def _say(self, message: EngineMessage) -> None:
        self._loop.call_soon(self._on_message, message)


ECHO_READY = EngineReady("echo", "float32", "cpu", "echo", False, 49152, 256, 512, 16, 8, 0.5)


def _output(keys: list[int], columns: list[list[int]], finishes: dict[int, FinishReason]) -> TokenOutput:
    return TokenOutput(
        np.array(keys, np.int64),
        np.cumsum([0, *map(len, columns)]).astype(np.int32),
        np.array([token for column in columns for token in column], np.int32),
        np.zeros(len(keys), np.int32),
        tuple(RowFinish(row, reason) for row, reason in finishes.items()),
    )
