"""Tensors of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from compute_loop.models.config import ModelConfig
from compute_loop.models.weights_layout import HEAD
from srt.core.errors import ModelError

_FLOATS = ("F32", "F16", "BF16", "F64")
_IGNORED_SUFFIX = ".rotary_emb.inv_freq"
"""Old files carry a buffer that follows from the configuration."""


def safetensors_tensors(
    weight_files: tuple[Path, ...], config: ModelConfig, expected: dict[str, tuple[int, ...]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) for all of `expected`, one after another: views of the mapped files.

    Raises:
        ModelError: a file is broken, a tensor is missing, has another shape, is not made of floats or is not known;
            names the file and the tensor.
    """
    with ExitStack() as stack:
        files = [(path, stack.enter_context(_open(path))) for path in weight_files]
        where = {name: (path, file) for path, file in files for name in list(file.keys())}
        for name, (path, _) in where.items():
            tied_head = name == HEAD and config.tie_word_embeddings
            if name not in expected and not tied_head and not name.endswith(_IGNORED_SUFFIX):
                raise ModelError(f"{path}: tensor {name!r} is not part of a {config.architecture}")
        for name, shape in expected.items():
            if name not in where:
                raise ModelError(f"{_all_of(weight_files)}: tensor {name!r} is missing")
            path, file = where[name]
            yield name, _read(path, file, name, shape)


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: not a readable safetensors file ({error}); fetch it again") from error


def _read(path: Path, file: Any, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    try:
        stored = file.get_slice(name)
        found, dtype = tuple(stored.get_shape()), str(stored.get_dtype())
        if found != shape:
            raise ModelError(f"{path}: tensor {name!r} has shape {list(found)}, expected {list(shape)}")
        if dtype not in _FLOATS:
            raise ModelError(f"{path}: tensor {name!r} has dtype {dtype}, supported: {', '.join(_FLOATS)}")
        tensor: torch.Tensor = file.get_tensor(name)
    except SafetensorError as error:
        raise ModelError(f"{path}: tensor {name!r} cannot be read: {error}") from error
    return tensor


def _all_of(weight_files: tuple[Path, ...]) -> str:
    return (
        str(weight_files[0])
        if len(weight_files) == 1
        else f"{weight_files[0].parent} ({len(weight_files)} shards)"
    )
