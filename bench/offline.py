"""`twinloop bench offline`: `Engine` on a whole list of prompts at once, without HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tqdm import tqdm

from bench.engine_info import EngineInfo, flush
from bench.environment import Environment
from bench.local_server import ENGINE_GROUPS
from bench.options import RunOptions, parse_run, workload_parser
from bench.records import RequestRecord, errors_of, failed, latency_distribution, throughput_figures
from bench.report import Report, publish
from bench.vocabulary import Vocabulary
from bench.workloads import Conversation, Turn, generator
from srt.core.config import Config
from srt.core.errors import TwinloopError
from srt.server.engine import Engine

DATASETS = ("random", "shared-prefix")
"""Those whose prompts are all known at the start."""

POLL_SECONDS = 0.5
"""How often the engine is asked how far it is."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """One list of prompts: a record of each, and the seconds from the call to its return."""

    records: list[RequestRecord]
    seconds: float


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the exit code: 1 if a request failed.

    Raises:
        ConfigError: an option is not right.
        ModelError: the model cannot be found or loaded.
    """
    parser = workload_parser(
        "offline",
        "Answer a list of prompts with the Python API, all in one call. A preset's concurrency becomes "
        "--max-running-requests.",
        DATASETS,
    )
    run = parse_run(parser, argv)
    environment = Environment.here()
    config = engine_config(run)
    with tqdm(desc=f"loading {config.model.model}", bar_format="{desc} ...", disable=None, leave=False):
        engine = Engine(**_flat(config))
    with engine:
        report = asyncio.run(measure(engine, replace(run, config=config), environment))
    return publish(report, run.json_path)


def engine_config(run: RunOptions) -> Config:
    """The engine's options: as given, with room for the whole list, and as many at once as the preset says."""
    schedule = run.config.schedule
    queued = max(schedule.max_queued_requests, run.workload.num_requests)
    running = schedule.max_running_requests
    if run.preset is not None and running == Config().schedule.max_running_requests:
        running = run.preset.max_concurrency
    return replace(
        run.config,
        schedule=replace(schedule, max_queued_requests=queued, max_running_requests=running),
    )


async def measure(engine: Engine, run: RunOptions, environment: Environment) -> Report:
    """Warms the engine up, answers the list and reports."""
    info = EngineInfo.of(engine.server_info())
    vocabulary = Vocabulary.of_model(run.config.model.model, run.config.model.revision, info.vocab_size)
    plan = run.workload.plan(vocabulary, generator(run.seed, "measured"))
    warm = run.workload.plan(vocabulary, generator(run.seed, "warm-up")).conversations[: run.warmup]
    batch = _Batch(engine, run.timeout)
    result = await batch.run("warming up", warm)
    if not errors_of(result.records).total:
        await flush(lambda: asyncio.to_thread(engine.flush_cache))
        await batch.run("warming prefixes", plan.prefix_warmers)
        result = await batch.run("measuring", plan.conversations)
    return Report(
        bench="offline",
        environment=environment,
        options=run.named(),
        engine=info.announced,
        figures=throughput_figures(result.records, result.seconds),
        distributions=[latency_distribution(result.records)],
        errors=errors_of(result.records),
    )


class _Batch:
    """Thread: event loop. Gives an engine one list of prompts after the other."""

    def __init__(self, engine: Engine, timeout: float) -> None:
        self._engine = engine
        self._timeout = timeout

    async def run(self, title: str, conversations: Sequence[Conversation]) -> BatchResult:
        """Answers conversations of one turn each, all in one call. Whatever goes wrong is in the records."""
        turns = [turn for (turn,) in conversations]
        if not turns:
            return BatchResult([], 0.0)
        started = time.perf_counter()
        with tqdm(
            total=sum(turn.output_len for turn in turns), desc=title, unit="tok", disable=None, leave=False
        ) as bar:
            records = await self._answer(turns, bar.update)
        return BatchResult(records, time.perf_counter() - started)

    async def _answer(self, turns: Sequence[Turn], show: Callable[[int], object]) -> list[RequestRecord]:
        sampling = [
            {"max_new_tokens": turn.output_len, "temperature": 0, "ignore_eos": True} for turn in turns
        ]
        answering = asyncio.ensure_future(
            self._engine.async_generate(
                input_ids=[list(turn.input_ids) for turn in turns], sampling_params=sampling
            )
        )
        try:
            if not await self._until_done(answering, show):
                text = f"no new token for {self._timeout:g} s (--timeout)"
                return [failed("stalled", text, self._timeout)] * len(turns)
            answers: list[dict[str, Any]] = answering.result()
        except TwinloopError as error:
            # The list is one call: it fails as a whole.
            return [failed(error.label, error.message)] * len(turns)
        finally:
            answering.cancel()
        return [_record(answer, turn) for answer, turn in zip(answers, turns, strict=True)]

    async def _until_done(self, answering: asyncio.Future[Any], show: Callable[[int], object]) -> bool:
        """Waits and shows how far the engine is; False when it stands still."""
        seen = self._generated() or 0
        last_new = time.monotonic()
        while True:
            await asyncio.wait([answering], timeout=POLL_SECONDS)
            if answering.done():
                return True
            now = self._generated()
            if now is not None and now != seen:
                show(now - seen)
                seen, last_new = now, time.monotonic()
            elif time.monotonic() - last_new > self._timeout:
                return False

    def _generated(self) -> int | None:
        """Tokens that the engine has generated since its start; None when it does not say."""
        stats = self._engine.server_info()["stats"]
        return None if stats is None else stats["generation_tokens_total"]


def _record(answer: dict[str, Any], turn: Turn) -> RequestRecord:
    meta = answer["meta_info"]
    reason, count = meta["finish_reason"]["type"], meta["completion_tokens"]
    if count != turn.output_len:
        text = f"{count} tokens came, {turn.output_len} were asked for ({reason})"
        return failed("wrong_length", text, meta["e2e_latency"])
    return RequestRecord(
        seconds=meta["e2e_latency"],
        prompt_tokens=meta["prompt_tokens"],
        cached_tokens=meta["cached_tokens"],
        output_ids=tuple(answer["output_ids"]),
    )


def _flat(config: Config) -> dict[str, Any]:
    """Option -> value, as `Engine` takes them."""
    options: dict[str, Any] = {}
    for group in ENGINE_GROUPS:
        options |= asdict(getattr(config, group))
    return options
