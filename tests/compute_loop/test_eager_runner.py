"""What the eager runner promises beyond right tokens: sampling, masks, times, reset, failure; and loading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from compute_loop.models.config import load_model_config
from compute_loop.models.files import locate_model
from compute_loop.models.program import Embed, Head, Linear, Sample
from compute_loop.models.registry import build_program
from compute_loop.runner.load import DTYPES, resolve_dtype
from compute_loop.runner.workspace import registers_of
from mem_pool.device import has_native_bfloat16
from srt.core.errors import ConfigError
from srt.core.sampling_params import SamplingParams
from srt.core.step_messages import NO_TOKEN
from tests.compute_loop.steps import StepDriver, load_small
from tests.compute_loop.tiny_models import write_hf_model
from tests.oracle import DenseOracle

PROMPT = [5, 9, 200, 17, 33, 61, 7]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("llama")
    write_hf_model(root, seed=1)
    return root


def test_a_row_that_is_not_sampled_says_no_token(model: Path) -> None:
    driver = StepDriver(load_small(model))
    driver.begin(1, PROMPT)
    driver.begin(2, PROMPT)
    tokens = driver.step({1: 3, 2: len(PROMPT)})
    assert tokens.token_ids.tolist()[0] == NO_TOKEN
    assert tokens.token_ids.tolist()[1] == DenseOracle.load(str(model)).greedy(PROMPT, 1)[0]
    assert tokens.busy > 0
    assert tokens.gap >= 0


def test_sampling_a_row_without_logits_is_an_error(model: Path) -> None:
    driver = StepDriver(load_small(model))
    driver.begin(1, PROMPT)
    driver.step({1: 3})
    assert driver.last_handle is not None
    with pytest.raises(ValueError, match=r"rows \[0\] were not to be sampled"):
        driver.runner.sample(driver.last_handle, np.array([0], np.int32), None)


def test_rows_may_be_sampled_apart_and_under_masks(model: Path) -> None:
    driver = StepDriver(load_small(model))
    for slot in (1, 2):
        driver.begin(slot, PROMPT)
    best = int(driver.step({1: len(PROMPT), 2: len(PROMPT)}).token_ids[0])
    handle, runner = driver.last_handle, driver.runner
    assert handle is not None
    before = handle.logits.clone()
    masks = np.ones((1, 384), np.bool_)
    masks[0, best] = False
    runner.sample(handle, np.array([1], np.int32), masks)
    tokens = runner.wait(handle).token_ids.tolist()
    assert tokens[0] == best
    assert tokens[1] == int(before[1].argsort(descending=True)[1])
    assert torch.equal(handle.logits, before)
    driver.sequences[2].token_ids[-1] = tokens[1]
    driver.step(decodes=[1, 2])
    oracle = DenseOracle.load(str(model))
    for slot in (1, 2):
        assert oracle.is_greedy([*PROMPT, tokens[slot - 1]], driver.sequences[slot].output[1:])


def test_a_seeded_row_is_the_same_in_any_slot_batch_and_chunking(model: Path) -> None:
    hot = SamplingParams(temperature=1.5, seed=42)
    outputs = []
    for slot, neighbours, chunk in ((1, 0, 7), (5, 3, 2)):
        driver = StepDriver(load_small(model, page_size=4))
        for other in range(1, neighbours + 1):
            driver.begin(other, PROMPT[other:])
            driver.step({other: len(PROMPT) - other}, params=SamplingParams(temperature=2.0, seed=other))
        driver.begin(slot, PROMPT)
        for start in range(0, len(PROMPT), chunk):
            driver.step({slot: min(chunk, len(PROMPT) - start)}, params=hot)
        for _ in range(9):
            driver.step(decodes=list(driver.sequences))
        outputs.append(driver.sequences[slot].output)
    assert outputs[0] == outputs[1]
    assert outputs[0] != DenseOracle.load(str(model)).greedy(PROMPT, 10)


def test_a_failed_step_leaves_settled_pages_and_the_runner_usable(model: Path) -> None:
    driver = StepDriver(load_small(model, page_size=4))
    driver.generate(1, PROMPT, 2)
    driver.begin(2, [3, 384])
    with pytest.raises(IndexError, match="out of range"):
        driver.step({2: 2})
    driver.runner.reset()
    assert " 0 entries set" in repr(driver.runner)
    driver.sequences.pop(2)
    driver.begin(3, [*PROMPT[:4], 8, 8], cached_from=1, cached=4)
    driver.step({3: 2})
    driver.step(decodes=[3])
    assert DenseOracle.load(str(model)).is_greedy([*PROMPT[:4], 8, 8], driver.sequences[3].output)


def test_bfloat16_runs_and_stays_close(model: Path) -> None:
    exact, rounded = StepDriver(load_small(model)), StepDriver(load_small(model, dtype="bfloat16"))
    for driver in (exact, rounded):
        driver.begin(1, PROMPT)
        driver.begin(2, PROMPT[2:])
        driver.step({1: len(PROMPT)})
        driver.step({2: len(PROMPT) - 2})
    assert rounded.loaded.dtype == "bfloat16"
    assert exact.last_handle is not None and rounded.last_handle is not None
    torch.testing.assert_close(
        rounded.last_handle.logits.float(), exact.last_handle.logits, atol=0.1, rtol=0.05
    )


def test_facts_of_a_loaded_model(model: Path) -> None:
    loaded = load_small(model, page_size=16, served_model_name="tiny", context_length=100)
    assert (loaded.name, loaded.dtype, loaded.device) == ("tiny", "float32", "cpu")
    assert (loaded.num_pages, loaded.page_size, loaded.num_slots) == (128, 16, 9)
    assert (loaded.context_length, loaded.vocab_size, loaded.eos_token_ids) == (100, 384, (2,))
    assert "KVPool(128 pages" in repr(loaded.runner)


def test_a_context_longer_than_the_model_allows_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="--context-length 513 is more than the model allows: 512 tokens"):
        load_small(model, context_length=513)


def test_auto_takes_bfloat16_only_where_the_cpu_multiplies_it() -> None:
    assert resolve_dtype("auto") == (torch.bfloat16 if has_native_bfloat16() else torch.float32)
    assert {resolve_dtype(name) for name in DTYPES} == {torch.float32, torch.bfloat16, torch.float16}


def test_a_program_is_complete(model: Path) -> None:
    """Every tensor of the model is in it, fused ones once, and registers are as wide as their weights."""
    config = load_model_config(locate_model(str(model)))
    program = build_program(config)
    assert isinstance(program.ops[0], Embed) and isinstance(program.ops[-1], Sample)
    named = [
        name
        for op in program.ops
        for field in op.__dataclass_fields__
        for name in getattr(getattr(op, field), "sources", ())
    ]
    tensors = DenseOracle.load(str(model)).weights
    assert sorted(named) == sorted(tensors)
    for op in program.ops:
        if isinstance(op, Linear):
            rows = sum(len(tensors[name]) for name in op.weight.sources)
            assert (rows, tensors[op.weight.sources[0]].shape[1]) == (op.out.width, op.x.width)
    names = [register.name for register in registers_of(program)]
    assert len(names) == len(set(names))
    assert sum(isinstance(op, Head) for op in program.ops) == 1
