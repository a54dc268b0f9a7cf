"""GGUF metadata in the terms of a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from compute_loop.models.config_reader import ConfigReader
from compute_loop.models.gguf_file import GgufFile, GgufTensor
from srt.core.errors import ModelError

GGUF_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",  # Mistral too: the file does not tell them apart, and both compute the same
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""``general.architecture`` -> Hugging Face class name."""

_MUST_BE_ABSENT = (
    "expert_count",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
    "attention.scale",
    "attention.temperature_scale",
    "attention.clamp_kqv",
    "attention.sliding_window",
    "attn_logit_softcapping",
    "final_logit_softcapping",
)
"""Keys (without the architecture's prefix) that mean other arithmetic unless they are 0: refused, not ignored."""

_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ROPE_FACTORS = "rope_freqs.weight"
_DTYPE_NAMES = {"F32": "float32", "F16": "float16"}


def read_tensors(weight_files: tuple[Path, ...]) -> dict[str, GgufTensor]:
    """Name -> tensor over all shards of a model.

    Raises:
        ModelError: a shard is broken, or two shards hold one tensor.
    """
    tensors: dict[str, GgufTensor] = {}
    for path in weight_files:
        for name, tensor in GgufFile(path).tensors.items():
            if name in tensors:
                raise ModelError(f"{path}: tensor {name!r} is also in {tensors[name].path}")
            tensors[name] = tensor
    return tensors


def read_architecture(file: GgufFile) -> str:
    """``general.architecture``, one of `GGUF_ARCHITECTURES`."""
    reader = ConfigReader(file.path, file.metadata)
    architecture = reader.text("general.architecture")
    if architecture not in GGUF_ARCHITECTURES:
        raise reader.error("general.architecture", f"one of {', '.join(GGUF_ARCHITECTURES)}")
    return architecture


def read_gguf_config(weight_files: tuple[Path, ...]) -> dict[str, object]:
    """The keys of the config.json that this model would have.

    Args:
        weight_files: all shards; the first one holds the metadata.

    Raises:
        ModelError: names the file and the GGUF key or tensor that is missing or unsupported.
    """
    file = GgufFile(weight_files[0])
    tensors = read_tensors(weight_files)
    architecture = read_architecture(file)
    reader = ConfigReader(file.path, file.metadata)
    own = _OwnKeys(reader, architecture)
    for key in _MUST_BE_ABSENT:
        if own.reader.values.get(own.name(key)) not in (None, 0, 0.0):
            raise reader.error(own.name(key), "no such key: what it stands for is not supported")
    num_heads = own.integer("attention.head_count")
    head_dim = own.integer("attention.key_length", own.integer("embedding_length") // num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.integer(key, head_dim) != head_dim:
            raise reader.error(own.name(key), f"{head_dim}, as the keys have")
    eos = [token for key in _EOS_KEYS for token in reader.token_ids(f"tokenizer.ggml.{key}")]
    return {
        "architectures": [GGUF_ARCHITECTURES[architecture]],
        "vocab_size": _embedding(file.path, tensors).shape[0],
        "hidden_size": own.integer("embedding_length"),
        "intermediate_size": own.integer("feed_forward_length"),
        "num_hidden_layers": own.integer("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": own.integer("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "rms_norm_eps": _shortest(own.number("attention.layer_norm_rms_epsilon")),
        "rope_theta": own.number("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(own, tensors, head_dim),
        "max_position_embeddings": own.integer("context_length"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "eos_token_id": eos or None,
        "bos_token_id": reader.optional_integer("tokenizer.ggml.bos_token_id", low=0),
        "torch_dtype": _DTYPE_NAMES.get(_embedding(file.path, tensors).kind.name, "bfloat16"),
    }


class _OwnKeys:
    """Reads of the keys that begin with the architecture's name."""

    def __init__(self, reader: ConfigReader, architecture: str) -> None:
        self.reader = reader
        self.architecture = architecture

    def name(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def integer(self, key: str, default: int | None = None) -> int:
        return self.reader.integer(self.name(key), default)

    def number(self, key: str, default: float | None = None) -> float:
        return self.reader.number(self.name(key), default)


def _embedding(path: Path, tensors: Mapping[str, GgufTensor]) -> GgufTensor:
    tensor = tensors.get("token_embd.weight")
    if tensor is None:
        raise ModelError(f"{path}: tensor 'token_embd.weight' is missing")
    return tensor


def _shortest(value: float) -> float:
    # The file holds float32; the decimal that was meant is the shortest one that rounds to it (1e-05).
    return float(str(np.float32(value)))


def _rope_scaling(
    own: _OwnKeys, tensors: Mapping[str, GgufTensor], head_dim: int
) -> dict[str, object] | None:
    factors = tensors.get(_ROPE_FACTORS)
    if factors is not None:
        if factors.shape != (head_dim // 2,) or factors.kind.name != "F32":
            raise ModelError(
                f"{factors.path}: tensor {_ROPE_FACTORS!r} has shape {list(factors.shape)} in {factors.kind.name}, "
                f"expected [{head_dim // 2}] in F32"
            )
        return {
            "rope_type": "factors",
            "factors": tuple(factors.rows().view(np.float32).reshape(-1).tolist()),
        }
    linear = own.number("rope.scale_linear", 1.0)
    kind = own.reader.text(own.name("rope.scaling.type"), "none")
    if kind == "linear":
        linear = own.number("rope.scaling.factor", linear)
    elif kind != "none":
        raise own.reader.error(own.name("rope.scaling.type"), "'none' or 'linear'")
    return None if linear == 1.0 else {"rope_type": "linear", "factor": linear}
