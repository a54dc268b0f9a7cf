"""`twinloop bench serving`: drives a server over HTTP, as its clients do, and measures what they see."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import Any

import httpx
import uvloop
from tqdm import tqdm

from bench.engine_info import EngineInfo, flush
from bench.environment import Environment
from bench.load import LoadGenerator, LoadOptions, LoadResult, arrival_times
from bench.local_server import local_server, option_words
from bench.native_client import NativeClient
from bench.options import RunOptions, parse_run, workload_parser
from bench.records import errors_of, milliseconds, streaming_distributions, throughput_figures
from bench.report import Figure, Report, publish
from bench.vocabulary import Vocabulary
from bench.workloads import WORKLOADS, Conversation, generator
from srt.core.config import Config
from srt.core.errors import ConfigError

DEFAULT_CONCURRENCY = 16
QUICK_CONCURRENCY = 4
BUSY_GENERATOR = 0.8
"""A generator that uses more of a core than this may be what is measured."""


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the exit code: 1 if a request failed.

    Raises:
        ConfigError: an option is not right.
        EngineFailure: the server cannot be started or reached.
        ModelError: the tokenizer of the served model is not on this machine.
    """
    run = parse_run(serving_parser(), argv)
    load = _load_options(run)
    environment = Environment.here()
    with (
        _server(run) as url,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        report = runner.run(measure(url, run, load, environment))
    return publish(report, run.json_path)


def serving_parser() -> argparse.ArgumentParser:
    parser = workload_parser(
        "serving",
        "Drive a server over HTTP and measure what its clients see. Without --base-url, the bench starts a server of "
        "its own and ends it.",
        WORKLOADS,
    )
    load = parser.add_argument_group("load", "Which server is driven, and how hard.")
    load.add_argument(
        "--base-url",
        metavar="URL",
        default=None,
        help="a running server; --model then only names its tokenizer",
    )
    load.add_argument(
        "--flush-cache",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="empty the prefix cache before the clock starts (default: only for a server of the bench's own)",
    )
    load.add_argument(
        "--max-concurrency",
        type=int,
        metavar="N",
        default=None,
        help=f"conversations at once (default: the preset's, or {DEFAULT_CONCURRENCY})",
    )
    load.add_argument(
        "--request-rate",
        type=float,
        metavar="X",
        default=math.inf,
        help="conversations that begin in a second, a Poisson process (default: inf, as fast as the limit allows)",
    )
    return parser


async def measure(url: str, run: RunOptions, load: LoadOptions, environment: Environment) -> Report:
    """Warms the server up, drives it and reports.

    Raises:
        TwinloopError: the server does not answer or does not fit the options.
    """
    async with NativeClient(url) as client:
        info = EngineInfo.of(await client.server_info())
        vocabulary = await asyncio.to_thread(_vocabulary, run.config, info)
        plan = run.workload.plan(vocabulary, generator(run.seed, "measured"))
        warm = run.workload.plan(vocabulary, generator(run.seed, "warm-up")).conversations[: run.warmup]
        drive = _Driver(client, load, run.seed)
        result = await drive.run("warming up", warm)
        if not warm or result.num_good:
            if _flushes(run):
                await flush(client.flush_cache)
            await drive.run("warming prefixes", plan.prefix_warmers)
            result = await drive.run("measuring", plan.conversations)
    return _report(run, load, environment, info, url, result)


class _Driver:
    """Thread: event loop. Drives one server with several sets of conversations, one after the other."""

    def __init__(self, client: NativeClient, load: LoadOptions, seed: int) -> None:
        self._client = client
        self._load = load
        self._seed = seed

    async def run(self, title: str, conversations: Sequence[Conversation]) -> LoadResult:
        total = sum(turn.output_len for conversation in conversations for turn in conversation)
        arrivals = arrival_times(
            len(conversations), self._load.request_rate, generator(self._seed, "arrivals")
        )
        with tqdm(total=total, desc=title, unit="tok", disable=None, leave=False) as bar:
            load = LoadGenerator(self._client, self._load, lambda count: _advance(bar, count))
            return await load.run(conversations, arrivals)

    def __repr__(self) -> str:
        return f"_Driver({self._client}, {self._load})"


def _report(
    run: RunOptions,
    load: LoadOptions,
    environment: Environment,
    info: EngineInfo,
    url: str,
    result: LoadResult,
) -> Report:
    rate = None if math.isinf(load.request_rate) else load.request_rate
    options: dict[str, Any] = {
        "base_url": url if run.others.base_url else None,
        "max_concurrency": load.max_concurrency,
        "request_rate_per_s": rate,
        **run.named(),
        "flush_cache": _flushes(run),
    }
    share = f"{result.cpu_share:.0%}"
    if result.cpu_share > BUSY_GENERATOR:
        share += " (the generator may be what limits)"
    distributions = streaming_distributions(result.records)
    if rate is not None:
        distributions.append(milliseconds("Start delay", "start_delay", result.start_delays))
    return Report(
        bench="serving",
        environment=environment,
        options=options,
        engine=info.announced,
        figures=[
            *throughput_figures(result.records, result.duration),
            Figure("Generator's share of a CPU core", "generator_cpu_share", result.cpu_share, share),
        ],
        distributions=distributions,
        errors=errors_of(result.records),
    )


def _load_options(run: RunOptions) -> LoadOptions:
    concurrency = run.others.max_concurrency
    if concurrency is None:
        usual = run.preset.max_concurrency if run.preset is not None else DEFAULT_CONCURRENCY
        concurrency = min(usual, QUICK_CONCURRENCY) if run.quick else usual
    load = LoadOptions(concurrency, run.others.request_rate, run.timeout)
    load.check()
    return load


def _server(run: RunOptions) -> contextlib.AbstractContextManager[str]:
    """The server to drive: one that runs, or one that lives as long as the bench."""
    url = run.others.base_url
    if url is None:
        return local_server(run.config)
    if not httpx.URL(url).is_absolute_url:
        raise ConfigError(f"--base-url is {url!r}, it must read like http://HOST:PORT")
    words = [word for word in option_words(run.config) if word.startswith("--")]
    for word in words:
        if word not in ("--model", "--revision"):
            raise ConfigError(
                f"{word} is for a server that the bench starts: leave it out, or leave out --base-url"
            )
    return contextlib.nullcontext(url)


def _vocabulary(config: Config, info: EngineInfo) -> Vocabulary:
    """By the model that the command line names, or else by the one that the server says it serves."""
    named = config.model.model != Config().model.model
    model = config.model.model if named else info.model_source
    revision = config.model.revision if named else info.revision
    return Vocabulary.of_model(model, revision, info.vocab_size)


def _flushes(run: RunOptions) -> bool:
    chosen: bool | None = run.others.flush_cache
    return run.others.base_url is None if chosen is None else chosen


def _advance(bar: tqdm[Any], count: int) -> None:
    bar.update(count)
