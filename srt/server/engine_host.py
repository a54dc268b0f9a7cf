"""Who runs the engine of a program: another process, or threads of this one."""

from __future__ import annotations

from typing import Protocol

HOSTS = {
    False: ("srt.server.engine_supervisor", "EngineSupervisor"),
    True: ("srt.server.in_process", "InProcessEngine"),
}
"""in_process -> module and class that run the engine. Loaded when needed: the second one loads torch."""


class EngineHost(Protocol):
    """Runs an engine for a client."""

    async def run(self) -> None: ...

    async def stop(self) -> None: ...
