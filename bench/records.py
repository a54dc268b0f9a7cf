"""One request as its client saw it, and the figures of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.report import Distribution, Errors, Figure
from bench.summary import Summary

MILLISECONDS = 1000.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed: `kind` is the server's label of its error, or the client's name for what it saw."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request from its sending to its end. Times in seconds.

    Attributes:
        seconds: from the sending to the last token.
        first_token_seconds: from the sending to the first token; None where the answer was not streamed.
        token_gaps: time between two tokens, one for each token but the first. Tokens that come together share the time
            since the ones before evenly; those that come with the first have 0.
    """

    seconds: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_ids: tuple[int, ...] = ()
    first_token_seconds: float | None = None
    token_gaps: tuple[float, ...] = ()
    failure: Failure | None = None


def failed(kind: str, message: str, seconds: float = 0.0) -> RequestRecord:
    return RequestRecord(seconds, failure=Failure(kind, message))


def errors_of(records: Sequence[RequestRecord]) -> Errors:
    failures = [record.failure for record in records if record.failure is not None]
    return Errors.of([(failure.kind, failure.message) for failure in failures])


def throughput_figures(records: Sequence[RequestRecord], duration: float) -> list[Figure]:
    """Counts and rates of the successful requests over `duration` seconds."""
    good = [record for record in records if record.failure is None]
    prompt = sum(record.prompt_tokens for record in good)
    cached = sum(record.cached_tokens for record in good)
    output = sum(len(record.output_ids) for record in good)
    hit_rate = cached / prompt if prompt else None

    def per_second(count: float) -> float | None:
        return count / duration if good and duration > 0 else None

    return [
        Figure("Successful requests", "successful_requests", len(good)),
        Figure("Failed requests", "failed_requests", len(records) - len(good)),
        Figure("Benchmark duration (s)", "duration_s", duration),
        Figure("Total input tokens", "input_tokens", prompt),
        Figure("Total generated tokens", "output_tokens", output),
        Figure("Request throughput (req/s)", "request_req_s", per_second(len(good))),
        Figure("Input token throughput (tok/s)", "input_tok_s", per_second(prompt)),
        Figure("Output token throughput (tok/s)", "output_tok_s", per_second(output)),
        Figure("Total token throughput (tok/s)", "total_tok_s", per_second(prompt + output)),
        Figure("Concurrency (mean)", "concurrency_mean", per_second(sum(record.seconds for record in good))),
        Figure("Cached prompt tokens", "cached_tokens", cached),
        Figure("Cache hit rate", "cache_hit_rate", hit_rate, None if hit_rate is None else f"{hit_rate:.1%}"),
    ]


def streaming_distributions(records: Sequence[RequestRecord]) -> list[Distribution]:
    """TTFT, ITL (over all gaps of all requests), TPOT and E2E (one value for each request).

    TPOT of a request is the time from its first to its last token over the tokens behind the first.
    """
    good = [record for record in records if record.failure is None]
    first = [record.first_token_seconds for record in good if record.first_token_seconds is not None]
    gaps = [gap for record in good for gap in record.token_gaps]
    per_token = [sum(record.token_gaps) / len(record.token_gaps) for record in good if record.token_gaps]
    return [
        milliseconds("TTFT", "ttft", first),
        milliseconds("ITL", "itl", gaps),
        milliseconds("TPOT", "tpot", per_token),
        latency_distribution(records),
    ]


def latency_distribution(records: Sequence[RequestRecord]) -> Distribution:
    return milliseconds("E2E", "e2e", [record.seconds for record in records if record.failure is None])


def milliseconds(label: str, key: str, seconds: Sequence[float]) -> Distribution:
    return Distribution(label, key, "ms", Summary.of([value * MILLISECONDS for value in seconds]))
