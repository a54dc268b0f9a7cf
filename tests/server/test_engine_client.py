from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from srt.core.errors import EngineFailure, ErrorInfo, InvalidRequest, QueueFull, Unavailable
from srt.core.messages import (
    AbortReq,
    Accepted,
    ClientMessage,
    EngineReady,
    EngineStats,
    FinishReason,
    FlushReply,
    FlushReq,
    Int32Array,
    Refused,
    RowFinish,
    SaveReply,
    SaveReq,
    StatsReply,
    StatsReq,
    TokenizedReq,
    TokenOutput,
)
from srt.core.sampling_params import SamplingParams
from srt.server import operations
from srt.server.engine_client import EngineClient
from srt.server.metrics import ServerMetrics
from srt.server.placement import Placement
from srt.server.streams import StreamGroup, TokenBatch

READY = EngineReady("m", "float32", "cpu", "eager", False, 100, 64, 256, 16, 8, 0.1)
STOP = FinishReason("stop", 2)


class RecordingLink:
    """A link whose engine is the test."""

    def __init__(self) -> None:
        self.sent: list[ClientMessage] = []

    def send(self, message: ClientMessage) -> None:
        self.sent.append(message)

    def close(self) -> None:
        pass


class Desk:
    """A client that is connected to the test."""

    def __init__(self, max_unsent_tokens: int = 1000) -> None:
        self.metrics = ServerMetrics("m")
        self.client = EngineClient(self.metrics, max_unsent_tokens)
        self.link = RecordingLink()
        self.client.connect(self.link, READY)

    def submit(self, rid: str, count: int = 1) -> StreamGroup:
        prompt: Int32Array = np.array([1, 2], np.int32)
        return self.client.submit([(rid, prompt, SamplingParams())] * count)

    def output(self, *rows: tuple[int, list[int], FinishReason | None], cached: int = 0) -> None:
        """Each row: key, ids, finish."""
        ids = [token for _, row_ids, _ in rows for token in row_ids]
        self.client.on_message(
            TokenOutput(
                np.array([key for key, _, _ in rows], np.int64),
                np.cumsum([0, *(len(row_ids) for _, row_ids, _ in rows)]).astype(np.int32),
                np.array(ids, np.int32),
                np.full(len(rows), cached, np.int32),
                tuple(RowFinish(row, reason, 1) for row, (_, _, reason) in enumerate(rows) if reason),
            )
        )


def state(client: EngineClient) -> str:
    return client.state


def owed(client: EngineClient) -> bool:
    return client.is_owed


def run(scenario: Callable[[Desk], Awaitable[None]], max_unsent_tokens: int = 1000) -> None:
    async def main() -> None:
        await scenario(Desk(max_unsent_tokens))

    asyncio.run(main())


def test_tokens_wait_as_one_batch_and_the_finish_comes_once() -> None:
    async def scenario(desk: Desk) -> None:
        group = desk.submit("a")
        (stream,) = group.streams
        assert desk.link.sent[0].key == stream.key
        accepted = asyncio.create_task(group.accepted())
        await asyncio.sleep(0)
        assert not accepted.done()
        desk.client.on_message(Accepted(stream.key))
        await accepted
        desk.output((stream.key, [5], None), cached=1)
        desk.output((stream.key, [6, 7], None), cached=1)
        await group.wait()
        assert stream.take() == TokenBatch([5, 6, 7], 1, None, 0)
        assert stream.take() is None
        desk.output((stream.key, [8], STOP), cached=1)
        await group.wait()
        assert stream.take() == TokenBatch([8], 1, STOP, 1)
        assert stream.take() is None
        assert desk.client.num_live == 0
        assert not any(isinstance(message, AbortReq) for message in desk.link.sent)

    run(scenario)


def test_columns_of_one_output_reach_their_own_streams_and_strangers_are_ignored() -> None:
    async def scenario(desk: Desk) -> None:
        group = desk.submit("a", 2)
        first, second = group.streams
        assert first.key != second.key
        desk.output((second.key, [7, 8], None), (10**6, [9], STOP), (first.key, [], STOP))
        assert first.take() == TokenBatch([], 0, STOP, 1)
        assert second.take() == TokenBatch([7, 8], 0, None, 0)

    run(scenario)


def test_a_refusal_is_raised_before_any_token_and_frees_the_rid() -> None:
    async def scenario(desk: Desk) -> None:
        group = desk.submit("a", 2)
        first, second = group.streams
        desk.client.on_message(Accepted(first.key))
        desk.client.on_message(Refused(second.key, QueueFull("4 of 4 wait").info()))
        with pytest.raises(QueueFull, match="4 of 4 wait"):
            await group.accepted()
        desk.client.release(group)
        assert [message for message in desk.link.sent if isinstance(message, AbortReq)] == [
            AbortReq(first.key)
        ]
        desk.submit("a")

    run(scenario)


