"""Configuration from config.json."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from compute_loop.models.config import ModelConfig, RopeScaling, load_model_config
from compute_loop.models.files import ModelFiles
from srt.core.errors import ModelError
from tests.compute_loop.tiny_models import tiny_config

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def load(root: Path, config: dict[str, object], generation: dict[str, object] | None = None) -> ModelConfig:
    (root / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (root / "generation_config.json").write_text(json.dumps(generation))
    return load_model_config(ModelFiles("tiny", root, "safetensors", ()))


def test_llama(tmp_path: Path) -> None:
    assert load(tmp_path, tiny_config("LlamaForCausalLM")) == ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=384,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=RopeScaling(),
        max_position_embeddings=512,
        tie_word_embeddings=False,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        sliding_window=None,
        eos_token_ids=(2,),
        bos_token_id=1,
        torch_dtype="float32",
    )


@pytest.mark.parametrize(
    ("architecture", "changes", "biases", "qk_norm"),
    [
        ("LlamaForCausalLM", {}, (False, False, False), False),
        ("LlamaForCausalLM", {"attention_bias": True}, (True, True, False), False),
        ("LlamaForCausalLM", {"mlp_bias": True}, (False, False, True), False),
        ("MistralForCausalLM", {"attention_bias": True}, (False, False, False), False),
        ("Qwen2ForCausalLM", {}, (True, False, False), False),
        ("Qwen3ForCausalLM", {}, (False, False, False), True),
        ("Qwen3ForCausalLM", {"attention_bias": True}, (True, True, False), True),
    ],
)
def test_families(
    tmp_path: Path,
    architecture: str,
    changes: dict[str, object],
    biases: tuple[bool, bool, bool],
    qk_norm: bool,
) -> None:
    config = load(tmp_path, tiny_config(architecture, **changes))
    assert (config.attention_bias, config.output_bias, config.mlp_bias) == biases
    assert config.qk_norm is qk_norm


def test_what_is_left_out_has_the_familys_default(tmp_path: Path) -> None:
    values = tiny_config("LlamaForCausalLM")
    for key in (
        "architectures",
        "num_key_value_heads",
        "head_dim",
        "rope_theta",
        "tie_word_embeddings",
        "torch_dtype",
    ):
        del values[key]
    config = load(tmp_path, values)
    assert config.architecture == "LlamaForCausalLM"
    assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (4, 16, 10000.0)
    assert (config.tie_word_embeddings, config.torch_dtype) == (False, "float32")
    del (qwen := tiny_config("Qwen3ForCausalLM"))["head_dim"]
    assert load(tmp_path, qwen).head_dim == 128


def test_newer_spelling_of_keys(tmp_path: Path) -> None:
    values = tiny_config(
        "LlamaForCausalLM", dtype="bfloat16", rope_parameters=LLAMA3 | {"rope_theta": 500000.0}
    )
    for key in ("rope_theta", "torch_dtype"):
        del values[key]
    config = load(tmp_path, values)
    assert (config.torch_dtype, config.rope_theta, config.rope_scaling.kind) == (
        "bfloat16",
        500000.0,
        "llama3",
    )


def test_rope_scaling(tmp_path: Path) -> None:
    llama3 = load(tmp_path, tiny_config("LlamaForCausalLM", rope_scaling=LLAMA3)).rope_scaling
    assert llama3 == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    linear = load(
        tmp_path, tiny_config("LlamaForCausalLM", rope_scaling={"type": "linear", "factor": 2})
    ).rope_scaling
    assert linear == RopeScaling("linear", factor=2.0)
    default = load(
        tmp_path, tiny_config("LlamaForCausalLM", rope_scaling={"rope_type": "default"})
    ).rope_scaling
    assert default == RopeScaling()


@pytest.mark.parametrize(
    ("architecture", "changes", "window"),
    [
        ("MistralForCausalLM", {"sliding_window": 128}, 128),
        ("MistralForCausalLM", {"sliding_window": None}, None),
        ("MistralForCausalLM", {"sliding_window": 512}, None),
        ("Qwen2ForCausalLM", {"sliding_window": 128}, None),
        (
            "Qwen2ForCausalLM",
            {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 0},
            128,
        ),
        (
            "Qwen2ForCausalLM",
            {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 2},
            None,
        ),
        (
            "Qwen3ForCausalLM",
            {"sliding_window": None, "use_sliding_window": False, "max_window_layers": 1},
            None,
        ),
    ],
)
def test_sliding_window(
    tmp_path: Path, architecture: str, changes: dict[str, object], window: int | None
) -> None:
    assert load(tmp_path, tiny_config(architecture, **changes)).sliding_window == window


def test_mistral_window_defaults_to_4096(tmp_path: Path) -> None:
    values = tiny_config("MistralForCausalLM", max_position_embeddings=8192)
    del values["sliding_window"]
    assert load(tmp_path, values).sliding_window == 4096


def test_eos_ids_of_both_files(tmp_path: Path) -> None:
    values = tiny_config("LlamaForCausalLM", eos_token_id=[7, 9])
    assert load(tmp_path, values).eos_token_ids == (7, 9)
    assert load(tmp_path, values, {"eos_token_id": [9, 11]}).eos_token_ids == (9, 11, 7)
    assert load(tmp_path, values | {"eos_token_id": None}, {}).eos_token_ids == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["GemmaForCausalLM"]},
            "'architectures' is .'GemmaForCausalLM'., expected one of LlamaForC",
        ),
        ({"architectures": None, "model_type": "gemma"}, "'model_type' is 'gemma'"),
        ({"architectures": None, "model_type": None}, "'model_type' is missing"),
        ({"hidden_size": None}, "'hidden_size' is missing, expected an integer of at least 1"),
        ({"vocab_size": "many"}, "'vocab_size' is 'many'"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0"),
        ({"num_hidden_layers": True}, "'num_hidden_layers' is True"),
        ({"num_key_value_heads": 3}, "'num_key_value_heads' is 3, expected a divisor of num_attention_heads"),
        ({"head_dim": None, "hidden_size": 66}, "'hidden_size' is 66, expected a multiple"),
        ({"head_dim": 15}, "'head_dim' is 15"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' is nan, expected a finite number"),
        ({"rope_theta": -1}, "'rope_theta' is -1"),
        ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu', expected 'silu'"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' is 'yes', expected true or false"),
        ({"eos_token_id": "</s>"}, "'eos_token_id' is '</s>'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "'quantization_config'"),
        ({"partial_rotary_factor": 0.5}, "'partial_rotary_factor' is 0.5"),
        ({"rope_scaling": "linear"}, "'rope_scaling' is 'linear', expected an object"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "'rope_type' is 'yarn', expected 'default', 'linear'",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "'type' is 'dynamic'"),
        ({"rope_scaling": {"rope_type": "factors", "factors": [1.0] * 8}}, "'rope_type' is 'factors'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'low_freq_factor' is missing"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "'high_freq_factor' is 1.0"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "'full_attention'"),
    ],
)
def test_bad_config_names_the_key_and_the_file(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load(tmp_path, tiny_config("LlamaForCausalLM", **changes))
    assert "config.json" in str(caught.value)


def test_mixed_windows_are_refused(tmp_path: Path) -> None:
    values = tiny_config("Qwen2ForCausalLM", sliding_window=128, use_sliding_window=True, max_window_layers=1)
    with pytest.raises(ModelError, match="'max_window_layers' is 1"):
        load(tmp_path, values)


@pytest.mark.parametrize("text", ["", "{", "[1]", "nonsense"])
def test_unreadable_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json: (not readable JSON|holds list)"):
        load_model_config(ModelFiles("tiny", tmp_path, "safetensors", ()))


def test_needs_no_torch() -> None:
    code = "import sys, compute_loop.models.config, compute_loop.models.files; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
