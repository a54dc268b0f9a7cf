"""From the bytes of a request to its body: whatever is wrong with them is a 400 that names the field."""

from __future__ import annotations

from typing import Any, TypeVar

import orjson
from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from srt.core.errors import Aborted, InvalidRequest
from srt.server.protocol import Body, shown

MAX_BODY_BYTES = 64 * 2**20

BodyT = TypeVar("BodyT", bound=Body)


async def read_body(request: Request, kind: type[BodyT], *, may_be_empty: bool = False) -> BodyT:
    """Reads and checks the body of a request; no body at all is an empty object where it `may_be_empty`.

    Raises:
        InvalidRequest: not JSON, not a body of this kind, or over `MAX_BODY_BYTES`; names the field.
        Aborted: the client went away in the middle of the body.
    """
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise InvalidRequest(
            f"content-type is {content_type!r}, it must be application/json", field="content-type"
        )
    try:
        data = await _read_bytes(request)
    except ClientDisconnect:
        raise Aborted("the client went away while it sent the body") from None
    return parse_body(data or b"{}" if may_be_empty else data, kind)


def parse_body(data: bytes, kind: type[BodyT]) -> BodyT:
    """A body from JSON text.

    NaN, Infinity, numbers that overflow and halves of surrogate pairs are no JSON here.

    Raises:
        InvalidRequest: names the field and what is wrong with it.
    """
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    return validate_body(fields, kind)


def validate_body(fields: Any, kind: type[BodyT]) -> BodyT:
    """A body from parsed JSON.

    Raises:
        InvalidRequest: names the field and what is wrong with it.
    """
    if not isinstance(fields, dict):
        raise InvalidRequest(f"the body is a JSON {type(fields).__name__}, it must be an object")
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _first_problem(error) from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None


async def _read_bytes(request: Request) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise InvalidRequest(f"the body has more than {MAX_BODY_BYTES} bytes, which is the limit")
        chunks.append(chunk)
    return b"".join(chunks)


def _first_problem(error: ValidationError) -> InvalidRequest:
    """The field at fault, with everything that is said of it.

    A field that may have one of two types is wrong twice; the problem that lies deeper belongs to the type that
    was meant.
    """
    problems = error.errors(include_url=False, include_context=False)
    worst = max(problems, key=lambda problem: len(problem["loc"]))
    field = _field_path(worst["loc"])
    said = dict.fromkeys(problem["msg"] for problem in problems if _field_path(problem["loc"]) == field)
    if worst["type"] == "extra_forbidden":
        return InvalidRequest(f"unknown field {field!r}; check the spelling", field=field)
    value = "" if worst["type"] == "missing" else f" (it is {shown(worst['input'])})"
    return InvalidRequest(f"{field}: {' or '.join(said)}{value}", field=field)


def _field_path(location: tuple[int | str, ...]) -> str:
    """``("sampling_params", "NativeSampling", "top_p")`` -> ``sampling_params.top_p``: no names of types."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part.islower() and part not in {"str", "int", "float", "bool"}:
            path += f".{part}" if path else part
    return path
