"""Qwen2 and Qwen2.5: biases on q, k and v, a sliding window where switched on."""

from __future__ import annotations

from compute_loop.models.config import ModelConfig
from compute_loop.models.decoder import DecoderVariant, decoder_program
from compute_loop.models.program import Program


def build_program(config: ModelConfig) -> Program:
    variant = DecoderVariant(qkv_bias=True, window=config.sliding_window)
    return decoder_program(config, variant)
