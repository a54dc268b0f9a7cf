"""Every option of the server: composed frozen dataclasses, from which the command line and the docs are derived.

A field's metadata holds its help text, its allowed values, and the rooms that read it need nothing else. Nothing
here is read at import; a `Config` is made once by the command line or by `Engine` and handed down.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from srt.core.errors import ConfigError

Overlap = Literal["auto", "on", "off"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Policy = Literal["fcfs", "lpm"]
Eviction = Literal["lru", "lfu", "fifo", "mru", "filo", "slru"]
LogLevel = Literal["debug", "info", "warning", "error"]

MAX_COMPUTE_THREADS = 1024
MIN_WATCHDOG_SECONDS = 1.0
"""An engine with work gives a sign of life each second."""


def option(default: Any, text: str, *, unit: str = "", metavar: str = "") -> Any:
    """A dataclass field that is also a command-line option: ``snake_case`` becomes ``--kebab-case``."""
    return field(default=default, metadata={"help": text, "unit": unit, "metavar": metavar})


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model, and how it is held."""

    model: str = option(
        "smollm2-135m-instruct",
        "a GGUF file, a Hugging Face directory, a hub id, or the name of the default model",
        metavar="PATH|ID",
    )
    served_model_name: str | None = option(
        None, "name in API answers (default: the model's own)", metavar="NAME"
    )
    revision: str | None = option(None, "hub revision to fetch", metavar="REV")
    dtype: DType = option("auto", "number format of weights and KV; auto: the fastest that is right here")
    context_length: int | None = option(
        None, "longest prompt + output; default: what the model allows", unit="tokens"
    )
    chat_template: str | None = option(
        None, "file with a jinja chat template to use instead of the model's", metavar="FILE"
    )
    compute_threads: int | None = option(None, "CPU threads of a forward step; default: all cores")


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """The KV pool and the radix cache over it."""

    page_size: int = option(16, "tokens in one KV page", unit="tokens")
    max_total_tokens: int | None = option(
        None, "size of the KV pool; default: from --mem-fraction", unit="tokens"
    )
    mem_fraction: float = option(0.3, "share of the memory that is free after loading to give to the KV pool")
    radix_cache: bool = option(True, "keep the KV of finished requests and share common prefixes")
    eviction_policy: Eviction = option("lru", "which cached prefixes go first when memory is short")


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """How the control loop shares out steps and memory, and how the two loops run."""

    schedule_policy: Policy = option(
        "fcfs", "order of waiting requests: first come first served, or longest cached prefix first"
    )
    chunked_prefill_size: int = option(512, "prompt tokens computed in one step at most", unit="tokens")
    max_step_tokens: int = option(
        1024, "tokens in one step at most, prompts and decodes together", unit="tokens"
    )
    max_running_requests: int = option(64, "requests that hold KV memory at once at most")
    max_queued_requests: int = option(1024, "requests that wait at most; more are refused with 503")
    overlap: Overlap = option(
        "auto", "two threads (on), both loops in turn on one (off), or as the runner needs (auto)"
    )
    watchdog_timeout: float = option(
        300.0, "a step without a result for this long counts as a dead engine", unit="seconds"
    )
    max_unsent_tokens: int = option(
        16384,
        "output that may wait for a client that does not read; beyond it the request is aborted",
        unit="tokens",
    )


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The HTTP side."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(30000, "TCP port to listen on")
    log_level: LogLevel = option("info", "least important log lines to print")
    log_requests: bool = option(False, "one log line per finished request: id, counts, times, finish reason")
    drain_timeout: float = option(30.0, "on SIGTERM, how long running requests may go on", unit="seconds")
    max_restarts: int = option(3, "times a dead engine process is started again before the server gives up")


