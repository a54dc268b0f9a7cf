"""Answers subscribers of KV events that have missed batches, or come late."""

from __future__ import annotations

import asyncio
import logging
import time

import zmq
import zmq.asyncio

from srt.core.config import Config
from srt.server.kv_events import KvEventPublisher, bind
from srt.server.kv_wire import NUMBER_BYTES, encode_batch, number_frame, snapshot

log = logging.getLogger(__name__)

HIGH_WATER = 64
"""Batches that wait for one subscriber while it is answered."""

RETRY_SECONDS, PATIENCE_SECONDS = 0.01, 5.0
"""How often a subscriber that does not read is tried again, and for how long."""


class KvReplay:
    """Thread: event loop. One subscriber after the other, on a ROUTER socket.

    A request is the number of a batch (8 bytes, big-endian); its answer are messages of two frames, number and batch:

    * every batch from that number on; or
    * where one of them is no longer kept, one batch that first clears everything and then stores the whole tree; its
      number is that of the last batch, whose state it is,

    and at the end the number -1 with an empty frame. Whatever stands before the last frame of a request (a REQ socket
    sends an empty one) is put in front of each answer. A subscriber that does not read is given up, without an end.
    """

    def __init__(self, publisher: KvEventPublisher, address: str) -> None:
        """Binds, and serves until `close`.

        Raises:
            ConfigError: the address cannot be used.
        """
        self._publisher = publisher
        self._context = zmq.asyncio.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set(zmq.SNDHWM, HIGH_WATER)
        self._socket.set(zmq.RCVHWM, HIGH_WATER)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._serving: asyncio.Task[None] | None = None
        try:
            self.address = bind(self._socket, "kv_events_replay", address)
            self._serving = asyncio.get_running_loop().create_task(self._serve())
        finally:
            if self._serving is None:
                self._end()

    async def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        self._end()

    def _end(self) -> None:
        self._socket.close(linger=0)
        self._context.term()

    async def _serve(self) -> None:
        while True:
            *envelope, request = await self._socket.recv_multipart()
            if len(request) != NUMBER_BYTES:
                log.warning(
                    "a replay of KV events was asked with %d bytes, a number has %d",
                    len(request),
                    NUMBER_BYTES,
                )
                continue
            try:
                await self._answer(envelope, int.from_bytes(request, "big"))
            except zmq.ZMQError as error:
                log.warning("a replay of KV events ended early: %s", error.strerror)

    async def _answer(self, envelope: list[bytes], start: int) -> None:
        """Raises:
        ZMQError: the subscriber is gone, or does not read.
        """
        publisher = self._publisher
        batches = publisher.replay(start)
        if batches is None:
            # Both are taken in the same turn of the event loop: the blocks are the state after that number.
            number, blocks = publisher.next_number - 1, publisher.blocks()
            events = await asyncio.to_thread(snapshot, blocks, publisher.page_size)
            batches = [(number, await asyncio.to_thread(encode_batch, time.time(), events))]
        for place, (number, batch) in enumerate(batches, start=1):
            await self._send([*envelope, number_frame(number), batch])
            if place % HIGH_WATER == 0:
                await asyncio.sleep(0)  # what zmq takes at once is no pause for the event loop
        await self._send([*envelope, number_frame(-1), b""])

    async def _send(self, frames: list[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                await self._socket.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def __repr__(self) -> str:
        return f"KvReplay({self.address})"


def open_events(config: Config) -> tuple[KvEventPublisher | None, KvReplay | None]:
    """What the options ask for.

    Raises:
        ConfigError: an address cannot be used; none is then.
    """
    options = config.events
    if options.kv_events is None:
        return None, None
    publisher = KvEventPublisher(options, config.cache)
    if options.kv_events_replay is None:
        return publisher, None
    try:
        return publisher, KvReplay(publisher, options.kv_events_replay)
    except BaseException:
        publisher.close()
        raise
