"""Tensors of a GGUF model, dequantised and put into Hugging Face's order of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from compute_loop.models.config import ModelConfig
from compute_loop.models.gguf_config import read_architecture, read_tensors
from compute_loop.models.gguf_file import GgufFile, GgufTensor
from compute_loop.models.weights_layout import gguf_name, rotated_heads
from srt.core.errors import ModelError

_IGNORED = ("rope_freqs.weight", "output.weight")
"""Read as configuration; and a head beside tied embeddings is not in `expected` and would be the same numbers."""

_PERMUTED_ARCHITECTURE = "llama"
"""Only for this one the converter reorders the rows of q and k."""

_NUMBERS_AT_ONCE = 1 << 20
"""Fits a core's cache with its temporaries; measured."""

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def gguf_tensors(
    weight_files: tuple[Path, ...], config: ModelConfig, expected: dict[str, tuple[int, ...]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """(Hugging Face name, tensor) for all of `expected`, one after another, so that only one is held twice.

    Raises:
        ModelError: a tensor is missing, has another shape or is not known; names the file and the tensor.
    """
    tensors = read_tensors(weight_files)
    permuted = read_architecture(GgufFile(weight_files[0])) == _PERMUTED_ARCHITECTURE
    names = {name: gguf_name(name) for name in expected}
    unknown = sorted(tensors.keys() - names.values() - set(_IGNORED))
    if unknown:
        raise ModelError(
            f"{tensors[unknown[0]].path}: tensor {unknown[0]!r} is not part of a {config.architecture}"
        )
    for name, shape in expected.items():
        tensor = tensors.get(names[name])
        if tensor is None:
            raise ModelError(f"{weight_files[0]}: tensor {names[name]!r} is missing")
        if tensor.shape != shape:
            raise ModelError(
                f"{tensor.path}: tensor {tensor.name!r} has shape {list(tensor.shape)}, expected {list(shape)}"
            )
        num_heads = rotated_heads(name, config) if permuted else None
        yield name, _read(tensor, num_heads)


def _read(tensor: GgufTensor, num_heads: int | None) -> torch.Tensor:
    rows = tensor.rows()
    if num_heads is not None:
        # A bias is one stored row of plain numbers: make it one row a number.
        rows = _split_halves(rows.reshape(tensor.shape[0], -1), num_heads)
    dtype = _FLOATS.get(tensor.kind.name)
    if dtype is not None:
        return torch.from_numpy(rows.reshape(-1)).view(dtype).view(tensor.shape)
    merged = _merge_rows(rows, tensor.shape[-1])
    numbers: npt.NDArray[np.float32] = dequantize(merged, GGMLQuantizationType(tensor.kind.type_id))
    return torch.from_numpy(numbers.reshape(tensor.shape))


def _merge_rows(rows: npt.NDArray[np.uint8], row_size: int) -> npt.NDArray[np.uint8]:
    """The same blocks in fewer, longer rows: gguf works on 16 rows at a time, which is too little for short ones."""
    wanted = max(1, _NUMBERS_AT_ONCE // 16 // row_size)
    return rows.reshape(len(rows) // math.gcd(len(rows), 1 << (wanted.bit_length() - 1)), -1)


def _split_halves(rows: npt.NDArray[np.uint8], num_heads: int) -> npt.NDArray[np.uint8]:
    """Undoes the converter's reordering of q and k rows for the "llama" architecture.

    The rotation turns pairs of numbers of a head. ggml pairs neighbours (0, 1), (2, 3), ...; Hugging Face pairs the two
    halves (0, d/2), (1, d/2 + 1), ... The file therefore holds each head's rows interleaved::

        file:  0  d/2  1  d/2+1  2  ...        here:  0  1  2 ... d/2-1  d/2  d/2+1 ...
    """
    num_rows, row_bytes = rows.shape
    pairs = rows.reshape(num_heads, num_rows // num_heads // 2, 2, row_bytes)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(num_rows, row_bytes)
