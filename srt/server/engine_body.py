"""From the arguments of `Engine.generate` to the body that POST /generate would have had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from srt.server.http_body import validate_body
from srt.server.protocol import GenerateBody


def generate_body(**fields: Any) -> GenerateBody:
    """A checked body from its fields; None means that one was not given.

    Raises:
        InvalidRequest: names the field, the value and the limits.
    """
    return validate_body({name: plain(value) for name, value in fields.items()}, GenerateBody)


def plain(value: Any) -> Any:
    """What JSON would have made of it: arrays, tuples and read-only mappings become lists and dicts."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value
