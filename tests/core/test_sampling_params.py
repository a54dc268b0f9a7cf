"""Ranges of sampling parameters."""

from __future__ import annotations

import math

import pytest

from srt.core.errors import InvalidRequest
from srt.core.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(temperature=math.nan), "temperature"),
        (SamplingParams(temperature=math.inf), "temperature"),
        (SamplingParams(temperature=-0.1), "temperature"),
        (SamplingParams(temperature=1e308), "temperature"),
        (SamplingParams(top_p=0.0), "top_p"),
        (SamplingParams(top_p=1.5), "top_p"),
        (SamplingParams(min_p=math.nan), "min_p"),
        (SamplingParams(top_k=-2), "top_k"),
        (SamplingParams(max_new_tokens=-1), "max_new_tokens"),
        (SamplingParams(seed=-1), "seed"),
        (SamplingParams(stop=("",)), "stop"),
        (SamplingParams(stop=("x",) * 33), "stop"),
        (SamplingParams(stop_token_ids=(100,)), "stop_token_ids"),
    ],
)
def test_a_bad_value_is_refused_and_its_field_named(params: SamplingParams, field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        params.validate(vocab_size=100)
    assert refusal.value.field == field
    assert field in refusal.value.message


def test_edges_are_accepted() -> None:
    SamplingParams(
        max_new_tokens=0,
        temperature=0.0,
        top_p=1.0,
        min_p=1.0,
        top_k=0,
        stop=("x",) * 32,
        stop_token_ids=(99,),
    ).validate(vocab_size=100)


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1e-30}, {"top_k": 1}])
def test_what_counts_as_greedy(params: dict[str, float]) -> None:
    assert SamplingParams(**params).is_greedy  # type: ignore[arg-type]
