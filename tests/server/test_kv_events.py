"""KV events over real sockets: numbers, gaps, replays, and subscribers that do not read."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq
import zmq.asyncio

from srt.core.config import Config
from srt.core.errors import ConfigError
from srt.core.tree_messages import TreeChange, TreeChanges
from srt.server.kv_events import HIGH_WATER, KEPT_BATCHES, KEPT_BYTES, KvEventPublisher
from srt.server.kv_replay import KvReplay, open_events
from srt.server.placement import Placement
from tests.replica import Replica

PAGE = 4
NOTHING = np.empty(0, np.int32)
SALTED = Placement.of("key", "salt", None).namespace


def stored(pages: list[int], parent: int = -1, namespace: str | None = None) -> TreeChange:
    """Pages whose tokens are made of their numbers."""
    token_ids = np.repeat(np.array(pages, np.int32), PAGE) * 10 + np.tile(
        np.arange(PAGE, dtype=np.int32), len(pages)
    )
    return TreeChange("stored", np.array(pages, np.int32), token_ids.astype(np.int32), parent, namespace)


def removed(*pages: int) -> TreeChange:
    return TreeChange("removed", np.array(pages, np.int32), NOTHING)


CLEARED = TreeChange("cleared", NOTHING, NOTHING)


class BlockStored(msgspec.Struct, tag=True):
    """These three as subscribers define them: every field is required, in this type."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(msgspec.Struct, tag=True):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Desk:
    """Thread: event loop. A publisher with its replays, and what a router has."""

    def __init__(self, publisher: KvEventPublisher, replay: KvReplay) -> None:
        self.publisher = publisher
        self.replay_address = replay.address
        self.context = zmq.asyncio.Context()
        self.replica = Replica(PAGE)

    def say(self, *changes: TreeChange) -> None:
        self.publisher.apply(TreeChanges(changes))

    async def subscriber(self, high_water: int = 1000, topic: bytes = b"") -> zmq.asyncio.Socket:
        """A SUB socket that is known to be connected: it has got a batch."""
        socket = self.context.socket(zmq.SUB)
        socket.set(zmq.RCVHWM, high_water)
        socket.subscribe(topic)
        socket.connect(self.publisher.address)
        while not await socket.poll(10):
            self.publisher.clear()
        return socket

    async def take(self, socket: zmq.asyncio.Socket) -> tuple[int, bytes]:
        """The next batch of a subscriber."""
        topic, number, batch = await socket.recv_multipart()
        assert topic == b"kv"
        return struct.unpack(">Q", number)[0], batch

    async def ask(self, start: int, envelope: tuple[bytes, ...] = (b"",)) -> list[tuple[int, bytes]]:
        """All batches that a replay from `start` on gives."""
        socket = self.context.socket(zmq.DEALER)
        socket.connect(self.replay_address)
        await socket.send_multipart([*envelope, start.to_bytes(8, "big")])
        batches: list[tuple[int, bytes]] = []
        while True:
            *front, number, batch = await socket.recv_multipart()
            assert tuple(front) == envelope
            if struct.unpack(">q", number)[0] == -1:
                assert batch == b""
                socket.close(0)
                return batches
            batches.append((struct.unpack(">Q", number)[0], batch))


@asynccontextmanager
async def events_desk(directory: Path) -> AsyncIterator[Desk]:
    config = Config.from_flat(
        page_size=PAGE,
        kv_events=f"ipc://{directory}/events",
        kv_events_replay=f"ipc://{directory}/replay",
        kv_events_topic="kv",
    )
    publisher, replay = open_events(config)
    assert publisher is not None and replay is not None
    desk = Desk(publisher, replay)
    try:
        yield desk
    finally:
        desk.context.destroy(linger=0)
        await replay.close()
        publisher.close()


def with_events(directory: Path, scenario: Callable[[Desk], Awaitable[None]]) -> None:
    async def main() -> None:
        async with events_desk(directory) as desk:
            await scenario(desk)

    asyncio.run(main())


