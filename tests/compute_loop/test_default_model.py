"""The default model in float32 against transformers, which reads the same GGUF file with its own loader."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from compute_loop.models.files import DEFAULT_MODEL, locate_model
from compute_loop.runner.load import LoadedModel
from tests.compute_loop.steps import StepDriver, load_small

# The whole model, with its real weights, through two implementations: half a minute each.
pytestmark = pytest.mark.slow

NUM_PROMPTS = 20
NUM_TOKENS = 64
SEED = 7


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Of mixed length; one in four is text-like: ids of frequent tokens. Special tokens (ids below 17) are left out."""
    rng = random.Random(SEED)
    lengths = [1, 2, 15, 16, 17, 31, 64, 120, *(rng.randint(3, 90) for _ in range(NUM_PROMPTS - 8))]
    return [
        [rng.randint(17, 1000 if index % 4 == 0 else 49151) for _ in range(length)]
        for index, length in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def reference() -> Any:
    """The model as transformers reads it."""
    read_gguf: Any = load_gguf_checkpoint
    path = str(locate_model(DEFAULT_MODEL).weight_files[0])
    model: Any = LlamaForCausalLM(LlamaConfig(**read_gguf(path)["config"]))
    tensors = read_gguf(path, return_tensors=True, model_to_load=model)["tensors"]
    missing = model.load_state_dict(tensors, strict=False).missing_keys
    assert set(missing) <= {"lm_head.weight"}, "tied to the embedding"
    model.tie_weights()
    return model.eval()


@torch.inference_mode()
def is_greedy(reference: Any, prompt: list[int], output: list[int]) -> bool:
    """Whether each token of `output` is the reference's most likely one behind all before it: so all of it is."""
    logits = reference(torch.tensor([[*prompt, *output[:-1]]])).logits[0, len(prompt) - 1 :]
    return bool(logits.argmax(-1).tolist() == output)


@torch.inference_mode()
def generate(reference: Any, prompt: list[int]) -> list[int]:
    """The reference's own greedy loop, with its own cache."""
    tokens = reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NUM_TOKENS,
        eos_token_id=None,
        do_sample=False,
        pad_token_id=0,
    )
    generated: list[int] = tokens[0, len(prompt) :].tolist()
    return generated


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_small(DEFAULT_MODEL, max_total_tokens=6000, max_running_requests=2 * NUM_PROMPTS)


def test_all_prompts_in_one_batch_give_the_tokens_of_transformers(
    loaded: LoadedModel, prompts: list[list[int]], reference: Any
) -> None:
    """Prompts join one after another, in chunks of 48 at most, while the earlier ones decode."""
    driver = StepDriver(loaded, SEED)
    for slot, prompt in enumerate(prompts, start=1):
        driver.begin(slot, prompt)
        while (life := driver.sequences[slot]).kv_len < len(prompt):
            chunk = min(48, len(prompt) - life.kv_len)
            driver.step({slot: chunk}, decodes=[s for s in range(1, slot) if not done(driver, s)])
    while decodes := [slot for slot in driver.sequences if not done(driver, slot)]:
        driver.step(decodes=decodes)
    outputs = [driver.sequences[slot].output for slot in driver.sequences]
    assert all(len(output) == NUM_TOKENS for output in outputs)
    wrong = [
        index
        for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
        if not is_greedy(reference, prompt, output)
    ]
    assert wrong == [], f"seed {SEED}"


def test_prompts_alone_give_the_tokens_of_transformers(
    loaded: LoadedModel, prompts: list[list[int]], reference: Any
) -> None:
    driver = StepDriver(loaded, SEED + 1)
    for index, chunk in ((5, 7),):
        output = driver.generate(1, prompts[index], NUM_TOKENS, chunk)
        assert output == generate(reference, prompts[index]), f"prompt {index}, seed {SEED}"
        driver.end(1)


def done(driver: StepDriver, slot: int) -> bool:
    return len(driver.sequences[slot].output) >= NUM_TOKENS
