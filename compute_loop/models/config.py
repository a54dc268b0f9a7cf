"""What a model is made of, read from config.json or from GGUF metadata. No torch here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from compute_loop.models.config_reader import ConfigReader
from compute_loop.models.files import ModelFiles
from compute_loop.models.gguf_config import read_gguf_config
from srt.core.errors import ModelError

RopeKind = Literal["none", "linear", "llama3", "factors"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the rotary frequencies differ from ``rope_theta ** (-2i / head_dim)``.

    Kinds:
        none: not at all.
        linear: all are divided by `factor`.
        llama3: wavelengths above ``original_max_position_embeddings / low_freq_factor`` are divided by `factor`, those
            below ``original_max_position_embeddings / high_freq_factor`` are kept, between them it is interpolated
            (Llama 3.1).
        factors: frequency i is divided by ``factors[i]``, ``head_dim / 2`` of them (how GGUF files store llama3).
    """

    kind: RopeKind = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and switches of a decoder-only transformer of the Llama family.

    Attributes:
        architecture: the Hugging Face class name, the key of the model registry.
        attention_bias: the q, k and v projections have biases.
        output_bias, mlp_bias: so have the o projection; gate, up and down.
        qk_norm: RMS norm of each head's q and k before the rotation (Qwen3).
        sliding_window: a token attends to itself and this many minus one before it; None: to all before it.
        eos_token_ids: every token that ends a text, the most usual first; may be empty.
        torch_dtype: the name of the format that the weights were stored in, or the nearest to a quantised one.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    torch_dtype: str


@dataclass(frozen=True, slots=True)
class _Family:
    """What a config.json of one architecture means where it says nothing.

    `fixed_bias` (q, k, v) overrides the key attention_bias, which in the other families stands for q, k, v and o.
    `window_switch`: sliding_window only counts if use_sliding_window is true.
    """

    model_type: str
    fixed_bias: bool | None = None
    mlp_bias_key: bool = False
    qk_norm: bool = False
    head_dim: int | None = None
    window_switch: bool = True
    default_window: int | None = None
    max_position_embeddings: int = 2048


_FAMILIES = {
    "LlamaForCausalLM": _Family("llama", mlp_bias_key=True),
    "MistralForCausalLM": _Family(
        "mistral", fixed_bias=False, window_switch=False, default_window=4096, max_position_embeddings=131072
    ),
    "Qwen2ForCausalLM": _Family("qwen2", fixed_bias=True, max_position_embeddings=32768),
    "Qwen3ForCausalLM": _Family("qwen3", qk_norm=True, head_dim=128, max_position_embeddings=32768),
}

_CHANGES_THE_MODEL = ("quantization_config", "compression_config")
"""Keys that mean other arithmetic than is implemented here: refused rather than ignored."""


def load_model_config(files: ModelFiles) -> ModelConfig:
    """The configuration of a model on disk.

    From config.json (and generation_config.json for further end-of-sequence ids), or from GGUF metadata put into the
    same terms.

    Raises:
        ModelError: a key is missing, out of range or means something unsupported; names the file and the key.
    """
    if files.kind == "gguf":
        return parse_config(ConfigReader(files.weight_files[0], read_gguf_config(files.weight_files)))
    generation = files.root / "generation_config.json"
    extra = _read_json(generation).token_ids("eos_token_id") if generation.is_file() else ()
    return parse_config(_read_json(files.root / "config.json"), extra)


def _read_json(path: Path) -> ConfigReader:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not readable JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path}: holds {type(values).__name__}, expected a JSON object")
    return ConfigReader(path, values)


