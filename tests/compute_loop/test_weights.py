"""Weights from safetensors and GGUF files, whole and broken."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from safetensors.torch import load_file, save_file

from compute_loop.models.config import load_model_config
from compute_loop.models.files import DEFAULT_MODEL, locate_model
from compute_loop.models.gguf_file import GGML_TYPES
from compute_loop.models.weights import load_weights
from compute_loop.models.weights_layout import expected_shapes, gguf_name
from srt.core.errors import ModelError
from tests.compute_loop.tiny_models import (
    ARCHITECTURES,
    K_FORMATS,
    QUANTISABLE,
    TinyGguf,
    write_gguf_model,
    write_hf_model,
)


def load(path: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    files = locate_model(str(path))
    return load_weights(files, load_model_config(files), dtype, progress=False)


def assert_same(
    loaded: dict[str, torch.Tensor], written: dict[str, torch.Tensor], dtype: torch.dtype
) -> None:
    assert loaded.keys() == written.keys()
    for name, tensor in written.items():
        assert loaded[name].dtype == dtype, name
        assert loaded[name].is_contiguous(), name
        assert torch.equal(loaded[name], tensor.to(dtype)), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_safetensors(tmp_path: Path, architecture: str, tied: bool, shards: int) -> None:
    written = write_hf_model(tmp_path, architecture, shards=shards, tie_word_embeddings=tied)
    assert ("lm_head.weight" in written) is not tied
    assert_same(load(tmp_path), written, torch.float32)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float16, torch.bfloat16])
def test_safetensors_dtypes(tmp_path: Path, stored: torch.dtype, wanted: torch.dtype) -> None:
    written = write_hf_model(tmp_path, dtype=stored)
    assert_same(load(tmp_path, wanted), written, wanted)


def test_every_bias_is_loaded(tmp_path: Path) -> None:
    written = write_hf_model(tmp_path, attention_bias=True, mlp_bias=True)
    assert sum(name.endswith(".bias") for name in written) == 2 * 7
    assert_same(load(tmp_path), written, torch.float32)


def test_weights_outlive_their_file(tmp_path: Path) -> None:
    written = write_hf_model(tmp_path)
    loaded = load(tmp_path)
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert_same(loaded, written, torch.float32)


def test_tied_model_ignores_a_stored_head_and_old_buffers(tmp_path: Path) -> None:
    written = write_hf_model(tmp_path, tie_word_embeddings=True)
    extra = {
        "lm_head.weight": torch.zeros(384, 64),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8),
    }
    save_file(written | extra, tmp_path / "model.safetensors")
    assert_same(load(tmp_path), written, torch.float32)


@pytest.mark.parametrize(
    ("name", "replacement", "message"),
    [
        ("model.layers.1.mlp.up_proj.weight", None, "tensor 'model.layers.1.mlp.up_proj.weight' is missing"),
        ("lm_head.weight", None, "tensor 'lm_head.weight' is missing"),
        ("model.norm.weight", torch.zeros(65), r"'model.norm.weight' has shape \[65\], expected \[64\]"),
        (
            "model.norm.weight",
            torch.zeros(64, dtype=torch.int8),
            "'model.norm.weight' has dtype I8, supported: F32",
        ),
        (
            "model.layers.2.mlp.up_proj.weight",
            torch.zeros(1),
            "layers.2.mlp.up_proj.weight' is not part of a Llama",
        ),
        ("model.layers.0.self_attn.q_norm.weight", torch.zeros(16), "q_norm.weight' is not part of a Llama"),
    ],
)
def test_safetensors_that_do_not_fit(
    tmp_path: Path, name: str, replacement: torch.Tensor | None, message: str
) -> None:
    tensors = write_hf_model(tmp_path)
    tensors.pop(name, None)
    if replacement is not None:
        tensors[name] = replacement
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=message) as caught:
        load(tmp_path)
    assert "model.safetensors" in str(caught.value)


def test_missing_from_all_shards(tmp_path: Path) -> None:
    write_hf_model(tmp_path, shards=2)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    tensors = load_file(shard)
    name = next(iter(tensors))
    del tensors[name]
    save_file(tensors, shard)
    with pytest.raises(ModelError, match=rf"\(2 shards\): tensor '{re.escape(name)}' is missing"):
        load(tmp_path)


def test_truncated_safetensors(tmp_path: Path) -> None:
    write_hf_model(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for length in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"model\.safetensors: not a readable safetensors file"):
            load(tmp_path)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("quant", QUANTISABLE)
def test_gguf(tmp_path: Path, architecture: str, quant: str) -> None:
    tiny = TinyGguf(architecture, quant, intermediate_size=128)
    written = write_gguf_model(tmp_path / "a.gguf", tiny)
    assert_same(load(tmp_path / "a.gguf"), written, torch.float32)


@pytest.mark.parametrize("quant", K_FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gguf_k_formats(tmp_path: Path, quant: str, dtype: torch.dtype) -> None:
    tiny = TinyGguf("llama", quant, hidden_size=256, intermediate_size=512, head_dim=64, tied=True)
    written = write_gguf_model(tmp_path / "a.gguf", tiny)
    deviations = [float(tensor.std()) for tensor in written.values() if tensor.ndim == 2]
    assert all(1e-5 < deviation < 1.0 for deviation in deviations), deviations
    assert_same(load(tmp_path / "a.gguf", dtype), written, dtype)


def test_gguf_rows_of_q_and_k_are_put_in_order(tmp_path: Path) -> None:
    """The file of a "llama" has q and k rows in another order than the model; that of a qwen2 does not."""
    for architecture, differs in (("llama", True), ("qwen2", False)):
        path = tmp_path / f"{architecture}.gguf"
        write_gguf_model(path, TinyGguf(architecture))
        stored = {tensor.name: torch.from_numpy(np.array(tensor.data)) for tensor in GGUFReader(path).tensors}
        for name, tensor in load(path).items():
            reordered = not torch.equal(tensor, stored[gguf_name(name)])
            assert reordered is (differs and ("q_proj" in name or "k_proj" in name)), name


def test_gguf_in_shards(tmp_path: Path) -> None:
    written = write_gguf_model(tmp_path / "whole.gguf")
    names = [gguf_name(name) for name in written]
    first, second = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    write_gguf_model(first, drop_tensors=tuple(names[::2]))
    write_gguf_model(second, drop_tensors=tuple(names[1::2]))
    assert_same(load(first), written, torch.float32)
    write_gguf_model(second)
    with pytest.raises(ModelError, match=r"00002\.gguf: tensor '.*' is also in .*00001"):
        load(first)


def test_gguf_missing_tensor(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf_model(path, drop_tensors=("blk.1.ffn_up.weight",))
    with pytest.raises(ModelError, match=r"a\.gguf: tensor 'blk.1.ffn_up.weight' is missing"):
        load(path)


def test_gguf_wrong_shape(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf_model(path, changes={"feed_forward_length": 128})
    with pytest.raises(
        ModelError, match=r"'blk.0.ffn_gate.weight' has shape \[96, 64\], expected \[128, 64\]"
    ):
        load(path)


def test_gguf_unknown_tensor(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf_model(path, extra_tensors={"blk.0.attn_q_norm.weight": np.ones(16, np.float32)})
    with pytest.raises(ModelError, match=r"'blk.0.attn_q_norm.weight' is not part of a LlamaForCausalLM"):
        load(path)


def test_every_format_of_the_table_is_dequantised_by_the_package() -> None:
    for kind in GGML_TYPES.values():
        blocks = np.zeros((1, kind.block_bytes), np.uint8)
        assert dequantize(blocks, GGMLQuantizationType(kind.type_id)).shape[-1] >= 1, kind


@pytest.mark.e2e
def test_default_model() -> None:
    try:
        files = locate_model(DEFAULT_MODEL)
    except ModelError as error:
        pytest.skip(error.message)
    config = load_model_config(files)
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert (config.vocab_size, config.tie_word_embeddings, config.eos_token_ids) == (49152, True, (2,))
    assert (config.rope_theta, config.rms_norm_eps, config.max_position_embeddings) == (100000.0, 1e-5, 8192)
    weights = load_weights(files, config, torch.bfloat16, progress=False)
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == expected_shapes(config)
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())
    assert sum(tensor.numel() for tensor in weights.values()) == 134_515_008
