"""A request that is retracted behind any of its tokens gives the same tokens, whatever is done to its logits."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
import torch

from compute_loop.runner.hash_model import HashRunner, generate, next_token
from compute_loop.sampler import SlotSampling, sample
from control_loop.req import Phase
from srt.core.messages import Int32Array
from srt.core.sampling_params import SamplingParams
from tests.control_loop.corner import Witness, finish_all, prompt
from tests.rig import Answer, Rig

VOCAB: Final = 101
GREEDY: Final = SamplingParams(temperature=0.0)
PARAMS: Final[dict[str, dict[str, Any]]] = {
    "greedy": {"temperature": 0.0},
    "filters": {"temperature": 1.3, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "seed": 7},
    "min_p": {"temperature": 0.8, "min_p": 0.05, "seed": 2**40},
}


def sampled_token(token_ids: Int32Array, params: SamplingParams, vocab_size: int) -> int:
    """The real sampler, over logits in which the hash of all tokens is the likeliest and others come close."""
    peak = next_token(token_ids, GREEDY, vocab_size)
    logits = 3.0 * torch.cos(torch.arange(vocab_size, dtype=torch.float32) - peak)
    logits[peak] += 1.0
    state = SlotSampling(2, vocab_size, torch.device("cpu"))
    state.set(1, params)
    return int(sample(logits[None], torch.tensor([1]), torch.tensor([len(token_ids)]), state))


def retract_now(rig: Rig, answer: Answer) -> bool:
    """False when the request holds no memory now."""
    req = rig.control._live.get(answer.request.key)
    if req is None or req.phase not in (Phase.PREFILLING, Phase.DECODING):
        return False
    rig.control._outputs.retract(req)
    return rig.control._outputs.send_drops()


def oracle(answer: Answer) -> list[int]:
    params = answer.request.params
    stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else {0})
    return generate(answer.request.token_ids.tolist(), params, VOCAB, stops, sampled_token)


def rig_with_sampler(page_size: int, asynchronous: bool) -> Rig:
    num_pages = 64 // page_size
    runner = HashRunner(3, num_pages, page_size, 256, VOCAB, asynchronous, choose=sampled_token)
    return Rig(page_size=page_size, num_pages=num_pages, max_running=3, vocab=VOCAB, runner=runner)


@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("page_size", [1, 4])
def test_corner_10_a_retraction_behind_any_token_changes_no_token(
    page_size: int, asynchronous: bool, kind: str
) -> None:
    """Once behind each token, with another row beside it; stop ids are on, EOS ends one of the two."""
    first = 10
    free = SamplingParams(max_new_tokens=30, ignore_eos=True, **PARAMS[kind])
    expected = generate(prompt(9), free, VOCAB, frozenset(), sampled_token)
    stop = next(
        token for place, token in enumerate(expected) if place >= first and token not in expected[:place]
    )
    end = expected.index(stop) + 1
    unseen = next(token for token in range(VOCAB) if token not in expected)
    for place in range(end + 1):
        rig = rig_with_sampler(page_size, asynchronous)
        victim = rig.submit(prompt(9), 30, ignore_eos=True, stop_token_ids=(stop, unseen), **PARAMS[kind])
        other = rig.submit(prompt(9, start=4), 12, **PARAMS[kind])
        retracted = False
        while not victim.ended:
            rig.both()
            retracted = retracted or (len(victim.token_ids) == place and retract_now(rig, victim))
        assert retracted or place == end
        rig.run()
        assert victim.token_ids == expected[:end], f"retracted behind token {place}"
        assert victim.finish is not None and victim.finish.matched == stop
        assert victim.num_retractions == retracted
        assert other.token_ids == oracle(other)
        rig.check_drained()


@pytest.mark.parametrize("asynchronous", [True, False])
def test_corner_10_a_row_that_is_retracted_behind_every_token_comes_to_its_end(asynchronous: bool) -> None:
    rig = Rig(num_pages=32, vocab=VOCAB, asynchronous=asynchronous)
    answer = rig.submit(prompt(9), 14, ignore_eos=True)
    seen = 0
    while not answer.ended:
        rig.both()
        if len(answer.token_ids) > seen and retract_now(rig, answer):
            seen = len(answer.token_ids)
    finish_all(rig)
    assert answer.num_retractions >= 12


@pytest.mark.parametrize("asynchronous", [True, False])
def test_corner_10_a_retraction_at_any_chunk_keeps_what_was_settled(asynchronous: bool) -> None:
    for number in range(1, 10):
        rig = Rig(num_pages=32, chunk=4, vocab=VOCAB, asynchronous=asynchronous)
        witness = Witness(rig.runner)
        answer = rig.submit(prompt(33), 3, ignore_eos=True)
        while len(witness.batches) < number:
            rig.both()
        assert retract_now(rig, answer) or answer.token_ids
        finish_all(rig)
        computed = sum(len(batch.chunk_ids) for batch in witness.batches)
        assert computed <= 33 + 4, (
            f"retracted at chunk {number}: {computed} tokens were computed, most of them twice"
        )


def test_the_filters_decide() -> None:
    """Or the tests above would prove nothing about them."""
    seen = np.array(prompt(9), np.int32)
    for kind, params in PARAMS.items():
        chosen = {
            sampled_token(seen, SamplingParams(**{**params, "seed": seed}), VOCAB) for seed in range(30)
        }
        assert (len(chosen) == 1) == (kind == "greedy")
        wild = {
            sampled_token(seen, SamplingParams(temperature=params["temperature"], seed=seed), VOCAB)
            for seed in range(200)
        }
        assert chosen <= wild or kind == "greedy"
