"""Llama 2 and 3, SmolLM2, and what shares their form: biases where the configuration says so."""

from __future__ import annotations

from compute_loop.models.config import ModelConfig
from compute_loop.models.decoder import DecoderVariant, decoder_program
from compute_loop.models.program import Program


def build_program(config: ModelConfig) -> Program:
    variant = DecoderVariant(
        qkv_bias=config.attention_bias, output_bias=config.output_bias, mlp_bias=config.mlp_bias
    )
    return decoder_program(config, variant)
