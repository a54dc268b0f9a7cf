"""Which file describes which architecture: a new family is one file and one line."""

from __future__ import annotations

from collections.abc import Callable

from compute_loop.models import llama, mistral, qwen2, qwen3
from compute_loop.models.config import ModelConfig
from compute_loop.models.program import Program
from srt.core.errors import ModelError

BUILDERS: dict[str, Callable[[ModelConfig], Program]] = {
    "LlamaForCausalLM": llama.build_program,
    "MistralForCausalLM": mistral.build_program,
    "Qwen2ForCausalLM": qwen2.build_program,
    "Qwen3ForCausalLM": qwen3.build_program,
}
"""Hugging Face class name -> what makes its step program."""


def build_program(config: ModelConfig) -> Program:
    """The step program of a model.

    Raises:
        ModelError: no file describes the architecture; lists those that are known.
    """
    builder = BUILDERS.get(config.architecture)
    if builder is None:
        raise ModelError(
            f"architecture {config.architecture!r} is not supported, known are {', '.join(BUILDERS)}"
        )
    return builder(config)
