"""Every option of the server: composed frozen dataclasses, from which the command line and the docs are derived.

A field's metadata holds its help text, its allowed values, and the rooms that read it need nothing else. Nothing
here is read at import; a `Config` is made once by the command line or by `Engine` and handed down.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from srt.core.errors import ConfigError
from srt.core.event_options import EventOptions
from srt.core.option import ANY, COUNT, NOT_NEGATIVE, POSITIVE, Range, flag, option

Overlap = Literal["auto", "on", "off"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Policy = Literal["fcfs", "lpm", "dfs-weight", "lof", "shortest-prefill-first", "random", "priority"]
Eviction = Literal["lru", "lfu", "fifo", "mru", "filo", "slru", "priority"]
LogLevel = Literal["debug", "info", "warning", "error"]


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
        None, "longest prompt + output; default: what the model allows", unit="tokens", allowed=Range(2)
    )
    chat_template: str | None = option(
        None, "file with a jinja chat template to use instead of the model's", metavar="FILE"
    )
    compute_threads: int | None = option(
        None, "CPU threads of a forward step; default: all cores", allowed=Range(1, 1024)
    )


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """The KV pool and the radix cache over it."""

    page_size: int = option(16, "tokens in one KV page", unit="tokens", allowed=COUNT)
    max_total_tokens: int | None = option(
        None, "size of the KV pool; default: from --mem-fraction", unit="tokens", allowed=COUNT
    )
    mem_fraction: float = option(
        0.3,
        "share of the memory that is free after loading to give to the KV pool",
        allowed=Range(0, 1, above=True),
    )
    radix_cache: bool = option(True, "keep the KV of finished requests and share common prefixes")
    eviction_policy: Eviction = option("lru", "which cached prefixes go first when memory is short")
    cache_dir: str | None = option(
        None,
        "directory that keeps the prefix cache between runs, one for each server: it is written on a clean shutdown "
        "and by POST /save_cache, and read at start when model, dtype and page size are the same; default: none",
        metavar="DIR",
    )
    cache_dir_gb: float = option(
        10.0,
        "size of the file in --cache-dir at most, the most recently used prefixes first; while it is written, the one "
        "before is still there",
        unit="GB",
        allowed=Range(0, 1e6, above=True),
    )
    host_cache_gb: float = option(
        0.0,
        "host memory for cached prefixes that the KV pool has no room for: they come back on a hit; useful where the "
        "pool is in a device's memory; 0: none",
        unit="GB",
        allowed=Range(0, 1e6),
    )


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """How the control loop shares out steps and memory, and how the two loops run."""

    schedule_policy: Policy = option(
        "fcfs",
        "order of waiting requests: first come first served, longest cached prefix first (lpm), along the tree with "
        "the busiest branch first (dfs-weight), longest output first (lof), fewest tokens to compute first, random, or "
        "highest priority first; nobody is overtaken for ever",
    )
    preemption_threshold: int | None = option(
        None,
        "with --schedule-policy priority: a waiting request may take the memory of running ones whose priority is "
        "lower by more than this, if that frees enough for it; default: never",
        allowed=NOT_NEGATIVE,
    )
    schedule_conservativeness: float = option(
        1.0,
        "how much memory an admission leaves to the future output of running requests; less admits earlier, and "
        "more requests must give their memory back and wait again",
        allowed=Range(0, 10),
    )
    chunked_prefill_size: int = option(
        512, "prompt tokens computed in one step at most", unit="tokens", allowed=COUNT
    )
    max_step_tokens: int = option(
        1024, "tokens in one step at most, prompts and decodes together", unit="tokens", allowed=COUNT
    )
    max_running_requests: int = option(64, "requests that hold KV memory at once at most", allowed=COUNT)
    max_queued_requests: int = option(
        1024,
        "requests that wait at most; more are refused with 503, or with --schedule-policy priority the least "
        "important one is",
        allowed=COUNT,
    )
    waiting_timeout: float | None = option(
        None,
        "a request that waits longer in the queue ends with 503; default: never",
        unit="seconds",
        allowed=POSITIVE,
    )
    running_timeout: float | None = option(
        None,
        "a request that runs longer, from its start, ends with 503; default: never",
        unit="seconds",
        allowed=POSITIVE,
    )
    overlap: Overlap = option(
        "auto", "two threads (on), both loops in turn on one (off), or as the runner needs (auto)"
    )
    # An engine with work gives a sign of life each second: less than that cannot be asked.
    watchdog_timeout: float = option(
        300.0,
        "a step without a result for this long counts as a dead engine",
        unit="seconds",
        allowed=Range(1),
    )
    max_unsent_tokens: int = option(
        16384,
        "output that may wait for a client that does not read; beyond it the request is aborted",
        unit="tokens",
        allowed=COUNT,
    )


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The HTTP side."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(30000, "TCP port to listen on", allowed=Range(0, 65535))
    log_level: LogLevel = option("info", "least important log lines to print")
    log_requests: bool = option(False, "one log line per finished request: id, counts, times, finish reason")
    drain_timeout: float = option(
        30.0, "on SIGTERM, how long running requests may go on", unit="seconds", allowed=NOT_NEGATIVE
    )
    cache_save_timeout: float = option(
        60.0,
        "with --cache-dir: how long a shutdown waits for the cache to be written; then the old file stays",
        unit="seconds",
        allowed=NOT_NEGATIVE,
    )
    max_restarts: int = option(
        3, "times a dead engine process is started again before the server gives up", allowed=NOT_NEGATIVE
    )


@dataclass(frozen=True, slots=True)
class Config:
    """All options. Immutable; `validate` is called once where it is made."""

    model: ModelOptions = field(default_factory=ModelOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    events: EventOptions = field(default_factory=EventOptions)
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
            options = getattr(self, group.name)
            for choice in fields(options):
                _check_option(choice, getattr(options, choice.name))
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
        if schedule.preemption_threshold is not None and schedule.schedule_policy != "priority":
            raise ConfigError(
                f"--preemption-threshold {schedule.preemption_threshold} needs --schedule-policy priority, it is "
                f"{schedule.schedule_policy}"
            )
        if cache.cache_dir is not None and not cache.radix_cache:
            raise ConfigError("--cache-dir needs the radix cache: leave out --no-radix-cache")
        if cache.host_cache_gb and not cache.radix_cache:
            raise ConfigError("--host-cache-gb needs the radix cache: leave out --no-radix-cache")
        self.events.check(cache.radix_cache)
        if cache.max_total_tokens is not None and cache.max_total_tokens < cache.page_size:
            raise ConfigError(
                f"--max-total-tokens {cache.max_total_tokens} is less than one page of {cache.page_size} tokens"
            )


def choices_of(annotation: object) -> tuple[str, ...] | None:
    """The allowed values of a Literal option, None for another kind."""
    # Annotations are strings here (PEP 563); only this module's Literal aliases are choices.
    alias = globals().get(str(annotation))
    return get_args(alias) or None if alias is not None else None


def _check_option(choice: Field[Any], value: Any) -> None:
    allowed = choices_of(choice.type)
    if allowed is not None and value not in allowed:
        raise ConfigError(f"{flag(choice.name)} is {value!r}, allowed are {', '.join(allowed)}")
    limits: Range = choice.metadata["allowed"]
    if limits is ANY or value is None:
        return
    if not isinstance(value, int | float) or value not in limits:
        unit = choice.metadata["unit"]
        raise ConfigError(f"{flag(choice.name)} is {value!r}, it must {limits}{' ' + unit if unit else ''}")
