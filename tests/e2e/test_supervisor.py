"""The parent's half of the engine process, with a real engine at the other end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from srt.core.config import Config
from srt.core.errors import EngineFailure
from srt.core.messages import Int32Array
from srt.core.sampling_params import SamplingParams
from srt.server import operations
from srt.server.engine_client import EngineClient
from srt.server.engine_supervisor import EngineSupervisor
from srt.server.ipc import ZmqLink
from srt.server.metrics import ServerMetrics
from srt.server.streams import StreamGroup

pytestmark = pytest.mark.slow

SMALL = {"max_total_tokens": 1024, "compute_threads": 1, "dtype": "float32", "log_level": "error"}


@dataclass
class Watched:
    client: EngineClient
    supervisor: EngineSupervisor
    running: asyncio.Task[None]

    def submit(self) -> StreamGroup:
        prompt: Int32Array = np.array([504, 505], np.int32)
        return self.client.submit([("a", prompt, SamplingParams(max_new_tokens=900, ignore_eos=True))])

    @property
    def pid(self) -> int:
        pid = self.supervisor.pid
        assert pid is not None
        return pid


@asynccontextmanager
async def watched(**options: Any) -> AsyncIterator[Watched]:
    config = Config.from_flat(**{**SMALL, **options})
    client = EngineClient(ServerMetrics("m"), config.schedule.max_unsent_tokens)
    supervisor = EngineSupervisor(config, client)
    running = asyncio.create_task(supervisor.run())
    try:
        await client.wait_ready()
        yield Watched(client, supervisor, running)
    finally:
        await supervisor.stop()
        await asyncio.gather(running, return_exceptions=True)


async def error_of(group: StreamGroup) -> str:
    """Reads a stream to its end, which must be a failure."""
    (stream,) = group.streams
    while True:
        await group.wait()
        batch = stream.take()
        if batch is not None and batch.finish is not None:
            assert batch.finish.kind == "error"
            assert batch.finish.error is not None
            return batch.finish.error.message


def test_corner_23_a_loop_that_raises_ends_the_engine_with_its_reason() -> None:
    async def main() -> None:
        async with watched(max_restarts=0) as watch:
            group = watch.submit()
            await group.accepted()
            link = watch.client._link
            assert isinstance(link, ZmqLink)
            link._socket.send(b"this is no message")
            assert "a loop of the engine failed" in await error_of(group)
            with pytest.raises(EngineFailure, match=r"--max-restarts is 0: a loop of the engine failed"):
                await watch.running

    asyncio.run(main())


def test_corner_30_an_engine_that_hangs_is_killed_by_the_watchdog_and_replaced() -> None:
    async def main() -> None:
        async with watched(watchdog_timeout=4.0) as watch:
            first = watch.pid
            group = watch.submit()
            await group.accepted()
            os.kill(first, signal.SIGSTOP)
            assert "--watchdog-timeout 4" in await error_of(group)
            while watch.client.state != "ready":  # noqa: ASYNC110  the state has no event of its own
                await asyncio.sleep(0)
            assert watch.pid != first
            assert watch.supervisor.num_restarts == 1
            assert (await operations.stats(watch.client)).num_running_reqs == 0

    asyncio.run(main())
