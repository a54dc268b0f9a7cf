"""`twinloop bench long-prompt`: which gap counts as what, its options, and a run as users make it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import orjson
import pytest

from bench.long_prompt import Gaps, Measured, Stream, main, measure_round
from bench.long_prompt_options import Sizes, parser, sizes_of
from bench.records import RequestRecord, failed
from bench.vocabulary import TokenIds
from srt.core.config import Config
from srt.core.errors import ConfigError

SIZES = Sizes(chunks=(4,), num_streams=2, prompt_tokens=10, alone_tokens=3, num_rounds=1, seed=0)


class Recording:
    """A client whose answers the test writes: the stream's tokens come when it says so."""

    def __init__(self, long_prompt: RequestRecord) -> None:
        self._long_prompt = long_prompt
        self.prompts: list[TokenIds] = []

    async def send(self, input_ids: TokenIds, output_len: int, on_tokens: object) -> RequestRecord:
        self.prompts.append(input_ids)
        if len(input_ids) == 1:  # a stream
            while len(self.prompts) < 4:
                assert callable(on_tokens)
                on_tokens(1)
                await asyncio.sleep(0)
            return failed("lost", "the stream was lost")
        return self._long_prompt


def test_a_gap_is_beside_when_any_part_of_it_is() -> None:
    async def stream_of(times: list[float]) -> Stream:
        stream = Stream(Recording(RequestRecord(1.0)), (1,), 1)
        stream.task.cancel()
        stream.times = times
        return stream

    #         0  1  2   |3.5        6.5|  8  9
    stream = asyncio.run(stream_of([0.0, 1.0, 2.0, 4.0, 5.0, 8.0, 9.0]))
    gaps = Gaps()
    stream.sort_into(gaps, begin=3.5, end=6.5, first=0)
    assert gaps == Gaps(alone=[1.0, 1.0], beside=[2.0, 1.0, 3.0])
    gaps = Gaps()
    stream.sort_into(gaps, begin=3.5, end=6.5, first=2)
    assert gaps == Gaps(alone=[], beside=[2.0, 1.0, 3.0])


def test_every_gap_of_a_round_is_counted_once() -> None:
    rng = random.Random(3)
    times = [0.0]
    for _ in range(200):
        times.append(times[-1] + rng.random())
    for begin, end in ((0.0, 1e9), (times[-1] / 3, times[-1] / 2)):
        gaps = Gaps()
        stream = object.__new__(Stream)
        stream.times = times
        stream.sort_into(gaps, begin, end, 0)
        until = next((t for t in times if t >= end), times[-1])
        assert sum(gaps.alone) + sum(gaps.beside) == pytest.approx(until)
        assert sum(gaps.beside) >= min(end, times[-1]) - begin - 1e-9


@pytest.mark.parametrize("failing", ["long prompt", "stream"])
def test_what_fails_is_reported_and_ends_the_rounds(failing: str) -> None:
    async def run() -> tuple[bool, Measured]:
        client = Recording(failed("busy", "no room") if failing == "long prompt" else RequestRecord(1.0))
        streams = [Stream(client, (index,), 100) for index in range(2)]
        measured = Measured(4)
        if failing == "stream":
            client.prompts += [(0, 0)] * 4
        going_on = await measure_round(client, (1, 2, 3), streams, SIZES, measured)
        for stream in streams:
            stream.task.cancel()
        return going_on, measured

    going_on, measured = asyncio.run(run())
    assert not going_on
    kind = "busy" if failing == "long prompt" else "lost"
    assert [failure[0] for failure in measured.failures] == [kind]


def test_a_server_of_the_bench_has_room_for_all_at_once() -> None:
    config = SIZES.config(Config(), 4)
    assert config.schedule.chunked_prefill_size == 4 and config.schedule.max_step_tokens == 6
    assert config.schedule.max_running_requests == 3
    assert (config.cache.max_total_tokens or 0) >= 2 * (32 + SIZES.stream_tokens(4)) + 10
    # 3 alone, 3 steps of the long prompt, 2 behind it
    assert SIZES.stream_tokens(4) >= 3 + 3 + 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--chunk-sizes", "64", "0"], "--chunk-sizes is 0, it must be at least 1"),
        (["--streams", "0"], "--streams is 0"),
        (["--prompt-tokens", "-1"], "--prompt-tokens is -1"),
        (["--rounds", "0"], "--rounds is 0"),
        (["--seed", "-1"], "--seed is -1"),
        (["--chunked-prefill-size", "64"], "--chunked-prefill-size is set by this bench: .*--chunk-sizes"),
    ],
)
def test_bad_sizes_are_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        main(words)


def test_quick_is_smaller_and_an_option_overrules_it() -> None:
    quick = sizes_of(parser().parse_args(["--quick", "--rounds", "2"]), Config())
    usual = sizes_of(parser().parse_args([]), Config())
    assert quick.prompt_tokens < usual.prompt_tokens == 8000
    assert (quick.num_rounds, usual.num_rounds) == (2, 3)


@pytest.mark.e2e
def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "long.json"
    words = [
        "--quick",
        "--chunk-sizes",
        "32",
        "--prompt-tokens",
        "128",
        "--streams",
        "2",
        "--json",
        str(path),
    ]
    assert main([*words, "--compute-threads", "1"]) == 0
    shown = capsys.readouterr().out
    assert "32: beside (ms)" in shown and "TTFT of the long prompt, chunks of 32 (s)" in shown
    results = orjson.loads(path.read_bytes())["results"]
    assert 0 < results["itl_alone_32_p50_ms"] <= results["itl_alone_32_max_ms"]
    assert 0 < results["itl_beside_32_p99_ms"] < 1000 * results["long_ttft_p50_32_s"], "decodes were mixed in"