def test_a_subscriber_follows_the_tree(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> None:
        socket = await desk.subscriber(topic=b"k")
        desk.say(stored([5, 6, 7]), stored([9], parent=6), stored([1], namespace=SALTED))
        desk.say(removed(7))
        last = desk.publisher.next_number - 1
        number = -1
        while number < last:
            number, batch = await desk.take(socket)
            assert desk.replica.read(number, batch)
        five, six, nine, one = (tuple(range(10 * page, 10 * page + PAGE)) for page in (5, 6, 9, 1))
        assert desk.replica.prefixes() == {
            (None, None, five),
            (None, None, five + six),
            (None, None, five + six + nine),
            ("key", "salt", one),
        }
        assert desk.publisher.describe(None)["num_blocks"] == 4
        desk.say(CLEARED)
        assert desk.replica.read(*await desk.take(socket)) and not desk.replica.blocks
        assert await desk.ask(last + 2) == []

    with_events(tmp_path, scenario)


def test_a_reader_with_strict_types_understands(tmp_path: Path) -> None:
    """The fields that subscribers require, in the types in which they require them."""

    async def scenario(desk: Desk) -> None:
        desk.say(stored([5, 6], namespace=SALTED), removed(6), CLEARED)
        batches = [msgspec.msgpack.decode(batch, type=Batch) for _, batch in await desk.ask(0)]
        events = [event for batch in batches for event in batch.events]
        assert [type(event).__name__ for event in events] == [
            *("AllBlocksCleared", "BlockStored", "BlockRemoved", "AllBlocksCleared"),
        ]
        assert isinstance(events[1], BlockStored) and isinstance(events[2], BlockRemoved)
        assert events[1].token_ids == [50, 51, 52, 53, 60, 61, 62, 63]
        assert events[2].block_hashes == events[1].block_hashes[1:]

    with_events(tmp_path, scenario)


def test_a_subscriber_that_does_not_read_sees_a_gap_and_gets_the_rest_by_replay(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> None:
        socket = await desk.subscriber(high_water=1)
        page, tick = 0, stored([1])
        while page < 3 * HIGH_WATER:  # more than both ends hold
            page += 1
            desk.say(stored([page], parent=page - 1 if page > 1 else -1))
        while desk.replica.next_number is None or desk.replica.next_number < desk.publisher.next_number:
            if not await socket.poll(10):
                desk.say(CLEARED, tick)  # what follows a gap shows it
            number, batch = await desk.take(socket)
            if not desk.replica.read(number, batch):
                assert desk.replica.next_number is not None and number > desk.replica.next_number
                break
        else:
            raise AssertionError("nothing was dropped")
        missing = await desk.ask(desk.replica.next_number)
        assert len(missing) == desk.publisher.next_number - desk.replica.next_number
        assert all(desk.replica.read(*batch) for batch in missing)
        assert len(desk.replica.prefixes()) == len(desk.publisher.blocks())

    with_events(tmp_path, scenario)


def test_who_comes_late_gets_the_whole_tree(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> None:
        desk.say(stored([1, 2, 3, 4]), stored([5, 6], parent=2), stored([7], namespace=SALTED), removed(4))
        for _ in range(KEPT_BATCHES // 2):
            desk.say(stored([9], parent=6))
            desk.say(removed(9))
        desk.say(stored([8, 9], parent=3))
        (whole,) = await desk.ask(0)
        assert whole[0] == desk.publisher.next_number - 1
        desk.replica.read_whole(*whole)
        assert desk.replica.num_events == 5, "what follows one another is one event"
        assert len(desk.replica.prefixes()) == len(desk.publisher.blocks()) == 8
        # From there the numbers go on without a gap.
        desk.say(removed(9))
        (after,) = await desk.ask(desk.replica.next_number or 0)
        assert desk.replica.read(*after) and len(desk.replica.blocks) == 7
        # A number from before a restart of this server is not known here.
        (again,) = await desk.ask(10**9)
        desk.replica.read_whole(*again)
        assert len(desk.replica.blocks) == 7

    with_events(tmp_path, scenario)


def test_a_replay_answers_in_the_envelope_of_its_request(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> None:
        for envelope in ((), (b"",), (b"mine", b"")):
            ((number, _),) = await desk.ask(0, envelope)
            assert number == 0
        stray = desk.context.socket(zmq.DEALER)
        stray.connect(desk.replay_address)
        await stray.send_multipart([b"", b"\1"])
        stray.close(1000)
        lost = desk.context.socket(zmq.DEALER)
        lost.connect(desk.replay_address)
        await lost.send_multipart([b"", bytes(8)])
        lost.close(1000)
        assert len(await desk.ask(0)) == 1, "bad and lost requests do not stop those of others"

    with_events(tmp_path, scenario)


def test_what_is_kept_is_bounded_in_bytes_too(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> None:
        big = list(range(20_000))
        for _ in range(60):
            desk.say(stored(big), removed(*big))
        kept = [len(batch) for _, batch in desk.publisher._kept]
        assert sum(kept) == desk.publisher._kept_bytes <= KEPT_BYTES
        assert len(kept) < 60
        assert len(await desk.ask(1)) == 1

    with_events(tmp_path, scenario)


def test_a_change_that_does_not_fit_makes_the_copy_empty_instead_of_wrong(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> None:
        def read() -> int:
            batches = desk.publisher.replay(desk.replica.next_number or 0)
            assert batches is not None and all(desk.replica.read(*batch) for batch in batches)
            return len(desk.replica.blocks)

        desk.say(stored([1, 2]))
        assert read() == 2
        desk.say(stored([3], parent=2), stored([4], parent=17), stored([5]))
        assert read() == 0
        desk.say(stored([6]), removed(1))
        assert read() == 0
        desk.say(CLEARED, stored([6]))
        assert read() == 1
        desk.publisher.clear()
        assert read() == 0 and desk.publisher.blocks() == []

    with_events(tmp_path, scenario)


def test_an_address_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        good = f"ipc://{tmp_path}/events"
        for field, options in (
            ("kv-events", {"kv_events": "tcp://nowhere.invalid:1"}),
            ("kv-events", {"kv_events": f"ipc://{tmp_path}/no/such/directory"}),
            ("kv-events-replay", {"kv_events": good, "kv_events_replay": "tcp://1.2.3.4:1"}),
        ):
            with pytest.raises(ConfigError, match=f"--{field} {list(options.values())[-1]}: "):
                open_events(Config.from_flat(**options))
        # What was opened before the failure is free again.
        publisher, replay = open_events(
            Config.from_flat(kv_events=good, kv_events_replay="tcp://127.0.0.1:*")
        )
        assert publisher is not None and replay is not None
        assert publisher.address == good and replay.address.startswith("tcp://127.0.0.1:")
        await replay.close()
        publisher.close()

    asyncio.run(scenario())
    assert open_events(Config()) == (None, None)
