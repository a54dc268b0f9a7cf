"""Where the control loop meets its clients: one inbox, one outbox, one place to sleep."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Protocol

from srt.core.messages import ClientMessage, EngineMessage
from srt.core.queues import Doorbell, SpscQueue


class ControlPort(Protocol):
    """Thread: control. The transport between the control loop and its clients."""

    def receive(self) -> list[ClientMessage]:
        """All messages that have arrived, oldest first; never blocks."""

    def send(self, message: EngineMessage) -> None:
        """Hands a message over; never blocks, whatever the client does."""

    def take_stalled(self) -> list[int]:
        """Keys of requests whose client has left too much unread since the last call."""

    @property
    def pending(self) -> bool:
        """True when `receive` would return something."""

    def sleep(self, doorbell: Doorbell, timeout: float | None) -> None:
        """Sleeps until a message arrives, `doorbell` (armed by the caller) rings, or `timeout` seconds pass."""

    @property
    def closed(self) -> bool:
        """True when no message can arrive any more: the control loop ends."""


class LocalPort:
    """A port for clients in the same process: any thread submits, one thread reads.

    Used by in-process engines and tests. Thread: `submit` any, `messages` the client's, the rest control.
    """

    def __init__(self, doorbell: Doorbell) -> None:
        self._inbox: SimpleQueue[ClientMessage] = SimpleQueue()
        self._outbox: SpscQueue[EngineMessage] = SpscQueue()
        self._doorbell = doorbell
        self._closed = False

    def submit(self, message: ClientMessage) -> None:
        self._inbox.put(message)
        self._doorbell.ring()

    def close(self) -> None:
        """No more messages: lets the control loop end."""
        self._closed = True
        self._doorbell.ring()

    def poll(self) -> list[EngineMessage]:
        """What the engine has sent since the last call."""
        return self._outbox.drain()

    def next(self) -> EngineMessage:
        """The next message of the engine; sleeps until there is one."""
        return self._outbox.get()

    def receive(self) -> list[ClientMessage]:
        return [self._inbox.get_nowait() for _ in range(self._inbox.qsize())]

    def send(self, message: EngineMessage) -> None:
        self._outbox.put(message)

    def take_stalled(self) -> list[int]:
        return []  # a client in this process shares its memory: nothing waits in a buffer of ours

    @property
    def pending(self) -> bool:
        return self._closed or not self._inbox.empty()

    def sleep(self, doorbell: Doorbell, timeout: float | None) -> None:
        doorbell.wait(timeout)

    @property
    def closed(self) -> bool:
        return self._closed and self._inbox.empty()
