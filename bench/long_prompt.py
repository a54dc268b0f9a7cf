"""`twinloop bench long-prompt`: how long running streams wait for a token while a long prompt is computed beside them.

One server for each size of chunk, driven over HTTP. A round is: all streams run, some seconds alone, then a long
prompt that no cache knows, until its first token. A gap counts as "beside" if any part of it lies in that time:

    streams   |---|---|---|------|------|------|---|---|
    long prompt         [ sent ............ first token ]
    gap        alone        beside ...............
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import uvloop
from tqdm import tqdm

from bench.engine_info import EngineInfo
from bench.environment import Environment
from bench.load import Client
from bench.local_server import local_server, option_words
from bench.long_prompt_options import STREAM_PROMPT_TOKENS, Sizes, parser, sizes_of
from bench.native_client import NativeClient
from bench.records import RequestRecord, milliseconds
from bench.report import Distribution, Errors, Figure, Report, check_writable, publish
from bench.summary import Summary
from bench.vocabulary import TokenIds, Vocabulary
from bench.workloads import generator
from srt.core.config import Config
from srt.server.arguments import parse_config

POLL_SECONDS = 0.002


@dataclass(slots=True)
class Gaps:
    """Thread: event loop. Seconds between two tokens of one stream, by what ran beside it."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)


class Stream:
    """Thread: event loop. One answer that goes on until it is cancelled, and when its tokens came."""

    def __init__(self, client: Client, prompt: TokenIds, num_tokens: int) -> None:
        self.times: list[float] = []
        self.task = asyncio.create_task(client.send(prompt, num_tokens, self._count))

    def _count(self, count: int) -> None:
        self.times += [time.perf_counter()] * count

    def sort_into(self, gaps: Gaps, begin: float, end: float, first: int) -> None:
        """Adds the gaps from token `first` on up to `end`: those that touch `begin .. end` are beside."""
        times = self.times[first:]
        for before, after in itertools.pairwise(times):
            if before < end:
                (gaps.beside if after > begin else gaps.alone).append(after - before)


@dataclass(slots=True)
class Measured:
    """Thread: event loop. All rounds with one size of chunk; `long_prompts` is their records."""

    chunk: int
    gaps: Gaps = field(default_factory=Gaps)
    long_prompts: list[RequestRecord] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the exit code: 1 if a request failed.

    Raises:
        ConfigError: an option is not right.
        EngineFailure: a server cannot be started.
    """
    config, arguments = parse_config(parser(), argv)
    check_writable(arguments.json)
    sizes = sizes_of(arguments, config)
    environment = Environment.here()
    all_measured = []
    engine: EngineInfo | None = None
    for chunk in tqdm(sizes.chunks, desc="long prompt", unit="chunk size", disable=None, leave=False):
        with (
            local_server(sizes.config(config, chunk)) as url,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            engine, measured = runner.run(measure(url, config, sizes, chunk))
        all_measured.append(measured)
    assert engine is not None
    return publish(report_of(all_measured, sizes, config, environment, engine), arguments.json)


async def measure(url: str, config: Config, sizes: Sizes, chunk: int) -> tuple[EngineInfo, Measured]:
    """All rounds against one server.

    Raises:
        TwinloopError: the server does not answer, or takes no such prompt.
    """
    measured = Measured(chunk)
    rng = generator(sizes.seed, "long-prompt")
    async with NativeClient(url) as client:
        info = EngineInfo.of(await client.server_info())
        vocabulary = await asyncio.to_thread(
            Vocabulary.of_model, config.model.model, config.model.revision, info.vocab_size
        )
        num_tokens = sizes.stream_tokens(chunk)
        streams = [
            Stream(client, vocabulary.draw(rng, STREAM_PROMPT_TOKENS), num_tokens)
            for _ in range(sizes.num_streams)
        ]
        for _ in range(sizes.num_rounds):
            if not await measure_round(
                client, vocabulary.draw(rng, sizes.prompt_tokens), streams, sizes, measured
            ):
                break
        for stream in streams:
            stream.task.cancel()
        await asyncio.gather(*(stream.task for stream in streams), return_exceptions=True)
    return info, measured


async def measure_round(
    client: Client, prompt: TokenIds, streams: Sequence[Stream], sizes: Sizes, measured: Measured
) -> bool:
    """One long prompt; False when something failed, which is then among `measured.failures`."""
    first = [max(1, len(stream.times)) for stream in streams]
    if not await _written(streams, sizes.alone_tokens, measured):
        return False
    begin = time.perf_counter()
    record = await client.send(prompt, 1, lambda _: None)
    measured.long_prompts.append(record)
    if record.failure is not None:
        measured.failures.append((record.failure.kind, record.failure.message))
        return False
    end = begin + record.seconds
    if not await _written(streams, 2, measured):  # the gap in which the long prompt ended is whole
        return False
    for stream, index in zip(streams, first, strict=True):
        stream.sort_into(measured.gaps, begin, end, index)
    return True


async def _written(streams: Sequence[Stream], count: int, measured: Measured) -> bool:
    """Waits until each stream has `count` tokens more; False when one has ended."""
    targets = [len(stream.times) + count for stream in streams]
    while any(len(stream.times) < target for stream, target in zip(streams, targets, strict=True)):
        for stream in streams:
            if stream.task.done():
                failure = stream.task.result().failure
                kind, text = (
                    (failure.kind, failure.message) if failure else ("ended", "a stream was too short")
                )
                measured.failures.append((kind, text))
                return False
        await asyncio.sleep(POLL_SECONDS)
    return True


def report_of(
    all_measured: Sequence[Measured],
    sizes: Sizes,
    config: Config,
    environment: Environment,
    engine: EngineInfo,
) -> Report:
    figures: list[Figure] = []
    distributions: list[Distribution] = []
    for measured in all_measured:
        chunk, gaps = measured.chunk, measured.gaps
        distributions += [
            milliseconds(f"{chunk}: alone", f"itl_alone_{chunk}", gaps.alone),
            milliseconds(f"{chunk}: beside", f"itl_beside_{chunk}", gaps.beside),
        ]
        good = [record.seconds for record in measured.long_prompts if record.failure is None]
        summary = Summary.of(good)
        median = None if summary is None else summary.p50
        figures.append(
            Figure(f"TTFT of the long prompt, chunks of {chunk} (s)", f"long_ttft_p50_{chunk}_s", median)
        )
    return Report(
        bench="long-prompt",
        environment=environment,
        options={
            "streams": sizes.num_streams,
            "prompt_tokens": sizes.prompt_tokens,
            "rounds": sizes.num_rounds,
            "seed": sizes.seed,
            "engine_options": " ".join(option_words(config)) or None,
        },
        engine=engine.announced,
        figures=figures,
        distributions=distributions,
        errors=Errors.of([failure for measured in all_measured for failure in measured.failures]),
    )