def test_b25_a_second_live_request_with_the_same_rid_is_refused_by_name() -> None:
    async def scenario(desk: Desk) -> None:
        group = desk.submit("x", 2)
        with pytest.raises(InvalidRequest, match="'x'") as refusal:
            desk.submit("x")
        assert refusal.value.field == "rid"
        desk.output((group.streams[0].key, [], STOP))
        with pytest.raises(InvalidRequest):
            desk.submit("x")
        desk.output((group.streams[1].key, [], STOP))
        desk.submit("x")

    run(scenario)


def test_b26_outputs_of_an_aborted_request_never_reach_a_new_one_with_its_rid() -> None:
    async def scenario(desk: Desk) -> None:
        old = desk.submit("x")
        desk.client.release(old)
        new = desk.submit("x")
        desk.output((old.streams[0].key, [5, 6], None))
        desk.output((new.streams[0].key, [9], None))
        batch = new.streams[0].take()
        assert batch is not None
        assert batch.token_ids == [9]

    run(scenario)


def test_abort_takes_exactly_one_rid_and_the_stream_gets_its_finish() -> None:
    async def scenario(desk: Desk) -> None:
        one, ten = desk.submit("1"), desk.submit("10")
        assert desk.client.abort_rid("1") == 1
        assert desk.client.abort_rid("none") == 0
        assert desk.link.sent[-1] == AbortReq(one.streams[0].key)
        aborted = FinishReason("abort")
        desk.output((one.streams[0].key, [4], aborted))
        assert one.streams[0].take() == TokenBatch([4], 0, aborted, 1)
        assert not ten.streams[0].ended
        assert desk.client.abort_rid("1") == 0
        assert desk.client.abort_all() == 1

    run(scenario)


def test_b26_an_id_is_free_as_soon_as_its_abort_is_asked_for() -> None:
    async def scenario(desk: Desk) -> None:
        old = desk.submit("x")
        assert desk.client.abort_rid("x") == 1
        new = desk.submit("x")
        assert desk.client.abort_rid("y") == 0
        desk.output((old.streams[0].key, [4], FinishReason("abort")), (new.streams[0].key, [5], None))
        assert new.streams[0].take() == TokenBatch([5], 0, None, 0)
        with pytest.raises(InvalidRequest, match="'x'"):
            desk.submit("x")
        assert desk.client.abort_all() == 1
        desk.output((new.streams[0].key, [], FinishReason("abort")))
        assert desk.client.num_live == 0

    run(scenario)


def test_corner_07_a_stop_string_ends_the_stream_here_and_tells_the_engine_what_belongs() -> None:
    async def scenario(desk: Desk) -> None:
        group = desk.submit("a")
        (stream,) = group.streams
        desk.output((stream.key, [4, 5, 6], None))
        desk.client.stop(stream, 2)
        assert desk.link.sent[-1] == AbortReq(stream.key, 2)
        assert desk.client.num_live == 0
        desk.client.release(group)
        assert desk.link.sent[-1] == AbortReq(stream.key, 2), "released once, aborted once"

    run(scenario)


def test_corner_30_death_of_the_engine_ends_everything_that_waits() -> None:
    async def scenario(desk: Desk) -> None:
        running, waiting = desk.submit("a"), desk.submit("b")
        (stream,) = running.streams
        desk.client.on_message(Accepted(stream.key))
        desk.output((stream.key, [3], None))
        stats = asyncio.create_task(operations.stats(desk.client))
        await asyncio.sleep(0)
        desk.client.disconnect(EngineFailure("ended by SIGKILL"))
        batch = stream.take()
        assert batch is not None
        assert batch.finish is not None
        assert batch.token_ids == [3]
        assert batch.finish.kind == "error"
        assert batch.finish.error == ErrorInfo("engine_failure", 503, "ended by SIGKILL", retryable=True)
        with pytest.raises(EngineFailure, match="SIGKILL"):
            await waiting.accepted()
        with pytest.raises(EngineFailure, match="SIGKILL"):
            await stats
        assert state(desk.client) == "dead"
        with pytest.raises(Unavailable, match="restarting"):
            desk.submit("c")
        with pytest.raises(Unavailable):
            await operations.stats(desk.client)
        desk.client.connect(desk.link, READY)
        assert state(desk.client) == "ready"
        again = desk.submit("a")
        assert again.streams[0].key > waiting.streams[0].key, "keys are never used twice"

    run(scenario)


def test_states_before_ready_and_while_draining() -> None:
    async def scenario(desk: Desk) -> None:
        fresh = EngineClient(desk.metrics, 10)
        assert state(fresh) == "starting"
        with pytest.raises(Unavailable, match="loading"):
            fresh.submit([])
        group = desk.submit("a")
        desk.client.drain()
        assert state(desk.client) == "draining"
        with pytest.raises(Unavailable, match="shutting down"):
            desk.submit("b")
        drained = asyncio.create_task(desk.client.drained())
        await asyncio.sleep(0)
        assert not drained.done()
        desk.output((group.streams[0].key, [], STOP))
        await drained

    run(scenario)


