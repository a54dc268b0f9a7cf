"""A client of the native API: one streamed POST /generate for each request, with the time of every token."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import orjson

from bench.records import RequestRecord, failed
from bench.vocabulary import TokenIds
from srt.core.errors import Busy, EngineFailure

CONNECT_SECONDS = 10.0
FLUSH_SECONDS = 30.0
OnTokens = Callable[[int], None]
"""Told how many tokens have just arrived."""


class NativeClient:
    """Thread: event loop. Use it as an async context manager.

    Nothing here limits how long an answer takes: the load generator watches for a standstill.
    """

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._http = httpx.AsyncClient(
            base_url=base_url,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,  # a proxy would be measured along with the server
        )

    async def __aenter__(self) -> NativeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def send(self, input_ids: TokenIds, output_len: int, on_tokens: OnTokens) -> RequestRecord:
        """Asks for exactly `output_len` tokens. Whatever goes wrong is in the record, never raised."""
        timing = _Timing(on_tokens)
        body = {
            "input_ids": input_ids,
            "sampling_params": {"max_new_tokens": output_len, "temperature": 0, "ignore_eos": True},
            "stream": True,
        }
        try:
            return await self._send(orjson.dumps(body), output_len, timing)
        except httpx.ConnectError as error:
            return failed("connect", f"no connection to {self._base_url}: {error}", timing.seconds)
        except httpx.TimeoutException as error:
            return failed("connect_timeout", f"no connection within {CONNECT_SECONDS:g} s: {error}")
        except httpx.HTTPError as error:
            return failed("connection_lost", f"{type(error).__name__}: {error}", timing.seconds)
        except (ValueError, LookupError, TypeError) as error:
            return failed("not_native_api", f"the answer is none of /generate: {error!r}", timing.seconds)

    async def server_info(self) -> dict[str, Any]:
        """GET /server_info.

        Raises:
            EngineFailure: there is no such server.
        """
        try:
            response = await self._http.get("/server_info", timeout=CONNECT_SECONDS)
            response.raise_for_status()
            info = orjson.loads(response.content)
        except (httpx.HTTPError, ValueError) as error:
            raise EngineFailure(
                f"{self._base_url}/server_info does not answer ({error!r}); is it a twinloop server, and is it up?"
            ) from error
        if not isinstance(info, dict):
            raise EngineFailure(f"{self._base_url}/server_info does not answer with an object")
        return info

    async def flush_cache(self) -> None:
        """Empties the server's prefix cache.

        Raises:
            Busy: not now.
            EngineFailure: the server refuses.
        """
        try:
            response = await self._http.post("/flush_cache", timeout=FLUSH_SECONDS)
        except httpx.HTTPError as error:
            raise EngineFailure(f"{self._base_url}/flush_cache does not answer: {error!r}") from error
        if response.status_code == Busy.status:
            raise Busy(f"{self._base_url} has work and cannot flush its cache: {response.text[:200]}")
        if response.status_code != 200:
            raise EngineFailure(f"{self._base_url} does not flush its cache: {response.text[:200]}")

    async def _send(self, body: bytes, output_len: int, timing: _Timing) -> RequestRecord:
        headers = {"content-type": "application/json"}
        async with self._http.stream("POST", "/generate", content=body, headers=headers) as response:
            if response.status_code != 200:
                return _refused(response.status_code, await response.aread(), timing.seconds)
            answer: dict[str, Any] | None = None
            async for answer in events(response):
                if "error" in answer:
                    return failed(answer["error"]["type"], answer["error"]["message"], timing.seconds)
                timing.count(answer["meta_info"]["completion_tokens"])
        return _finished(answer, output_len, timing)


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON events of a stream, as soon as each is whole. ``[DONE]`` is none of them."""
    rest = b""
    async for chunk in response.aiter_raw():
        *whole, rest = (rest + chunk).split(b"\n\n")
        for event in whole:
            data = event.removeprefix(b"data: ")
            if data != b"[DONE]":
                yield orjson.loads(data)


class _Timing:
    """Thread: event loop. When the tokens of one answer came."""

    def __init__(self, on_tokens: OnTokens) -> None:
        self._on_tokens = on_tokens
        self._sent = self._last = time.perf_counter()
        self._num_tokens = 0
        self.first: float | None = None
        self.gaps: list[float] = []

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._sent

    @property
    def last_seconds(self) -> float:
        """From the sending to the last token."""
        return self._last - self._sent

    def count(self, completion_tokens: int) -> None:
        """The answer has so many tokens now."""
        new = completion_tokens - self._num_tokens
        if new <= 0:
            return
        now = time.perf_counter()
        if self.first is None:
            self.first = now - self._sent
            self.gaps += [0.0] * (new - 1)
        else:
            self.gaps += [(now - self._last) / new] * new
        self._num_tokens, self._last = completion_tokens, now
        self._on_tokens(new)


def _refused(status: int, body: bytes, seconds: float) -> RequestRecord:
    try:
        error = orjson.loads(body)["error"]
        return failed(error["type"], error["message"], seconds)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return failed(f"http_{status}", body[:200].decode("utf-8", "replace"), seconds)


def _finished(answer: dict[str, Any] | None, output_len: int, timing: _Timing) -> RequestRecord:
    """The record of a stream that has ended, from its last event."""
    finish = None if answer is None else answer["meta_info"]["finish_reason"]
    if answer is None or finish is None:
        return failed("incomplete", "the stream ended before the answer did", timing.seconds)
    meta = answer["meta_info"]
    if finish["type"] == "abort":
        return failed("aborted", finish.get("message") or "the request was aborted", timing.seconds)
    if meta["completion_tokens"] != output_len:
        text = f"{meta['completion_tokens']} tokens came, {output_len} were asked for ({finish['type']})"
        return failed("wrong_length", text, timing.seconds)
    return RequestRecord(
        seconds=timing.last_seconds,
        prompt_tokens=meta["prompt_tokens"],
        cached_tokens=meta["cached_tokens"],
        output_ids=tuple(answer["output_ids"]),
        first_token_seconds=timing.first,
        token_gaps=tuple(timing.gaps),
    )
