"""Mistral: no biases, a sliding window in the first version."""

from __future__ import annotations

from compute_loop.models.config import ModelConfig
from compute_loop.models.decoder import DecoderVariant, decoder_program
from compute_loop.models.program import Program


def build_program(config: ModelConfig) -> Program:
    variant = DecoderVariant(window=config.sliding_window)
    return decoder_program(config, variant)
