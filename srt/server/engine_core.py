"""Both loops, wired: the one place that knows control, compute and a runner at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from compute_loop.loop import ComputeLoop
from compute_loop.runner.load import LoadedModel, load_runner
from control_loop.intake import Limits
from control_loop.loop import ControlLoop
from control_loop.parts import LoopLinks
from radix_cache.host_index import HostIndex
from srt.core.config import Config
from srt.core.loop_thread import Loop, LoopThread
from srt.core.messages import EngineReady
from srt.core.port import ControlPort
from srt.core.queues import Doorbell
from srt.core.serial_loop import SerialLoop
from srt.server.cache_store.store import CacheStore

log = logging.getLogger(__name__)


class EngineCore:
    """A loaded model with its two loops, on two threads or in turn on one.

    Thread: any may `start` and `stop`. `on_failure` is called in the thread of a loop that raised; the engine is lost
    then, and whoever made it must tell all who wait.
    """

    def __init__(
        self,
        config: Config,
        loaded: LoadedModel,
        port_factory: Callable[[Doorbell], ControlPort],
        on_failure: Callable[[BaseException], None],
        load_seconds: float,
    ) -> None:
        self._loaded = loaded
        self._helper: LoopThread | None = None
        links = LoopLinks.create()
        self._port = port_factory(links.doorbell)
        num_slots = loaded.num_slots - 1
        limits = Limits(
            vocab_size=loaded.vocab_size,
            context_length=loaded.context_length,
            max_total_tokens=loaded.num_pages * loaded.page_size,
            eos_token_ids=frozenset(loaded.eos_token_ids),
        )
        self._store = _open_store(config, loaded, links.doorbell)
        saving = self._store.links if self._store is not None else None
        control = ControlLoop(
            config, limits, loaded.num_pages, self._port, links, saving=saving, host_index=_host_index(loaded)
        )
        compute = ComputeLoop(loaded.runner, num_slots, links.commands, links.results, links.doorbell)
        overlap = _resolve_overlap(config, loaded)
        loops: dict[str, Loop] = (
            {"control": control, "compute": compute} if overlap else {"engine": SerialLoop(control, compute)}
        )
        self._threads = [LoopThread(name, loop, on_failure) for name, loop in loops.items()]
        restored = 0
        if self._store is not None:
            self._helper = LoopThread("save", self._store.helper, on_failure)
            restored = self._store.restore(control.restore, loaded.runner.copy_pages)
        self.ready = EngineReady(
            model=loaded.name,
            dtype=loaded.dtype,
            device=loaded.device,
            runner=loaded.runner.name,
            overlap=overlap,
            vocab_size=limits.vocab_size,
            context_length=limits.context_length,
            max_total_tokens=limits.max_total_tokens,
            page_size=loaded.page_size,
            max_running_requests=num_slots,
            load_seconds=load_seconds,
            restored_tokens=restored,
        )

    @classmethod
    def build(
        cls,
        config: Config,
        port_factory: Callable[[Doorbell], ControlPort],
        on_failure: Callable[[BaseException], None],
    ) -> EngineCore:
        """Loads the model, which may take seconds, and wires the loops; `start` sets them going.

        Raises:
            ModelError, ConfigError: as `load_runner`.
        """
        started = time.monotonic()
        loaded = load_runner(config)
        return cls(config, loaded, port_factory, on_failure, time.monotonic() - started)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        if self._helper is not None:
            self._helper.start()

    def stop(self, timeout: float) -> bool:
        """Waits for the loops to end, after the port was closed; False when one of them has not within `timeout`."""
        deadline = time.monotonic() + timeout
        ended = all(thread.join(max(0.0, deadline - time.monotonic())) for thread in self._threads)
        if ended:
            self._loaded.runner.close()
        if ended and self._store is not None and self._helper is not None:
            self._store.stop()
            ended = self._helper.join(max(0.0, deadline - time.monotonic()))
        return ended

    def __repr__(self) -> str:
        return f"EngineCore({self.ready.model}, {self._threads})"


def _open_store(config: Config, loaded: LoadedModel, doorbell: Doorbell) -> CacheStore | None:
    if config.cache.cache_dir is None or loaded.host is None or loaded.identity is None:
        return None
    options = config.cache
    return CacheStore(
        config.cache.cache_dir,
        options.cache_dir_gb,
        loaded.identity,
        loaded.host.pages[: loaded.num_save_pages],
        doorbell,
    )


def _host_index(loaded: LoadedModel) -> HostIndex | None:
    if loaded.host is None or loaded.host.num_pages == loaded.num_save_pages:
        return None
    return HostIndex(loaded.num_save_pages, loaded.host.num_pages - loaded.num_save_pages)


def _resolve_overlap(config: Config, loaded: LoadedModel) -> bool:
    """Two threads overlap only where a step is one call that leaves the GIL alone."""
    asked = config.schedule.overlap
    if asked == "on" and not loaded.runner.one_call:
        log.warning(
            "--overlap on with the %s runner: its steps are many Python calls, two threads will fight for the GIL; "
            "--overlap auto runs both loops in turn",
            loaded.runner.name,
        )
    return asked == "on" or (asked == "auto" and loaded.runner.one_call)