def parse_config(reader: ConfigReader, generation_eos: tuple[int, ...] = ()) -> ModelConfig:
    """The configuration that the keys of a config.json describe; `generation_eos` ids come before its own.

    Raises:
        ModelError: as `load_model_config`.
    """
    architecture = _architecture(reader)
    family = _FAMILIES[architecture]
    _refuse_unsupported(reader)
    hidden_size, num_heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    num_kv_heads = reader.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise reader.error("num_key_value_heads", f"a divisor of num_attention_heads, which is {num_heads}")
    eos = (*generation_eos, *reader.token_ids("eos_token_id"))
    biased = reader.flag("attention_bias", False) if family.fixed_bias is None else family.fixed_bias
    num_layers = reader.integer("num_hidden_layers")
    max_position_embeddings = reader.integer("max_position_embeddings", family.max_position_embeddings)
    return ModelConfig(
        architecture=architecture,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=reader.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(reader, family, hidden_size, num_heads),
        rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
        rope_theta=_rope(reader).number("rope_theta", reader.number("rope_theta", 10000.0)),
        rope_scaling=_rope_scaling(_rope(reader)),
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=reader.flag("tie_word_embeddings", False),
        attention_bias=biased,
        output_bias=biased and family.fixed_bias is None,
        mlp_bias=family.mlp_bias_key and reader.flag("mlp_bias", False),
        qk_norm=family.qk_norm,
        sliding_window=_sliding_window(reader, family, num_layers, max_position_embeddings),
        eos_token_ids=tuple(dict.fromkeys(eos)),
        bos_token_id=next(iter(reader.token_ids("bos_token_id")), None),
        torch_dtype=reader.text("dtype", reader.text("torch_dtype", "float32")),
    )


def _architecture(reader: ConfigReader) -> str:
    known = f"one of {', '.join(_FAMILIES)}"
    architectures = reader.values.get("architectures")
    if architectures:
        if not isinstance(architectures, list) or architectures[0] not in _FAMILIES:
            raise reader.error("architectures", known)
        return str(architectures[0])
    model_type = reader.text("model_type")
    for name, family in _FAMILIES.items():
        if family.model_type == model_type:
            return name
    raise reader.error("model_type", known)


def _refuse_unsupported(reader: ConfigReader) -> None:
    for key in _CHANGES_THE_MODEL:
        if reader.has(key):
            raise reader.error(
                key, "no such key: weights in this form are not supported, take the original ones"
            )
    if reader.text("hidden_act", "silu") != "silu":
        raise reader.error("hidden_act", "'silu'")
    rope = _rope(reader)
    for key, value in rope.values.items():
        if isinstance(value, dict):
            raise rope.error(key, "a plain value: all layers share one rotary embedding")
    for section in (reader, rope):
        if section.number("partial_rotary_factor", 1.0) != 1.0:
            raise section.error("partial_rotary_factor", "1.0: every part of a head is rotated")


def _head_dim(reader: ConfigReader, family: _Family, hidden_size: int, num_heads: int) -> int:
    head_dim = reader.integer("head_dim", family.head_dim or max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise ModelError(
            f"{reader.path}: key 'head_dim' is {head_dim} (or follows as that), rotary embedding needs an even one"
        )
    if not reader.has("head_dim") and family.head_dim is None and hidden_size % num_heads:
        raise reader.error(
            "hidden_size", f"a multiple of num_attention_heads ({num_heads}), or a key 'head_dim'"
        )
    return head_dim


def _rope(reader: ConfigReader) -> ConfigReader:
    """The section on rotary embedding: rope_parameters of newer files, rope_scaling of older ones."""
    return reader.section("rope_parameters" if reader.has("rope_parameters") else "rope_scaling")


def _rope_scaling(rope: ConfigReader) -> RopeScaling:
    key = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.text(key, "default")
    if kind in ("default", "none"):
        return RopeScaling()
    if kind == "linear":
        return RopeScaling("linear", factor=rope.number("factor"))
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if low >= high:
            raise rope.error("high_freq_factor", f"a number above low_freq_factor, which is {low}")
        return RopeScaling(
            "llama3",
            factor=rope.number("factor"),
            low_freq_factor=low,
            high_freq_factor=high,
            original_max_position_embeddings=rope.integer("original_max_position_embeddings"),
        )
    factors = rope.values.get("factors")
    if kind == "factors" and isinstance(
        factors, tuple
    ):  # only read_gguf_config makes a tuple, JSON has lists
        return RopeScaling("factors", factors=factors)
    raise rope.error(key, "'default', 'linear' or 'llama3' as kind of rope scaling")


def _sliding_window(reader: ConfigReader, family: _Family, num_layers: int, max_positions: int) -> int | None:
    if family.window_switch and not reader.flag("use_sliding_window", False):
        return None
    unset = "sliding_window" not in reader.values
    window = family.default_window if unset else reader.optional_integer("sliding_window")
    if window is None or window >= max_positions:
        return None
    full_layers = reader.integer("max_window_layers", 0, low=0) if family.window_switch else 0
    if 0 < full_layers < num_layers:
        raise reader.error(
            "max_window_layers",
            f"0 or at least num_hidden_layers ({num_layers}): all layers share one sliding window",
        )
    return None if full_layers else window
