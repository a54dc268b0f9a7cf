"""Greedy output on the default model equals Hugging Face transformers on the same weights, by every road."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import LlamaConfig, LlamaForCausalLM

from compute_loop.models.files import DEFAULT_MODEL, locate_model
from srt.server.engine import Engine
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow

NEW = 64
TEXTS = [
    "The capital of France is",
    "def quicksort(items):\n",
    "Once upon a time",
    "Water boils at",
    "1 1 2 3 5 8",
    "Die Hauptstadt von Italien heißt",
    "A haiku about rain:\n",
    "Q: Who wrote Hamlet?\nA:",
    "<html>\n<head>",
    "The three laws of motion say that",
    "To make bread you need",
    "In 1969,",
    "SELECT name FROM",
    "x",
    "日本の首都は",
    "My favourite colour is",
    "The quick brown fox jumps over the lazy dog. " * 4,
    "List of planets: Mercury, Venus,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The mitochondria is the powerhouse of the cell. " * 8 + "This means that",
]
"""20 prompts of 1 to 90 tokens."""

NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "blk": "layers",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Part of a tensor's name in a GGUF file -> in transformers."""


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    """The default model in transformers, read from its file without any of our own code."""
    (file,) = locate_model(DEFAULT_MODEL).weight_files
    reader = GGUFReader(file)
    facts = {name.removeprefix("llama."): field.contents() for name, field in reader.fields.items()}
    config = LlamaConfig(
        vocab_size=facts["vocab_size"],
        hidden_size=facts["embedding_length"],
        intermediate_size=facts["feed_forward_length"],
        num_hidden_layers=facts["block_count"],
        num_attention_heads=facts["attention.head_count"],
        num_key_value_heads=facts["attention.head_count_kv"],
        rms_norm_eps=facts["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": facts["rope.freq_base"]},
        tie_word_embeddings=True,
    )
    heads: dict[str, int] = {"self_attn.q_proj": facts["attention.head_count"]}
    heads["self_attn.k_proj"] = facts["attention.head_count_kv"]
    weights = {}
    for tensor in reader.tensors:
        name, values = transformers_name(tensor.name), dequantize(tensor.data, tensor.tensor_type)
        if (module := name.removesuffix(".weight").partition("layers.")[2].partition(".")[2]) in heads:
            # The file's rows of a head are pairs (real, imaginary); transformers has all reals first.
            rows = values.reshape(heads[module], -1, 2, values.shape[1])
            values = rows.swapaxes(1, 2).reshape(values.shape)
        weights[name] = torch.from_numpy(np.array(values, np.float32))
    model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.train(False)
    return model


def transformers_name(name: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``"""
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return "model." + name


@torch.inference_mode()
def greedy_continues(model: LlamaForCausalLM, prompt: list[int], output: list[int]) -> bool:
    """Whether greedy decoding of `model` gives `output` behind `prompt`.

    One forward over both tells: if each output token is the most likely one behind those before it, greedy decoding,
    which goes from token to token, could not have left the path.
    """
    logits = model(torch.tensor([[*prompt, *output]])).logits[0]
    behind = logits[len(prompt) - 1 : -1].argmax(dim=-1)
    return bool(behind.tolist() == output)


def test_generate_completions_and_engine_equal_transformers(
    server: ServerProcess, reference: LlamaForCausalLM
) -> None:
    sampling = {"temperature": 0, "ignore_eos": True, "max_new_tokens": NEW}
    completion = {"prompt": TEXTS, "temperature": 0, "ignore_eos": True, "max_tokens": NEW}
    # Both at once, which the engine computes in the same steps.
    with ThreadPoolExecutor(1) as pool, server.stream("/v1/completions", completion) as events:
        body = {"text": TEXTS, "sampling_params": sampling}
        native = pool.submit(server.http.post, "/generate", json=body)
        *chunks, _ = events
        answers = native.result().json()
    prompts = server.http.post("/tokenize", json={"prompt": TEXTS}).json()["tokens"]
    assert [len(answer["output_ids"]) for answer in answers] == [NEW] * len(TEXTS)
    for text, prompt, answer in zip(TEXTS, prompts, answers, strict=True):
        assert greedy_continues(reference, prompt, answer["output_ids"]), text
    streamed = [""] * len(TEXTS)
    for chunk in chunks:
        (choice,) = chunk["choices"]
        streamed[choice["index"]] += choice["text"]
    assert streamed == [answer["text"] for answer in answers]
    with Engine(dtype="float32", compute_threads=1, max_total_tokens=4096) as engine:
        from_python = engine.generate(TEXTS, sampling)
    assert [a["output_ids"] for a in from_python] == [a["output_ids"] for a in answers]
