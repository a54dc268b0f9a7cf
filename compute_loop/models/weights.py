"""Loading weights into memory."""

from __future__ import annotations

import torch
from tqdm import tqdm

from compute_loop.models.config import ModelConfig
from compute_loop.models.files import ModelFiles
from compute_loop.models.weights_gguf import gguf_tensors
from compute_loop.models.weights_layout import expected_shapes
from compute_loop.models.weights_safetensors import safetensors_tensors

_READERS = {"gguf": gguf_tensors, "safetensors": safetensors_tensors}


def load_weights(
    files: ModelFiles, config: ModelConfig, dtype: torch.dtype, progress: bool = True
) -> dict[str, torch.Tensor]:
    """All tensors of a model in `dtype`, on the CPU, under their Hugging Face names.

    "lm_head.weight" is there only if the embeddings are not tied. The tensors own their memory: the files may change
    afterwards. They are converted one by one, so that memory peaks at the weights in `dtype` plus one tensor.

    Args:
        progress: show a progress bar where standard error is a terminal.

    Raises:
        ModelError: a file is broken or does not fit `config`; names the file and the tensor.
    """
    expected = expected_shapes(config)
    tensors = _READERS[files.kind](files.weight_files, config, expected)
    bar = tqdm(
        tensors, f"loading {files.name}", len(expected), disable=None if progress else True, unit="tensor"
    )
    return {name: tensor.to(dtype, copy=True) for name, tensor in bar}