def test_a_reader_that_leaves_too_much_unread_is_aborted_with_the_numbers() -> None:
    async def scenario(desk: Desk) -> None:
        group = desk.submit("a")
        (stream,) = group.streams
        desk.output((stream.key, list(range(10)), None))
        assert not stream.ended
        desk.output((stream.key, [1], None))
        assert desk.link.sent[-1] == AbortReq(stream.key)
        batch = stream.take()
        assert batch is not None
        assert batch.finish is not None
        assert batch.finish.error is not None
        assert "11 tokens unread" in batch.finish.error.message
        assert "10" in batch.finish.error.message

    run(scenario, max_unsent_tokens=10)


def test_flush_and_stats_are_answered_by_key() -> None:
    async def scenario(desk: Desk) -> None:
        flush = asyncio.create_task(operations.flush(desk.client))
        stats = asyncio.create_task(operations.stats(desk.client))
        await asyncio.sleep(0)
        ask_flush, ask_stats = desk.link.sent
        assert isinstance(ask_flush, FlushReq)
        assert isinstance(ask_stats, StatsReq)
        assert desk.client.num_live == 0
        assert owed(desk.client)
        desk.client.on_message(StatsReply(ask_stats.key, EngineStats(num_running_reqs=4)))
        assert (await stats).num_running_reqs == 4
        desk.client.on_message(FlushReply(ask_flush.key, 96))
        assert await flush == 96
        assert not owed(desk.client)
        refused = asyncio.create_task(operations.flush(desk.client))
        await asyncio.sleep(0)
        desk.client.on_message(
            FlushReply(desk.link.sent[-1].key, error=ErrorInfo("busy", 409, "2 requests run", True))
        )
        with pytest.raises(Exception, match="2 requests run") as error:
            await refused
        assert getattr(error.value, "status", None) == 409

    run(scenario)


def test_a_save_before_the_end_waits_for_rows_to_leave_and_is_skipped_when_nothing_is_cached() -> None:
    async def scenario(desk: Desk) -> None:
        for cached in (0, 32):
            ending = asyncio.create_task(operations.save_before_end(desk.client, 60.0))
            for in_use in (1, 0):
                await asyncio.sleep(0)
                asked = desk.link.sent[-1]
                assert isinstance(asked, StatsReq)
                stats = EngineStats(num_slots_in_use=in_use, num_cached_tokens=cached)
                desk.client.on_message(StatsReply(asked.key, stats))
                await asyncio.sleep(0)
            if cached:
                await asyncio.sleep(0)
                asked_save = desk.link.sent[-1]
                assert isinstance(asked_save, SaveReq)
                desk.client.on_message(SaveReply(asked_save.key, cached, 100))
            await ending

    run(scenario)


def test_a_save_before_the_end_never_keeps_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(desk: Desk) -> None:
        await operations.save_before_end(desk.client, 0.0)
        assert "--cache-save-timeout" in caplog.text
        ending = asyncio.create_task(operations.save_before_end(desk.client, 60.0))
        await asyncio.sleep(0)
        desk.client.disconnect(EngineFailure("it broke"))
        await ending
        assert "not saved: it broke" in caplog.text
        await operations.save_before_end(desk.client, 60.0)
        assert "no engine" in caplog.text

    run(scenario)


def test_latencies_and_outcomes_reach_the_metrics() -> None:
    async def scenario(desk: Desk) -> None:
        group = desk.submit("a", 2)
        first, second = group.streams
        desk.output((first.key, [1], None))
        desk.output((first.key, [2], STOP))
        desk.client.on_message(Refused(second.key, QueueFull("full").info()))
        text = desk.metrics.render(EngineStats(prompt_tokens_total=200, cached_tokens_total=50)).decode()
        assert 'twinloop:time_to_first_token_seconds_count{model_name="m"} 1.0' in text
        assert 'twinloop:inter_token_latency_seconds_count{model_name="m"} 1.0' in text
        assert 'twinloop:requests_finished_total{finish_reason="stop",model_name="m"} 1.0' in text
        assert 'twinloop:requests_refused_total{error="queue_full",model_name="m"} 1.0' in text
        assert 'twinloop:cache_hit_rate{model_name="m"} 0.25' in text
        assert 'twinloop:gen_throughput{model_name="m"} 0.2' in text

    run(scenario)


def test_messages_are_requests_with_the_prompt_and_parameters() -> None:
    async def scenario(desk: Desk) -> None:
        prompt: Int32Array = np.array([3, 4, 5], np.int32)
        desk.client.submit([("a", prompt, SamplingParams(seed=9))], Placement("tenant", 5))
        (request,) = desk.link.sent
        assert isinstance(request, TokenizedReq)
        assert request.token_ids.tolist() == [3, 4, 5]
        assert (request.rid, request.params.seed) == ("a", 9)
        assert (request.namespace, request.priority) == ("tenant", 5)

    run(scenario)
