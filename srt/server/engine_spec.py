"""What the parent tells the engine process at its start, and what the engine process says at its end."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from srt.core.config import Config
from srt.core.errors import EngineFailure, TwinloopError
from srt.core.messages import EngineDied
from srt.server.ipc import decode, encode


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """All that an engine process needs.

    Attributes:
        address: where the client listens (zmq).
        parent_pid: the process that this engine must not outlive.
        last_words_fd: a pipe that takes one `EngineDied`.
    """

    config: Config
    address: str
    parent_pid: int
    last_words_fd: int


def encode_spec(spec: EngineSpec) -> bytes:
    return msgspec.json.encode(spec)


def decode_spec(data: bytes) -> EngineSpec:
    return msgspec.json.decode(data, type=EngineSpec)


def encode_last_words(error: TwinloopError) -> bytes:
    return encode(EngineDied(error.info()))


def decode_last_words(data: bytes) -> TwinloopError:
    """The error that an engine process died of."""
    try:
        message = decode(data)
    except msgspec.DecodeError:
        return EngineFailure("the engine process died in the middle of its last words")
    assert isinstance(message, EngineDied)
    return message.error.to_exception()
