"""Figures by hand: percentiles, rates, latencies, errors."""

from __future__ import annotations

import pytest

from bench.records import (
    RequestRecord,
    errors_of,
    failed,
    latency_distribution,
    streaming_distributions,
    throughput_figures,
)
from bench.summary import Summary

GOOD = [
    RequestRecord(
        seconds=1.0,
        prompt_tokens=10,
        cached_tokens=4,
        output_ids=(1, 2, 3),
        first_token_seconds=0.4,
        token_gaps=(0.1, 0.5),
    ),
    RequestRecord(
        seconds=3.0,
        prompt_tokens=30,
        cached_tokens=16,
        output_ids=(5,),
        first_token_seconds=3.0,
        token_gaps=(),
    ),
]
BAD = [failed("queue_full", "65 wait", 0.2), failed("connect", "refused"), failed("queue_full", "66 wait")]


def test_percentiles_interpolate_between_neighbours() -> None:
    summary = Summary.of(list(range(1, 101)))
    assert summary is not None
    # Position of p90 among 1..100: 0.9 * 99 = 89.1 behind the first, so 90.1.
    assert (summary.p50, summary.p90, summary.p95, summary.p99) == pytest.approx((50.5, 90.1, 95.05, 99.01))
    assert (summary.mean, summary.min, summary.max) == (50.5, 1, 100)


def test_percentiles_do_not_depend_on_order() -> None:
    assert Summary.of([3.0, 1.0, 2.0]) == Summary.of([1.0, 2.0, 3.0])
    two = Summary.of([10.0, 20.0])
    assert two is not None
    assert (two.p50, two.p90) == pytest.approx((15, 19))


def test_one_value_is_every_percentile_and_none_is_no_summary() -> None:
    assert Summary.of([2.5]) == Summary(2.5, 2.5, 2.5, 2.5, 2.5, 2.5, 2.5)
    assert Summary.of([]) is None


def test_rates_count_successful_requests_only() -> None:
    figures = {figure.key: figure.value for figure in throughput_figures(GOOD + BAD, 4.0)}
    assert figures == {
        "successful_requests": 2,
        "failed_requests": 3,
        "duration_s": 4.0,
        "input_tokens": 40,
        "output_tokens": 4,
        "request_req_s": 0.5,
        "input_tok_s": 10.0,
        "output_tok_s": 1.0,
        "total_tok_s": 11.0,
        "concurrency_mean": 1.0,
        "cached_tokens": 20,
        "cache_hit_rate": 0.5,
    }


def test_without_a_success_there_are_no_rates() -> None:
    figures = {figure.key: figure.value for figure in throughput_figures(BAD, 4.0)}
    assert (figures["successful_requests"], figures["failed_requests"]) == (0, 3)
    assert figures["output_tok_s"] is None
    assert figures["cache_hit_rate"] is None
    assert latency_distribution(BAD).summary is None


def test_latencies_are_of_successful_requests_in_milliseconds() -> None:
    ttft, itl, tpot, e2e = (item.summary for item in streaming_distributions(GOOD + BAD))
    assert ttft is not None and itl is not None and tpot is not None and e2e is not None
    assert (ttft.min, ttft.max) == pytest.approx((400, 3000))
    assert (itl.min, itl.max, itl.mean) == pytest.approx((100, 500, 300))
    # One request has gaps: 0.6 s over two of them.
    assert tpot == Summary.of([300.0])
    assert (e2e.min, e2e.mean) == pytest.approx((1000, 2000))


def test_errors_are_counted_by_kind_with_the_first_message() -> None:
    errors = errors_of(GOOD + BAD)
    assert list(errors.counts.items()) == [("queue_full", 2), ("connect", 1)]
    assert errors.examples == {"queue_full": "65 wait", "connect": "refused"}
    assert errors.total == 3
