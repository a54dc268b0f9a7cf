"""Small random models on disk, in every format that can be loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file

from compute_loop.models.config import ModelConfig, parse_config
from compute_loop.models.config_reader import ConfigReader
from compute_loop.models.gguf_file import GGML_TYPES
from compute_loop.models.weights_layout import expected_shapes, gguf_name, rotated_heads

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

QUANTISABLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
"""Formats that the gguf package can write; the blocks of `K_FORMATS` are random bytes with sane scales."""

K_FORMATS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")

_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

_SCALE_OFFSETS = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where a block holds its float16 scales."""


def tiny_config(architecture: str, **changes: object) -> dict[str, object]:
    """A config.json: 2 layers, 4 heads of 16 on 2 KV heads, vocabulary 384. `changes` override or add keys."""
    config: dict[str, object] = {
        "architectures": [architecture],
        "model_type": _MODEL_TYPES[architecture],
        "vocab_size": 384,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    if architecture == "MistralForCausalLM":
        config["sliding_window"] = None
    return config | changes


def random_weights(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
    """float32 tensors, norms around 1, everything else scaled so that activations stay of order 1."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in expected_shapes(config).items():
        numbers = torch.randn(shape, generator=generator)
        norm = "norm" in name
        scale = 0.1 if norm or len(shape) == 1 else shape[-1] ** -0.5
        weights[name] = numbers * scale + (1.0 if norm else 0.0)
    return weights


def write_hf_model(
    root: Path,
    architecture: str = "LlamaForCausalLM",
    *,
    seed: int = 0,
    shards: int = 1,
    dtype: torch.dtype = torch.float32,
    generation: dict[str, object] | None = None,
    **changes: object,
) -> dict[str, torch.Tensor]:
    """Writes config.json and safetensors (with an index if `shards` > 1) into `root`; returns what was written."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "config.json").write_text(json.dumps(tiny_config(architecture, **changes)))
    if generation is not None:
        (root / "generation_config.json").write_text(json.dumps(generation))
    config = parse_config(ConfigReader(root / "config.json", tiny_config(architecture, **changes)))
    weights = {name: tensor.to(dtype) for name, tensor in random_weights(config, seed).items()}
    if shards == 1:
        save_file(weights, root / "model.safetensors", {"format": "pt"})
        return weights
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        filename = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(weights.items())[shard::shards])
        save_file(part, root / filename, {"format": "pt"})
        weight_map |= dict.fromkeys(part, filename)
    index = {"metadata": {}, "weight_map": weight_map}
    (root / "model.safetensors.index.json").write_text(json.dumps(index))
    return weights


@dataclass(frozen=True, slots=True)
class TinyGguf:
    """What `write_gguf_model` writes: `architecture` is the file's, `quant` the format of all matrices."""

    architecture: str = "llama"
    quant: str = "F32"
    hidden_size: int = 64
    intermediate_size: int = 96
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    num_layers: int = 2
    vocab_size: int = 384
    tied: bool = False
    seed: int = 0


PLAIN = TinyGguf()

_GGUF_TO_HF = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def write_gguf_model(
    path: Path,
    tiny: TinyGguf = PLAIN,
    *,
    changes: dict[str, int | float | str | None] | None = None,
    extra_tensors: dict[str, npt.NDArray[np.float32]] | None = None,
    drop_tensors: tuple[str, ...] = (),
) -> dict[str, torch.Tensor]:
    """Writes a GGUF file; returns the dequantised float32 weights under Hugging Face names, in that order of rows.

    `changes` are metadata keys without the architecture's prefix; None drops one.
    """
    metadata: dict[str, int | float | str | None] = {
        "block_count": tiny.num_layers,
        "context_length": 512,
        "embedding_length": tiny.hidden_size,
        "feed_forward_length": tiny.intermediate_size,
        "attention.head_count": tiny.num_heads,
        "attention.head_count_kv": tiny.num_kv_heads,
        "attention.key_length": tiny.head_dim,
        "attention.value_length": tiny.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": tiny.head_dim,
    }
    metadata |= changes or {}
    writer = GGUFWriter(path, tiny.architecture)
    for key, value in metadata.items():
        if value is not None:
            _ADD[type(value)](writer, f"{tiny.architecture}.{key}", value)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    config = _model_config(tiny)
    weights: dict[str, torch.Tensor] = {}
    generator = np.random.default_rng(tiny.seed)
    for name, tensor in random_weights(config, tiny.seed).items():
        stored, kind = _store(tensor.numpy(), tiny.quant, generator)
        exact = dequantize(stored, kind).reshape(tensor.shape)
        weights[name] = torch.from_numpy(exact.copy())
        heads = rotated_heads(name, config) if tiny.architecture == "llama" else None
        if heads is not None:
            stored = _interleave(stored, heads)
        if gguf_name(name) not in drop_tensors:
            writer.add_tensor(gguf_name(name), stored, raw_dtype=kind)
    for name, numbers in (extra_tensors or {}).items():
        writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


_ADD: dict[type, Any] = {
    int: GGUFWriter.add_uint32,
    float: GGUFWriter.add_float32,
    str: GGUFWriter.add_string,
}


def _model_config(tiny: TinyGguf) -> ModelConfig:
    from_json = tiny_config(
        _GGUF_TO_HF[tiny.architecture],
        vocab_size=tiny.vocab_size,
        hidden_size=tiny.hidden_size,
        intermediate_size=tiny.intermediate_size,
        num_hidden_layers=tiny.num_layers,
        num_attention_heads=tiny.num_heads,
        num_key_value_heads=tiny.num_kv_heads,
        head_dim=tiny.head_dim,
        tie_word_embeddings=tiny.tied,
    )
    return parse_config(ConfigReader(Path(tiny.architecture), from_json))


def _store(
    numbers: npt.NDArray[np.float32], quant: str, generator: np.random.Generator
) -> tuple[npt.NDArray[Any], GGMLQuantizationType]:
    """As a converter stores it: one-dimensional tensors stay F32."""
    if numbers.ndim == 1:
        return numbers, GGMLQuantizationType.F32
    kind = GGMLQuantizationType[quant]
    if quant not in K_FORMATS:
        return quantize(numbers, kind), kind
    row_bytes = numbers.shape[1] // 256 * GGML_TYPES[kind.value].block_bytes
    blocks = generator.integers(0, 256, (numbers.shape[0], row_bytes), dtype=np.uint8)
    scales = blocks.reshape(-1, GGML_TYPES[kind.value].block_bytes)
    for offset in _SCALE_OFFSETS[quant]:
        scale = generator.uniform(1e-5, 1e-4, (len(scales), 1)).astype(np.float16)
        scales[:, offset : offset + 2] = scale.view(np.uint8)
    return blocks, kind


def _interleave(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """The order of rows of q and k in a file for "llama": of each head 0, d/2, 1, d/2 + 1, ..."""
    per_head = np.split(rows, heads)
    half = len(per_head[0]) // 2
    order = [row for pair in range(half) for row in (pair, half + pair)]
    return np.concatenate([head[order] for head in per_head])
