"""What Prometheus sees: figures of the engine when somebody asks for them, and latencies seen by the client.

Nothing here runs in a loop of the engine.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from srt.core.messages import EngineStats

PREFIX = "twinloop:"
THROUGHPUT_WINDOW_SECONDS = 10.0

TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
E2E_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

GAUGES: dict[str, str] = {
    "num_running_reqs": "Requests that hold KV memory",
    "num_queue_reqs": "Requests that wait",
    "max_total_num_tokens": "Size of the KV pool in tokens",
    "num_used_tokens": "KV tokens in use, cached ones included",
    "num_cached_tokens": "KV tokens that the radix tree holds",
    "num_host_tokens": "KV tokens that host memory holds for the radix tree",
    "num_free_tokens": "KV tokens that are free",
    "num_locked_tokens": "Cached KV tokens that a live request uses",
}
"""Gauges that are fields of `EngineStats`, with their help."""


class ServerMetrics:
    """Thread: event loop. The server's own registry: counters and histograms of requests."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._engine = _EngineCollector(model, self)
        self.registry.register(self._engine)
        self._model = model
        self._ttft = self._histogram("time_to_first_token_seconds", "Request to first token", TTFT_BUCKETS)
        self._itl = self._histogram("inter_token_latency_seconds", "Between output tokens", ITL_BUCKETS)
        self._e2e = self._histogram("e2e_request_latency_seconds", "From request to its end", E2E_BUCKETS)
        self._finished = Counter(
            PREFIX + "requests_finished",
            "Requests that ended, by finish reason",
            ["model_name", "finish_reason"],
            registry=self.registry,
        )
        self._refused = Counter(
            PREFIX + "requests_refused", "Requests refused", ["model_name", "error"], registry=self.registry
        )
        self._window: deque[tuple[float, int]] = deque()

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(PREFIX + name, text, ["model_name"], buckets=buckets, registry=self.registry)
        return family.labels(self._model)

    def first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def inter_token(self, seconds: float) -> None:
        self._itl.observe(seconds)

    def finished(self, reason: str, seconds: float) -> None:
        self._finished.labels(self._model, reason).inc()
        self._e2e.observe(seconds)

    def refused(self, label: str) -> None:
        self._refused.labels(self._model, label).inc()

    def generated(self, tokens: int) -> None:
        """Counts output tokens for the throughput of the last seconds."""
        now = time.monotonic()
        self._window.append((now, tokens))
        self._trim(now)

    def throughput(self) -> float:
        """Output tokens per second over the last `THROUGHPUT_WINDOW_SECONDS`."""
        self._trim(time.monotonic())
        return sum(tokens for _, tokens in self._window) / THROUGHPUT_WINDOW_SECONDS

    def _trim(self, now: float) -> None:
        while self._window and self._window[0][0] < now - THROUGHPUT_WINDOW_SECONDS:
            self._window.popleft()

    def render(self, stats: EngineStats | None) -> bytes:
        """The text exposition format. `stats` is None while there is no engine to ask."""
        self._engine.stats = stats
        return generate_latest(self.registry)


class _EngineCollector:
    """Thread: event loop. Turns the last `EngineStats` into metric families."""

    def __init__(self, model: str, metrics: ServerMetrics) -> None:
        self._model = model
        self._metrics = metrics
        self.stats: EngineStats | None = None

    def collect(self) -> Iterator[Metric]:
        yield self._gauge("engine_up", "1 when the engine process answers", float(self.stats is not None))
        yield self._gauge("gen_throughput", "Output tokens per second", self._metrics.throughput())
        stats = self.stats
        if stats is None:
            return
        for name, text in GAUGES.items():
            yield self._gauge(name, text, getattr(stats, name))
        yield self._gauge("token_usage", "Share of the KV pool in use", token_usage(stats))
        yield self._gauge("cache_hit_rate", "Share of prompt tokens from the cache", hit_rate(stats))
        for name in EngineStats.__dataclass_fields__:
            if name.endswith("_total"):
                text = name.removesuffix("_total").replace("_", " ").capitalize()
                family = CounterMetricFamily(PREFIX + name, text, labels=["model_name"])
                family.add_metric([self._model], getattr(stats, name))
                yield family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family


def token_usage(stats: EngineStats) -> float:
    """Share of the KV pool that live requests use, in [0, 1]: what is only cached can be taken back."""
    if not stats.max_total_num_tokens:
        return 0.0
    reclaimable = stats.num_cached_tokens - stats.num_locked_tokens
    return 1 - (stats.num_free_tokens + reclaimable) / stats.max_total_num_tokens


def hit_rate(stats: EngineStats) -> float:
    """Share of all prompt tokens so far that came out of the cache, in [0, 1]."""
    return stats.cached_tokens_total / stats.prompt_tokens_total if stats.prompt_tokens_total else 0.0
