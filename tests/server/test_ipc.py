from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from srt.core.errors import ErrorInfo
from srt.core.messages import (
    AbortReq,
    Accepted,
    ClientMessage,
    ContinueReply,
    ContinueReq,
    EngineDied,
    EngineMessage,
    EngineReady,
    EngineStats,
    FinishReason,
    FlushReply,
    FlushReq,
    Heartbeat,
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
from srt.core.queues import Doorbell
from srt.core.sampling_params import SamplingParams
from srt.core.tree_messages import TreeChange, TreeChanges, TreeViewReply, TreeViewReq
from srt.server.ipc import ENGINE_HIGH_WATER, EngineSocket, Message, ZmqLink, ZmqPort, decode, encode

ERROR = ErrorInfo("queue_full", 503, "the queue has 4 of 4", retryable=True, field=None)

EXAMPLES: list[Message] = [
    TokenizedReq(
        7,
        "a-\N{SNOWMAN}",
        np.array([0, 5, 2**31 - 1], np.int32),
        SamplingParams(seed=2**63 - 1, stop=("a", "\x00b"), stop_token_ids=(1, 2), temperature=0.1),
        "tenant",
        -5,
    ),
    AbortReq(7, 3),
    AbortReq(7),
    FlushReq(8, 2.5),
    StatsReq(9),
    PauseReq(10, "in_place"),
    ContinueReq(11),
    TreeViewReq(12, 100, None, 8),
    SaveReq(12),
    EngineReady("m", "float32", "cpu", "eager", True, 49152, 8192, 1024, 16, 64, 1.5),
    Accepted(7),
    Refused(7, ERROR),
    TokenOutput(
        np.array([7, 2**40], np.int64),
        np.array([0, 1, 4], np.int32),
        np.array([5, 6, 7, 8], np.int32),
        np.array([0, 992], np.int32),
        (
            RowFinish(0, FinishReason("stop", 2), 1),
            RowFinish(1, FinishReason("abort", "stop string", ERROR)),
        ),
    ),
    TokenOutput(np.empty(0, np.int64), np.zeros(1, np.int32), np.empty(0, np.int32), np.empty(0, np.int32)),
    TreeChanges(
        (
            TreeChange("stored", np.array([3, 4], np.int32), np.array([7, 8, 9, 10], np.int32), 2, "tenant"),
            TreeChange("removed", np.array([4], np.int32), np.empty(0, np.int32)),
            TreeChange("cleared", np.empty(0, np.int32), np.empty(0, np.int32)),
        )
    ),
    FlushReply(8, 100),
    FlushReply(8, error=ERROR),
    StatsReply(9, EngineStats(num_running_reqs=3, device_busy_seconds_total=0.25)),
    PauseReply(10, 3, 4),
    ContinueReply(11, True),
    TreeViewReply(
        key=12,
        page_size=16,
        num_nodes=5,
        num_pages=2**31,
        parents=np.array([-1, 0], np.int32),
        depths=np.array([1, 2], np.int32),
        num_tokens=np.array([16, 32], np.int32),
        lock_refs=np.array([1, 0], np.int32),
        hits=np.array([2**40, 0], np.int64),
        ages=np.array([0, 2**40], np.int64),
        pending=np.array([False, True], np.bool_),
        num_children=np.array([1, 3], np.int32),
        namespace_ids=np.array([0, 1], np.int32),
        namespaces=(None, "tenant"),
        head_offsets=np.array([0, 1, 1], np.int32),
        head_ids=np.array([7], np.int32),
    ),
    SaveReply(12, 96, 4096),
    SaveReply(12, error=ERROR),
    Heartbeat(0.5),
    EngineDied(ERROR),
]


def same(left: Any, right: Any) -> bool:
    """Equal in type and value, arrays in dtype too."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in fields(left))
    if isinstance(left, tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_message_survives_the_wire(message: Message) -> None:
    assert same(decode(encode(message)), message)


def test_every_message_type_has_an_example() -> None:
    assert {type(message) for message in EXAMPLES} == {*get_args(ClientMessage), *get_args(EngineMessage)}


def test_foreign_bytes_are_a_clear_error() -> None:
    with pytest.raises(msgspec.ValidationError, match="'Gossip'"):
        decode(msgspec.msgpack.encode(("Gossip", {})))
    with pytest.raises(msgspec.DecodeError):
        decode(encode(Accepted(1))[:-1])


def tokens(key: int, *ids: int) -> TokenOutput:
    return TokenOutput(
        np.array([key], np.int64),
        np.array([0, len(ids)], np.int32),
        np.array(ids, np.int32),
        np.zeros(1, np.int32),
    )


class Ends:
    """Both ends of one connection, in one thread: the client's end only reads when the event loop runs."""

    def __init__(self, max_unsent_tokens: int) -> None:
        self.received: list[EngineMessage] = []
        self.arrived = asyncio.Event()
        self.link = ZmqLink(self._on_message)
        self.socket = EngineSocket(self.link.address)
        self.bell = Doorbell()
        self.port = ZmqPort(self.socket, self.bell, max_unsent_tokens)

    def _on_message(self, message: EngineMessage) -> None:
        self.received.append(message)
        self.arrived.set()

    async def client_gets(self, count: int) -> None:
        while len(self.received) < count:
            await self.arrived.wait()
            self.arrived.clear()

    def engine_gets(self, count: int) -> list[ClientMessage]:
        messages: list[ClientMessage] = []
        while len(messages) < count:
            self.bell.arm()
            if not self.port.pending:
                self.port.sleep(self.bell, None)
            self.bell.disarm()
            messages += self.port.receive()
        return messages

    async def hello(self) -> None:
        """The engine's first word: before it, the client has nobody to talk to."""
        self.port.send(Heartbeat(0))
        await self.client_gets(1)
        self.received.clear()

    def close(self) -> None:
        self.link.close()
        self.socket.close()
        self.bell.close()


def connected(scenario: Callable[[Ends], Awaitable[None]]) -> None:
    """Runs a scenario on both ends of a connection that holds 100 unsent tokens for a request."""

    async def main() -> None:
        ends = Ends(100)
        try:
            await ends.hello()
            await scenario(ends)
        finally:
            ends.close()

    asyncio.run(main())


def test_messages_arrive_in_order_both_ways() -> None:
    async def scenario(ends: Ends) -> None:
        for key in range(1000):
            ends.link.send(AbortReq(key))
        assert ends.engine_gets(1000) == [AbortReq(key) for key in range(1000)]
        for key in range(1000):
            ends.port.send(Accepted(key))
            if key % 100 == 0:  # the engine sleeps now and then, which also sends what waits
                ends.port.sleep(ends.bell, 0)
                await asyncio.sleep(0)
        waiting = asyncio.create_task(ends.client_gets(1000))
        while not waiting.done():
            ends.port.sleep(ends.bell, 0)
            await asyncio.sleep(0)
        assert ends.received == [Accepted(key) for key in range(1000)]

    connected(scenario)


def test_no_wake_up_is_lost_when_sends_and_messages_cross() -> None:
    """zmq's descriptor is edge-triggered: a message that arrives during a send must still be read."""

    async def scenario(ends: Ends) -> None:
        for turn in range(500):
            ends.port.send(Accepted(2 * turn))
            ends.link.send(StatsReq(turn))
            ends.port.send(Accepted(2 * turn + 1))
            await ends.client_gets(2 * turn + 2)
            assert ends.engine_gets(1) == [StatsReq(turn)]

    connected(scenario)


def test_a_client_that_does_not_read_never_blocks_the_engine() -> None:
    async def scenario(ends: Ends) -> None:
        # The event loop does not run here: nobody reads.
        sent = 0
        stalled: list[int] = []
        while not stalled:
            ends.port.send(tokens(5, *range(30)))
            sent += 1
            stalled = ends.port.take_stalled()
        assert stalled == [5]
        assert sent > ENGINE_HIGH_WATER
        ends.port.send(tokens(5, 1))
        ends.port.send(tokens(6, *range(100)))
        assert ends.port.take_stalled() == [], "told once, and a request at its limit is not over it"
        ends.port.send(tokens(6, 1))
        assert ends.port.take_stalled() == [6]
        # When the client reads again nothing is missing.
        waiting = asyncio.create_task(ends.client_gets(sent + 3))
        while not waiting.done():
            ends.port.sleep(ends.bell, 0)
            await asyncio.sleep(0)
        outputs = [message for message in ends.received if isinstance(message, TokenOutput)]
        assert [output.keys[0] for output in outputs] == [5] * (sent + 1) + [6, 6]
        # The account is settled: the same number of tokens may wait again.
        ends.port.send(tokens(5, 1))
        assert ends.port.take_stalled() == []

    connected(scenario)


def test_sleep_ends_with_a_message_the_bell_or_the_time() -> None:
    async def scenario(ends: Ends) -> None:
        ends.port.sleep(ends.bell, 0.001)
        ends.link.send(FlushReq(1))
        ends.port.sleep(ends.bell, None)
        assert ends.port.receive() == [FlushReq(1)]
        ends.bell.arm()
        ends.bell.ring()
        ends.port.sleep(ends.bell, None)
        ends.bell.disarm()
        assert not ends.port.pending
        ends.bell.arm()
        ends.port.close()
        ends.port.sleep(ends.bell, None)
        assert ends.port.closed
        assert ends.port.pending

    connected(scenario)


def test_the_socket_has_no_file_once_the_engine_is_there() -> None:
    async def scenario(ends: Ends) -> None:
        assert not Path(ends.link.address.removeprefix("ipc://")).parent.exists()

    connected(scenario)


def test_a_message_to_nobody_is_dropped() -> None:
    async def scenario(ends: Ends) -> None:
        ends.socket.close()
        ends.link.send(AbortReq(1))
        ends.link.close()
        ends.link.send(AbortReq(1))

    connected(scenario)
