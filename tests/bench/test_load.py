"""The load generator and its client against a real HTTP server, whose engine repeats the prompt."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from bench.load import LoadGenerator, LoadOptions, LoadResult, arrival_times
from bench.native_client import NativeClient
from bench.records import errors_of
from bench.workloads import Conversation, Turn, generator
from srt.core.errors import ConfigError, EngineFailure
from srt.core.messages import FinishReason
from srt.server.http_listener import listen
from tests.server.api_desk import ApiDesk, api_desk

PATIENT = LoadOptions(max_concurrency=4, request_rate=math.inf, timeout=60)

Scenario = Callable[[ApiDesk, NativeClient], Awaitable[None]]


def with_client(scenario: Scenario, **options: Any) -> None:
    async def main() -> None:
        async with api_desk(**options) as desk, NativeClient(f"http://127.0.0.1:{desk.port}") as client:
            await scenario(desk, client)

    asyncio.run(main())


def single(count: int, input_len: int = 5, output_len: int = 6) -> list[Conversation]:
    return [(Turn(tuple(range(100 + i, 100 + i + input_len)), output_len),) for i in range(count)]


async def drive(
    client: NativeClient,
    conversations: list[Conversation],
    options: LoadOptions = PATIENT,
    on_tokens: Callable[[int], None] = lambda count: None,
) -> LoadResult:
    arrivals = arrival_times(len(conversations), options.request_rate, generator(1, "arrivals"))
    return await LoadGenerator(client, options, on_tokens).run(conversations, arrivals)


def test_every_request_is_recorded_with_its_lengths_and_times() -> None:
    seen: list[int] = []

    async def scenario(desk: ApiDesk, client: NativeClient) -> None:
        result = await drive(client, single(10), on_tokens=seen.append)
        assert errors_of(result.records).total == 0
        assert result.num_good == 10
        for record in result.records:
            assert record.prompt_tokens == 5
            # The engine repeats the five tokens of the prompt: the sixth is the first again.
            assert record.output_ids[0] == record.output_ids[5]
            assert record.first_token_seconds is not None
            assert len(record.token_gaps) == 5
            assert sum(record.token_gaps) == pytest.approx(record.seconds - record.first_token_seconds)
            assert 0 < record.seconds <= result.duration
        sent = {tuple(request.token_ids.tolist()) for request in desk.engine.requests}
        assert sent == {conversation[0].input_ids for conversation in single(10)}
        assert all(request.params.ignore_eos for request in desk.engine.requests)
        assert result.start_delays == []

    with_client(scenario)
    assert sum(seen) == 60


def test_an_end_of_sequence_does_not_shorten_an_answer() -> None:
    async def scenario(desk: ApiDesk, client: NativeClient) -> None:
        result = await drive(client, [(Turn((2, 2, 2), 9),)])
        assert [record.output_ids for record in result.records] == [(2,) * 9]

    with_client(scenario)


def test_no_more_than_the_limit_run_at_once() -> None:
    async def scenario(desk: ApiDesk, client: NativeClient) -> None:
        desk.engine.held = True
        running = asyncio.create_task(drive(client, single(9)))
        await desk.until(lambda: desk.engine.num_running == 4)
        # A round trip later there still are four.
        await client.server_info()
        assert len(desk.engine.requests) == 4
        desk.engine.release()
        assert (await running).num_good == 9

    with_client(scenario)


def test_a_turn_has_all_earlier_turns_and_answers_before_it() -> None:
    async def scenario(desk: ApiDesk, client: NativeClient) -> None:
        talk = (Turn((11, 12), 3), Turn((21,), 2), Turn((31,), 1))
        result = await drive(client, [talk])
        assert [request.token_ids.tolist() for request in desk.engine.requests] == [
            [11, 12],
            [11, 12, 11, 12, 11, 21],
            [11, 12, 11, 12, 11, 21, 11, 12, 31],
        ]
        assert [len(record.output_ids) for record in result.records] == [3, 2, 1]

    with_client(scenario)


def test_a_rate_spreads_the_beginnings_and_shows_their_delay() -> None:
    async def scenario(desk: ApiDesk, client: NativeClient) -> None:
        result = await drive(client, single(5), LoadOptions(4, 500.0, 60))
        assert result.num_good == 5
        assert len(result.start_delays) == 5
        assert min(result.start_delays) >= 0
        arrivals = arrival_times(5, 500.0, generator(1, "arrivals"))
        assert result.duration > arrivals[-1]

    with_client(scenario)


def test_arrivals_are_a_poisson_process() -> None:
    times = arrival_times(20_001, 50.0, generator(5, "arrivals"))
    gaps = np.diff(times)
    assert times[0] == 0
    assert gaps.min() > 0
    # An exponential distribution: mean and deviation are both 1 / rate (here within five standard errors).
    assert gaps.mean() == pytest.approx(0.02, rel=0.036)
    assert gaps.std() == pytest.approx(0.02, rel=0.071)
    assert arrival_times(3, math.inf, generator(5, "arrivals")).tolist() == [0, 0, 0]
    assert np.array_equal(times, arrival_times(20_001, 50.0, generator(5, "arrivals")))


def test_a_refusal_is_an_error_of_its_kind_and_the_others_go_on() -> None:
    async def scenario(desk: ApiDesk, client: NativeClient) -> None:
        conversations = [*single(2), (Turn(tuple(range(100, 400)), 4),), (Turn((99_999,), 4), Turn((1,), 1))]
        result = await drive(client, conversations)
        errors = errors_of(result.records)
        assert errors.counts == {"invalid_request": 2, "not_sent": 1}
        assert result.num_good == 2

    with_client(scenario)


def test_a_full_queue_is_an_error_of_its_kind() -> None:
    async def scenario(desk: ApiDesk, client: NativeClient) -> None:
        desk.engine.held = True
        running = asyncio.create_task(drive(client, single(4)))
        await desk.until(lambda: len(desk.engine.requests) == 4)
        desk.engine.release()
        result = await running
        assert errors_of(result.records).counts == {"queue_full": 2}
        assert result.num_good == 2

    with_client(scenario, max_running=2)


def test_an_answer_that_fails_in_its_midst_is_an_error_of_its_kind() -> None:
    async def scenario(desk: ApiDesk, client: NativeClient) -> None:
        desk.engine.held = True
        running = asyncio.create_task(drive(client, single(2)))
        await desk.until(lambda: desk.engine.num_running == 2)
        desk.engine.fail_with = FinishReason("error", error=EngineFailure("it broke").info())
        desk.engine.release()
        errors = errors_of((await running).records)
        assert errors.counts == {"engine_failure": 2}
        assert "it broke" in errors.examples["engine_failure"]

    with_client(scenario)


def test_an_aborted_answer_is_an_error() -> None:
    async def scenario(desk: ApiDesk, client: NativeClient) -> None:
        desk.engine.held = True
        running = asyncio.create_task(drive(client, single(1)))
        await desk.until(lambda: desk.engine.num_running == 1)
        await desk.post("/abort_request", {"abort_all": True})
        assert errors_of((await running).records).counts == {"aborted": 1}

    with_client(scenario)


def test_an_engine_that_dies_ends_the_run() -> None:
    async def scenario(desk: ApiDesk, client: NativeClient) -> None:
        desk.engine.held = True
        running = asyncio.create_task(drive(client, single(6)))
        await desk.until(lambda: all(s.accepted for s in desk.frontend.client._streams.values()))
        await desk.until(lambda: desk.engine.num_running == 4)
        desk.engine.close()
        desk.frontend.client.disconnect(EngineFailure("the engine process was ended by SIGKILL"))
        result = await running
        # The engine took four; a refusal of the others names the state of the server.
        counts = errors_of(result.records).counts
        assert sum(counts.values()) == 6
        assert counts["unavailable"] >= 2
        assert set(counts) <= {"engine_failure", "unavailable"}

    with_client(scenario)


def test_an_engine_that_stands_still_ends_the_run() -> None:
    async def scenario(desk: ApiDesk, client: NativeClient) -> None:
        desk.engine.held = True
        result = await drive(client, single(9), LoadOptions(4, math.inf, 0.2))
        assert errors_of(result.records).counts == {"not_sent": 5, "stalled": 4}
        # What ran is not left behind.
        await desk.until(lambda: desk.engine.num_running == 0)
        desk.engine.release()
        assert (await drive(client, single(2))).num_good == 2

    with_client(scenario)


def test_a_pause_between_arrivals_is_no_standstill() -> None:
    async def scenario(desk: ApiDesk, client: NativeClient) -> None:
        shown: list[int] = []
        load = LoadGenerator(client, LoadOptions(1, 1.0, 60), shown.append)
        desk.engine.held = True
        running = asyncio.create_task(load.run(single(2), np.array([0.0, 3600.0])))
        await desk.until(lambda: desk.engine.num_running == 1)
        assert load._limit.when() is not None
        desk.engine.release()
        await desk.until(lambda: sum(shown) == 6 and load._num_running == 0)
        assert load._limit.when() is None, "nothing runs: the clock of --timeout stands"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with_client(scenario)


def test_nobody_there_is_an_error_of_its_kind() -> None:
    async def main() -> None:
        with listen("127.0.0.1", 0) as listening:
            port = listening.getsockname()[1]
        async with NativeClient(f"http://127.0.0.1:{port}") as client:
            result = await drive(client, single(3))
            assert errors_of(result.records).counts == {"connect": 3}
            with pytest.raises(EngineFailure, match="is it a twinloop server"):
                await client.server_info()

    asyncio.run(main())


def http(status: str, body: bytes, length: int | None = None) -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {length or len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", "connection_lost"),
        (http("200 OK", b'data: {"text', 100), "connection_lost"),
        (http("200 OK", b"data: [DONE]\n\n"), "incomplete"),
        (http("200 OK", b"data: 3\n\n"), "not_native_api"),
        (http("200 OK", b'data: {"a": 1}\n\n'), "not_native_api"),
        (http("200 OK", b"<html>\n\n"), "not_native_api"),
        (http("502 Bad Gateway", b"nope"), "http_502"),
        (http("400 Bad Request", b"{}"), "http_400"),
    ],
)
def test_what_other_servers_say_is_an_error_of_its_kind(answer: bytes, kind: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            async with NativeClient(f"http://127.0.0.1:{port}") as client:
                result = await drive(client, single(1))
        assert errors_of(result.records).counts == {kind: 1}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (LoadOptions(0, math.inf, 1), "--max-concurrency is 0"),
        (LoadOptions(1, 0.0, 1), "--request-rate is 0"),
        (LoadOptions(1, math.nan, 1), "--request-rate is nan"),
    ],
)
def test_options_are_checked(options: LoadOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options.check()
