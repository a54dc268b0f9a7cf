"""Qwen3: an RMS norm of each head of q and k."""

from __future__ import annotations

from compute_loop.models.config import ModelConfig
from compute_loop.models.decoder import DecoderVariant, decoder_program
from compute_loop.models.program import Program


def build_program(config: ModelConfig) -> Program:
    variant = DecoderVariant(
        qkv_bias=config.attention_bias,
        output_bias=config.output_bias,
        qk_norm=True,
        window=config.sliding_window,
    )
    return decoder_program(config, variant)
