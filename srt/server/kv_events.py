"""Publishes what enters and leaves the tree, for routers: a PUB socket, and a ROUTER for who has missed something."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import zmq

from radix_cache.block_ledger import Block, BlockLedger, LedgerError
from srt.core.config import CacheOptions
from srt.core.errors import ConfigError
from srt.core.event_options import EventOptions
from srt.core.option import flag
from srt.core.tree_messages import ChangeKind, TreeChange, TreeChanges
from srt.server.kv_wire import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    encode_batch,
    number_frame,
    removed,
    stored,
)

log = logging.getLogger(__name__)

HIGH_WATER = 2000
"""Batches that wait for one slow subscriber; it loses what comes then, and sees a gap in the numbers."""

KEPT_BATCHES = 10_000
KEPT_BYTES = 32 * 2**20
"""What can be replayed; who is further behind gets the whole tree instead."""

KvEvents = list[BlockStored | BlockRemoved | AllBlocksCleared]


class KvEventPublisher:
    """Thread: event loop. Numbers, keeps and publishes batches; never waits for a subscriber, never raises on a change.

    It lives in the HTTP process, so that the loops pay for no hash and no socket, and the numbers go on when an engine
    process is replaced.

    Attributes:
        next_number: of the next batch.
    """

    def __init__(self, options: EventOptions, cache: CacheOptions) -> None:
        """Binds the PUB socket.

        Raises:
            ConfigError: the address cannot be used.
        """
        assert options.kv_events is not None
        self.page_size = cache.page_size
        self._topic = (options.kv_events_topic or "").encode()
        self._ledger = BlockLedger(cache.page_size)
        self._is_blind = False
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT_BATCHES)
        self._kept_bytes = 0
        self.next_number = 0
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.PUB)
        self._socket.set(zmq.SNDHWM, HIGH_WATER)
        try:
            self.address = bind(self._socket, "kv_events", options.kv_events)
        except ConfigError:
            self.close()
            raise
        self.clear()

    def apply(self, message: TreeChanges) -> None:
        """Publishes one pass of the control loop."""
        events: KvEvents = []
        for change in message.changes:
            try:
                APPLY[change.kind](self, change, events)
            except LedgerError:
                log.exception("the KV events no longer follow the cache; they go on when it is next empty")
                self._is_blind = True
                self._ledger.clear()
                events = [AllBlocksCleared()]
        if events:
            self._publish(events)

    def clear(self) -> None:
        """Nothing is cached: this server, or its engine, begins or has ended."""
        self._is_blind = False
        self._ledger.clear()
        self._publish([AllBlocksCleared()])

    def replay(self, start: int) -> list[tuple[int, bytes]] | None:
        """The batches from number `start` on; None when one of them is no longer here, or was never there."""
        oldest = self.next_number - len(self._kept)
        if not oldest <= start <= self.next_number:
            return None
        return [batch for batch in self._kept if batch[0] >= start]

    def blocks(self) -> list[Block]:
        """What the tree holds after batch `next_number` - 1."""
        return self._ledger.blocks()

    def describe(self, replay_address: str | None) -> dict[str, Any]:
        """For /server_info."""
        return {
            "address": self.address,
            "replay_address": replay_address,
            "topic": self._topic.decode(),
            "next_number": self.next_number,
            "num_blocks": len(self._ledger),
        }

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()

    def _publish(self, events: KvEvents) -> None:
        batch = encode_batch(time.time(), events)
        number, self.next_number = self.next_number, self.next_number + 1
        if len(self._kept) == KEPT_BATCHES:
            self._forget_oldest()
        self._kept.append((number, batch))
        self._kept_bytes += len(batch)
        while self._kept_bytes > KEPT_BYTES:
            self._forget_oldest()
        # A PUB socket drops what a subscriber has no room for: this never blocks, and nobody there costs nothing.
        self._socket.send_multipart((self._topic, number_frame(number), batch), zmq.NOBLOCK)

    def _forget_oldest(self) -> None:
        self._kept_bytes -= len(self._kept.popleft()[1])

    def _store(self, change: TreeChange, events: KvEvents) -> None:
        if self._is_blind:
            return
        blocks = self._ledger.store(
            change.parent_page, change.namespace, change.token_ids.tobytes(), change.pages.tolist()
        )
        events.append(stored(blocks, self.page_size))

    def _remove(self, change: TreeChange, events: KvEvents) -> None:
        if not self._is_blind:
            events.append(removed(self._ledger.remove(change.pages.tolist())))

    def _clear(self, change: TreeChange, events: KvEvents) -> None:
        self._is_blind = False
        self._ledger.clear()
        events.append(AllBlocksCleared())

    def __repr__(self) -> str:
        return f"KvEventPublisher({self.address}, {self.next_number} batches, {self._ledger!r})"


APPLY: Final[Mapping[ChangeKind, Callable[[KvEventPublisher, TreeChange, KvEvents], None]]] = (
    MappingProxyType(
        {
            "stored": KvEventPublisher._store,
            "removed": KvEventPublisher._remove,
            "cleared": KvEventPublisher._clear,
        }
    )
)


def bind(socket: zmq.Socket[Any], option: str, address: str) -> str:
    """Binds a socket to the address of an option; the address that it has now, which says what a wildcard became.

    Raises:
        ConfigError: names option, address and reason.
    """
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise ConfigError(f"{flag(option)} {address}: {error.strerror}") from None
    return str(socket.get_string(zmq.LAST_ENDPOINT))