@dataclass(frozen=True, slots=True)
class Config:
    """All options. Immutable; `validate` is called once where it is made."""

    model: ModelOptions = field(default_factory=ModelOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    server: ServerOptions = field(default_factory=ServerOptions)

    @classmethod
    def from_flat(cls, **values: object) -> Config:
        """A config from option names without their group: ``Config.from_flat(page_size=1, port=0)``.

        Raises:
            ConfigError: an unknown name, or a value outside its limits.
        """
        config = cls()
        for group in fields(cls):
            options = getattr(config, group.name)
            known = {f.name for f in fields(options)}
            mine = {name: values.pop(name) for name in list(values) if name in known}
            config = replace(config, **{group.name: replace(options, **mine)})
        if values:
            raise ConfigError(f"unknown option {sorted(values)[0]!r}; `twinloop serve --help` lists them")
        config.validate()
        return config

    def validate(self) -> None:
        """Checks each option alone and against the others.

        Raises:
            ConfigError: names the option, its value and what is allowed.
        """
        for group in fields(self):
            for choice in fields(getattr(self, group.name)):
                _check_choice(choice.name, choice.type, getattr(getattr(self, group.name), choice.name))
        cache, schedule, server = self.cache, self.schedule, self.server
        positive = {
            "page_size": cache.page_size,
            "max_total_tokens": cache.max_total_tokens,
            "context_length": self.model.context_length,
            "compute_threads": self.model.compute_threads,
            "chunked_prefill_size": schedule.chunked_prefill_size,
            "max_step_tokens": schedule.max_step_tokens,
            "max_running_requests": schedule.max_running_requests,
            "max_queued_requests": schedule.max_queued_requests,
            "max_unsent_tokens": schedule.max_unsent_tokens,
        }
        for name, value in positive.items():
            least = 2 if name == "context_length" else 1
            if value is not None and value < least:
                raise ConfigError(f"{flag(name)} is {value}, it must be at least {least}")
        for name, seconds, lowest in (
            ("watchdog_timeout", schedule.watchdog_timeout, MIN_WATCHDOG_SECONDS),
            ("drain_timeout", server.drain_timeout, 0.0),
        ):
            if not seconds >= lowest:
                raise ConfigError(f"{flag(name)} is {seconds}, it must be {lowest:g} or more seconds")
        if (self.model.compute_threads or 0) > MAX_COMPUTE_THREADS:
            raise ConfigError(
                f"--compute-threads is {self.model.compute_threads}, it must be at most {MAX_COMPUTE_THREADS}"
            )
        if not 0 < cache.mem_fraction <= 1:
            raise ConfigError(f"--mem-fraction is {cache.mem_fraction}, it must lie in (0, 1]")
        if not 0 <= server.port <= 65535:
            raise ConfigError(f"--port is {server.port}, it must lie in [0, 65535]")
        if server.max_restarts < 0:
            raise ConfigError(f"--max-restarts is {server.max_restarts}, it must be 0 or more")
        self._check_contradictions()

    def _check_contradictions(self) -> None:
        cache, schedule = self.cache, self.schedule
        if schedule.chunked_prefill_size < cache.page_size:
            raise ConfigError(
                f"--chunked-prefill-size {schedule.chunked_prefill_size} is less than --page-size "
                f"{cache.page_size}: a chunk must hold a whole page"
            )
        if schedule.max_step_tokens < schedule.max_running_requests + cache.page_size:
            raise ConfigError(
                f"--max-step-tokens {schedule.max_step_tokens} is less than --max-running-requests "
                f"{schedule.max_running_requests} + --page-size {cache.page_size}: prompts could starve"
            )
        if cache.max_total_tokens is not None and cache.max_total_tokens < cache.page_size:
            raise ConfigError(
                f"--max-total-tokens {cache.max_total_tokens} is less than one page of {cache.page_size} tokens"
            )


def flag(name: str) -> str:
    """The command-line spelling of an option's name."""
    return "--" + name.replace("_", "-")


def choices_of(annotation: object) -> tuple[str, ...] | None:
    """The allowed values of a Literal option, None for another kind."""
    # Annotations are strings here (PEP 563); only this module's Literal aliases are choices.
    alias = globals().get(str(annotation))
    return get_args(alias) or None if alias is not None else None


def _check_choice(name: str, annotation: object, value: object) -> None:
    allowed = choices_of(annotation)
    if allowed is not None and value not in allowed:
        raise ConfigError(f"{flag(name)} is {value!r}, allowed are {', '.join(allowed)}")
