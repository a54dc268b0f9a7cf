"""Every family against transformers, and against the dense oracle under any schedule, on tiny random models."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.compute_loop.steps import StepDriver, load_small
from tests.compute_loop.tiny_models import write_hf_model
from tests.oracle import DenseOracle

LLAMA3_ROPE: dict[str, object] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama-tied-mha": ("LlamaForCausalLM", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama-biased": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama3-rope": ("LlamaForCausalLM", {"rope_theta": 500.0, "rope_scaling": LLAMA3_ROPE}),
    "llama-linear-rope": ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "smollm2-heads": (
        "LlamaForCausalLM",
        {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 144, "tie_word_embeddings": True},
    ),
    "mistral": ("MistralForCausalLM", {}),
    "mistral-window": ("MistralForCausalLM", {"sliding_window": 11}),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2-window": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0},
    ),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
}
"""Name -> architecture and what differs from the tiny configuration."""


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    architecture, changes = MODELS[request.param]
    root = tmp_path_factory.mktemp(request.param)
    write_hf_model(root, architecture, seed=3, **changes)
    return root


def random_prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 384), k=length)


def test_logits_and_greedy_tokens_equal_transformers(model: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    driver = StepDriver(load_small(model))
    for slot, length in enumerate((1, 16, 45), start=1):
        prompt = random_prompt(length, length)
        with torch.inference_mode():
            expected = reference(torch.tensor([prompt])).logits[0, -1]
            tokens = reference.generate(
                torch.tensor([prompt]), max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=0
            )
        driver.begin(slot, prompt)
        driver.step({slot: length})
        assert driver.last_handle is not None
        torch.testing.assert_close(driver.last_handle.logits[0], expected, atol=1e-4, rtol=0)
        for _ in range(23):
            driver.step(decodes=[slot])
        generated = tokens[0, length:].tolist()
        assert driver.sequences[slot].output == generated


def test_the_oracle_equals_transformers(model: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    prompt = random_prompt(60, 1)
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0]
    oracle = DenseOracle.load(str(model))
    torch.testing.assert_close(oracle.logits(prompt), expected, atol=1e-4, rtol=0)
    output = oracle.greedy(prompt, 5)
    assert oracle.is_greedy(prompt, output)
    assert not oracle.is_greedy(prompt, [*output[:2], (output[2] + 1) % 384, *output[3:]])


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_chunked_or_whole_gives_the_same_tokens(model: Path, page_size: int) -> None:
    oracle = DenseOracle.load(str(model))
    driver = StepDriver(load_small(model, page_size=page_size), seed=page_size)
    prompt = random_prompt(50, 2)
    expected = oracle.greedy(prompt, 8)
    for slot, chunk in enumerate((1, 7, 16, 50), start=1):
        assert driver.generate(slot, prompt, 8, chunk) == expected, f"chunks of {chunk}"
        driver.end(slot)


def test_mixed_steps_give_each_sequence_its_own_tokens(model: Path) -> None:
    seed = 5
    oracle = DenseOracle.load(str(model))
    driver = StepDriver(load_small(model, page_size=4), seed)
    rng = random.Random(seed)
    prompts = {slot: random_prompt(rng.randint(1, 60), seed * 100 + slot) for slot in range(1, 8)}
    waiting = list(prompts)
    for _ in range(60):
        for slot in waiting[: rng.randint(0, 2)]:
            waiting.remove(slot)
            driver.begin(slot, prompts[slot])
        chunks, decodes = {}, []
        for slot, life in driver.sequences.items():
            left = life.prompt_len - life.kv_len
            if left > 0:
                chunks[slot] = rng.randint(1, left)
            elif rng.random() < 0.8 and len(life.output) < 12:
                decodes.append(slot)
        rng.shuffle(decodes)
        if chunks or decodes:
            driver.step(chunks, decodes)
    outputs = {slot: driver.sequences[slot].output for slot in prompts}
    assert all(outputs.values()), f"seed {seed}"
    wrong = [slot for slot, output in outputs.items() if not oracle.is_greedy(prompts[slot], output)]
    assert wrong == [], f"seed {seed}"


def test_a_prefix_in_another_sequences_pages_reads_the_same(model: Path) -> None:
    oracle = DenseOracle.load(str(model))
    driver = StepDriver(load_small(model, page_size=4))
    prompt, other = random_prompt(40, 8), random_prompt(9, 9)
    driver.generate(1, prompt, 3)
    together = prompt[:24] + other
    driver.begin(2, together, cached_from=1, cached=24)
    driver.step({2: len(other)}, decodes=[1])
    for _ in range(5):
        driver.step(decodes=[2, 1])
    assert oracle.is_greedy(together, driver.sequences[2].output)
    assert oracle.is_greedy(prompt, driver.sequences[1].output)


def test_rows_of_one_step_share_the_pages_that_one_of_them_writes(model: Path) -> None:
    """A follower reads in the same step what its leader computes: all stores of a layer come before its attention."""
    oracle = DenseOracle.load(str(model))
    driver = StepDriver(load_small(model, page_size=4))
    leader, own = random_prompt(20, 10), random_prompt(5, 11)
    driver.begin(1, leader)
    driver.grow(1, 20)
    driver.begin(2, leader[:16] + own, cached_from=1, cached=16)
    driver.step({2: len(own), 1: 20})
    driver.step(decodes=[1, 2])
    assert oracle.is_greedy(leader[:16] + own, driver.sequences[2].output)
    assert oracle.is_greedy(leader, driver.sequences[1].output)
