"""The load generator: when which request is sent, and how a server that stands still is noticed."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bench.records import RequestRecord, failed
from bench.vocabulary import TokenIds
from bench.workloads import Conversation
from srt.core.errors import ConfigError

OnTokens = Callable[[int], None]


class Client(Protocol):
    """What sends one request, and turns whatever happens to it into a record."""

    async def send(self, input_ids: TokenIds, output_len: int, on_tokens: OnTokens) -> RequestRecord: ...


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How hard a server is driven.

    Attributes:
        max_concurrency: conversations at once at most.
        request_rate: conversations that begin in a second, on average, at random; inf: as soon as the limit allows.
        timeout: seconds without any new token, while a request runs, after which the run is given up.
    """

    max_concurrency: int
    request_rate: float
    timeout: float

    def check(self) -> None:
        """Raises:
        ConfigError: names the option, its value and the limit.
        """
        if self.max_concurrency < 1:
            raise ConfigError(f"--max-concurrency is {self.max_concurrency}, it must be at least 1")
        if not self.request_rate > 0:
            raise ConfigError(f"--request-rate is {self.request_rate}, it must be over 0 (inf: no pauses)")


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A run: a record of every request, also of those that were never sent.

    Attributes:
        duration: seconds from the first sending to the last end.
        cpu_share: CPU time of this process over `duration`, in cores. Near 1, the generator is the bottleneck.
        start_delays: how much later than planned each conversation began, in seconds; empty without a rate.
    """

    records: list[RequestRecord]
    duration: float
    cpu_share: float
    start_delays: list[float]

    @property
    def num_good(self) -> int:
        return sum(record.failure is None for record in self.records)


def arrival_times(count: int, rate: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Seconds after the start at which `count` conversations begin: a Poisson process whose first event is at 0."""
    if math.isinf(rate):
        return np.zeros(count)
    gaps = rng.exponential(1 / rate, size=count)
    gaps[:1] = 0
    return np.cumsum(gaps)


class LoadGenerator:
    """Thread: event loop. One run of conversations against one server.

    Args:
        on_tokens: told of new tokens, for a progress bar.
    """

    def __init__(self, client: Client, options: LoadOptions, on_tokens: OnTokens) -> None:
        self._client = client
        self._options = options
        self._show = on_tokens
        self._records: list[RequestRecord] = []
        self._start_delays: list[float] = []
        self._num_running = 0
        self._limit = asyncio.timeout(None)

    async def run(
        self, conversations: Sequence[Conversation], arrivals: npt.NDArray[np.float64]
    ) -> LoadResult:
        """Sends everything; returns also when the server dies or stands still."""
        started, cpu_started = time.perf_counter(), time.process_time()
        tasks: list[asyncio.Task[None]] = []
        try:
            async with self._limit:
                await self._dispatch(conversations, arrivals, tasks)
                await asyncio.gather(*tasks)
        except TimeoutError:
            self._give_up(sum(map(len, conversations)))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        duration = time.perf_counter() - started
        cpu_share = (time.process_time() - cpu_started) / duration
        return LoadResult(self._records, duration, cpu_share, self._start_delays)

    async def _dispatch(
        self,
        conversations: Sequence[Conversation],
        arrivals: npt.NDArray[np.float64],
        tasks: list[asyncio.Task[None]],
    ) -> None:
        """Starts each conversation when it is due and there is room, in order."""
        started = time.perf_counter()
        room = asyncio.Semaphore(self._options.max_concurrency)
        for conversation, due in zip(conversations, arrivals.tolist(), strict=True):
            await asyncio.sleep(max(0.0, started + due - time.perf_counter()))
            await room.acquire()
            if not math.isinf(self._options.request_rate):
                self._start_delays.append(time.perf_counter() - started - due)
            task = asyncio.create_task(self._converse(conversation))
            task.add_done_callback(lambda _: room.release())
            tasks.append(task)

    async def _converse(self, conversation: Conversation) -> None:
        """One request after the other; the rest of a conversation is lost with a failed one."""
        history: TokenIds = ()
        for index, turn in enumerate(conversation):
            prompt = history + turn.input_ids
            self._num_running += 1
            self._sign_of_life()
            record = await self._client.send(prompt, turn.output_len, self._on_tokens)
            self._num_running -= 1
            self._sign_of_life()
            self._records.append(record)
            if record.failure is not None:
                self._not_sent(len(conversation) - index - 1, "an earlier turn of the conversation failed")
                return
            history = prompt + record.output_ids

    def _on_tokens(self, count: int) -> None:
        self._sign_of_life()
        self._show(count)

    def _sign_of_life(self) -> None:
        """The clock of --timeout starts anew; it stands while nothing runs."""
        if not self._limit.expired():
            now = asyncio.get_running_loop().time()
            self._limit.reschedule(now + self._options.timeout if self._num_running else None)

    def _give_up(self, num_requests: int) -> None:
        text = f"no new token for {self._options.timeout:g} s (--timeout)"
        self._records += [failed("stalled", text, self._options.timeout)] * self._num_running
        self._not_sent(num_requests - len(self._records), "the run was given up: " + text)

    def _not_sent(self, count: int, why: str) -> None:
        self._records += [failed("not_sent", why)] * count

    def __repr__(self) -> str:
        return f"LoadGenerator({len(self._records)} requests ended, {self._num_running} running)"
