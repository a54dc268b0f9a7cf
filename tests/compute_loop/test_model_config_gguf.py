"""Configuration from GGUF metadata."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compute_loop.models.config import ModelConfig, RopeScaling, load_model_config, parse_config
from compute_loop.models.config_reader import ConfigReader
from compute_loop.models.files import ModelFiles
from srt.core.errors import ModelError
from tests.compute_loop.tiny_models import PLAIN, TinyGguf, tiny_config, write_gguf_model


def load_gguf(
    path: Path, tiny: TinyGguf = PLAIN, changes: dict[str, int | float | str | None] | None = None
) -> ModelConfig:
    write_gguf_model(path, tiny, changes=changes)
    return load_model_config(ModelFiles("tiny", path.parent, "gguf", (path,)))


@pytest.mark.parametrize(
    ("gguf", "architecture"),
    [("llama", "LlamaForCausalLM"), ("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")],
)
def test_gguf_equals_config_json(tmp_path: Path, gguf: str, architecture: str) -> None:
    from_json = parse_config(ConfigReader(tmp_path, tiny_config(architecture)))
    assert load_gguf(tmp_path / "a.gguf", TinyGguf(gguf)) == from_json
    tied = parse_config(ConfigReader(tmp_path, tiny_config(architecture, tie_word_embeddings=True)))
    assert load_gguf(tmp_path / "b.gguf", TinyGguf(gguf, tied=True)) == tied


def test_gguf_defaults_and_dtype(tmp_path: Path) -> None:
    changes: dict[str, int | float | str | None] = {
        "attention.head_count_kv": None,
        "attention.key_length": None,
        "attention.value_length": None,
        "rope.freq_base": None,
        "rope.dimension_count": None,
    }
    config = load_gguf(tmp_path / "a.gguf", TinyGguf(quant="F16", num_kv_heads=4), changes)
    assert (config.num_kv_heads, config.head_dim, config.rope_theta, config.torch_dtype) == (
        4,
        16,
        10000.0,
        "float16",
    )
    assert (
        load_gguf(tmp_path / "b.gguf", TinyGguf(quant="Q8_0", intermediate_size=128)).torch_dtype
        == "bfloat16"
    )


def test_gguf_rope(tmp_path: Path) -> None:
    linear: dict[str, int | float | str | None] = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    assert load_gguf(tmp_path / "a.gguf", changes=linear).rope_scaling == RopeScaling("linear", factor=4.0)
    old: dict[str, int | float | str | None] = {"rope.scale_linear": 2.0}
    assert load_gguf(tmp_path / "b.gguf", changes=old).rope_scaling == RopeScaling("linear", factor=2.0)
    path = tmp_path / "c.gguf"
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    write_gguf_model(path, extra_tensors={"rope_freqs.weight": factors})
    scaling = load_model_config(ModelFiles("tiny", tmp_path, "gguf", (path,))).rope_scaling
    assert scaling == RopeScaling("factors", factors=tuple(factors.tolist()))
    write_gguf_model(path, extra_tensors={"rope_freqs.weight": factors[:5]})
    with pytest.raises(ModelError, match=r"'rope_freqs.weight' has shape \[5\] in F32, expected \[8\]"):
        load_model_config(ModelFiles("tiny", tmp_path, "gguf", (path,)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding_length": None}, "'llama.embedding_length' is missing"),
        ({"attention.head_count": None}, "'llama.attention.head_count' is missing"),
        ({"attention.layer_norm_rms_epsilon": None}, "'llama.attention.layer_norm_rms_epsilon' is missing"),
        ({"context_length": "long"}, "'llama.context_length' is 'long'"),
        ({"attention.value_length": 8}, "'llama.attention.value_length' is 8, expected 16"),
        ({"rope.dimension_count": 8}, "'llama.rope.dimension_count' is 8, expected 16"),
        ({"rope.scaling.type": "yarn"}, "'llama.rope.scaling.type' is 'yarn'"),
        ({"expert_count": 8}, "'llama.expert_count' is 8"),
        ({"attention.sliding_window": 128}, "'llama.attention.sliding_window' is 128"),
        ({"logit_scale": 0.5}, "'llama.logit_scale' is 0.5"),
    ],
)
def test_bad_gguf_metadata_names_the_key(
    tmp_path: Path, changes: dict[str, int | float | str | None], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load_gguf(tmp_path / "bad.gguf", changes=changes)
    assert "bad.gguf" in str(caught.value)


def test_gguf_without_embedding(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf_model(path, drop_tensors=("token_embd.weight",))
    with pytest.raises(ModelError, match=r"a\.gguf: tensor 'token_embd.weight' is missing"):
        load_model_config(ModelFiles("tiny", tmp_path, "gguf", (path,)))


def test_unknown_gguf_architecture(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf_model(path)
    path.write_bytes(path.read_bytes().replace(b"llama", b"gemma"))
    with pytest.raises(
        ModelError, match=r"'general.architecture' is 'gemma', expected one of llama, qwen2, qwen3"
    ):
        load_model_config(ModelFiles("tiny", tmp_path, "gguf", (path,)))
