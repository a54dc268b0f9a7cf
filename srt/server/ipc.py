"""Messages between the HTTP process and the engine process: msgpack over one unix socket.

Both ends are here. Neither ever blocks in a send: what the other side does not take waits in memory, and the
engine's end counts it, so that one client that stopped reading is known by name.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, get_args

import msgspec
import numpy as np
import zmq

from srt.core.messages import ClientMessage, EngineMessage, TokenOutput
from srt.core.queues import Doorbell

Message = ClientMessage | EngineMessage

ENGINE_HIGH_WATER = 256
"""Messages that zmq itself holds, on each side, for a client that does not read; the rest is counted here."""

RECEIVE_BATCH = 64
"""Messages taken in one turn of the event loop, so that a burst cannot hold up the HTTP connections."""

LINGER_MS = 200


# --- the wire form ------------------------------------------------------------------------------------------


def _pack_array(value: object) -> bytes:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    raise TypeError(f"{type(value).__name__} cannot cross a process")


def _unpack_array(annotation: Any, data: bytes) -> np.ndarray[Any, Any]:
    # The annotation of a column is numpy.ndarray[shape, numpy.dtype[T]].
    (dtype,) = get_args(get_args(annotation)[1])
    return np.frombuffer(data, dtype)


MESSAGE_TYPES: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (*get_args(ClientMessage), *get_args(EngineMessage))
}
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_pack_array)
_ENVELOPE = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_DECODERS: dict[str, msgspec.msgpack.Decoder[Message]] = {
    name: msgspec.msgpack.Decoder(kind, dec_hook=_unpack_array) for name, kind in MESSAGE_TYPES.items()
}


def encode(message: Message) -> bytes:
    """The wire form of a message: msgpack of ``[type name, fields]``, arrays as their bytes."""
    return _ENCODER.encode((type(message).__name__, message))


def decode(data: bytes) -> Message:
    """The message that `encode` made `data` from. Its arrays are read-only.

    Raises:
        msgspec.ValidationError: `data` is not the wire form of a message.
    """
    name, body = _ENVELOPE.decode(data)
    decoder = _DECODERS.get(name)
    if decoder is None:
        raise msgspec.ValidationError(f"there is no message type {name!r}")
    return decoder.decode(body)


# --- the engine's end ---------------------------------------------------------------------------------------


class EngineSocket:
    """The engine process's connection, before and after a control loop owns it. One thread at a time."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context(io_threads=1)
        self.raw: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        self.raw.set(zmq.SNDHWM, ENGINE_HIGH_WATER)
        self.raw.set(zmq.RCVHWM, 0)
        self.raw.set(zmq.LINGER, LINGER_MS)
        self.raw.connect(address)

    def close(self) -> None:
        self.raw.close()
        self._context.term()


class ZmqPort:
    """Thread: control (`close` any). The `ControlPort` of an engine in its own process.

    A message that zmq does not take at once waits in `_unsent`. Output tokens there are counted by request: a
    request with more than `max_unsent_tokens` is stalled, and told once.
    """

    def __init__(self, socket: EngineSocket, doorbell: Doorbell, max_unsent_tokens: int) -> None:
        self._socket = socket.raw
        self._doorbell = doorbell
        self._max_unsent_tokens = max_unsent_tokens
        self._unsent: deque[tuple[bytes, TokenOutput | None]] = deque()
        self._unsent_tokens: Counter[int] = Counter()
        self._stalled: list[int] = []
        self._closed = False

    def receive(self) -> list[ClientMessage]:
        messages: list[ClientMessage] = []
        while True:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            messages.append(decode(data))  # type: ignore[arg-type]  # a client sends only client messages

    def send(self, message: EngineMessage) -> None:
        data = encode(message)
        if self._flush() and self._offer(data):
            return
        output = message if isinstance(message, TokenOutput) else None
        self._unsent.append((data, output))
        if output is not None:
            self._count(output)

    def take_stalled(self) -> list[int]:
        stalled, self._stalled = self._stalled, []
        return stalled

    @property
    def pending(self) -> bool:
        return self._closed or bool(int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def sleep(self, doorbell: Doorbell, timeout: float | None) -> None:
        # The socket is polled, not its descriptor: that is edge-triggered, a wake-up would be lost.
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN | (zmq.POLLOUT if not self._flush() else 0))
        poller.register(doorbell.fileno(), zmq.POLLIN)
        poller.poll(None if timeout is None else max(0, int(timeout * 1000)))

    def close(self) -> None:
        """No message is wanted any more: lets the control loop end."""
        self._closed = True
        self._doorbell.ring()

    @property
    def closed(self) -> bool:
        return self._closed

    def _flush(self) -> bool:
        """Sends what waits; True when nothing waits any more."""
        while self._unsent:
            data, output = self._unsent[0]
            if not self._offer(data):
                return False
            self._unsent.popleft()
            if output is not None:
                self._unsent_tokens.subtract(_tokens_by_key(output))
        self._unsent_tokens.clear()
        return True

    def _offer(self, data: bytes) -> bool:
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _count(self, output: TokenOutput) -> None:
        for key, count in _tokens_by_key(output).items():
            before = self._unsent_tokens[key]
            self._unsent_tokens[key] = before + count
            if before <= self._max_unsent_tokens < before + count:
                self._stalled.append(key)

    def __repr__(self) -> str:
        return f"ZmqPort({len(self._unsent)} unsent messages{', closed' if self._closed else ''})"


def _tokens_by_key(output: TokenOutput) -> dict[int, int]:
    return dict(zip(output.keys.tolist(), np.diff(output.offsets).tolist(), strict=True))


# --- the client's end ---------------------------------------------------------------------------------------


class Link(Protocol):
    """A way to one engine."""

    def send(self, message: ClientMessage) -> None:
        """Hands a message over; never blocks."""

    def close(self) -> None:
        """No message comes or goes any more."""


class ZmqLink:
    """Thread: event loop. The client's end: a unix socket in a private directory, one engine, callbacks.

    zmq's file descriptor is edge-triggered: it may stay silent while messages wait. So every turn reads until
    nothing is left, and a send, which can swallow an edge, is followed by a look.
    """

    def __init__(self, on_message: Callable[[EngineMessage], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._directory = tempfile.TemporaryDirectory(prefix="twinloop-")
        self.address = f"ipc://{Path(self._directory.name) / 'engine'}"
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.RCVHWM, ENGINE_HIGH_WATER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(self.address)
        self._fd = int(self._socket.get(zmq.FD))
        self._loop.add_reader(self._fd, self._read)
        self._announced = True
        self._closed = False

    def send(self, message: ClientMessage) -> None:
        """Hands a message over; lost if the engine is dead, whose end is told to all that wait."""
        if self._closed:
            return
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return  # no engine at the other end
        self._loop.call_soon(self._read)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        self._socket.close()
        self._context.term()
        self._directory.cleanup()

    def _read(self) -> None:
        for _ in range(RECEIVE_BATCH):
            if self._closed:
                return
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            if self._announced:
                # The one engine is here: no file is needed any more, and none is left if this process is killed.
                self._announced = False
                self._directory.cleanup()
            self._on_message(decode(data))  # type: ignore[arg-type]  # an engine sends only engine messages
        self._loop.call_soon(self._read)

    def __repr__(self) -> str:
        return f"ZmqLink({self.address}{', closed' if self._closed else ''})"
