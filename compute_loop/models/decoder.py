"""The pre-norm decoder that the Llama family shares, as a list of operations."""

from __future__ import annotations

from dataclasses import dataclass

from compute_loop.models.config import ModelConfig
from compute_loop.models.program import (
    Attention,
    Embed,
    Head,
    Heads,
    Linear,
    Op,
    Program,
    QKNorm,
    Register,
    RMSNorm,
    Rope,
    RopeStore,
    Sample,
    Select,
    SiluMul,
    Weight,
)
from compute_loop.models.weights_layout import EMBEDDING, FINAL_NORM, HEAD


@dataclass(frozen=True, slots=True)
class DecoderVariant:
    """Where the families of the decoder differ.

    Attributes:
        qkv_bias, output_bias, mlp_bias: the projections q, k, v; o; gate, up, down have biases.
        qk_norm: RMS norm of each head of q and k before the rotation.
        window: a token attends to itself and ``window - 1`` tokens before it; None: to all before it.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    window: int | None = None


class DecoderRegisters:
    """The registers of a step. `residual` is the stream that every block adds to."""

    def __init__(self, config: ModelConfig, heads: Heads) -> None:
        self.residual = Register("residual", config.hidden_size)
        self.normed = Register("normed", config.hidden_size)
        self.qkv = Register("qkv", heads.qkv_size)
        self.rotated = Register("rotated", heads.q_size + heads.kv_size)
        self.attended = Register("attended", heads.q_size)
        self.gate_up = Register("gate_up", 2 * config.intermediate_size)
        self.activated = Register("activated", config.intermediate_size)
        self.last = Register("last", config.hidden_size, "sampled")
        self.last_normed = Register("last_normed", config.hidden_size, "sampled")
        self.logits = Register("logits", config.vocab_size, "sampled")


def decoder_program(config: ModelConfig, variant: DecoderVariant) -> Program:
    """Embedding; per layer attention and gated MLP, each ``residual += block(norm(residual))``; final norm and head."""
    heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim, variant.window)
    registers = DecoderRegisters(config, heads)
    ops: list[Op] = [Embed(registers.residual, Weight((EMBEDDING,)))]
    for layer in range(config.num_layers):
        ops += attention_block(config, variant, registers, layer)
        ops += mlp_block(config, variant, registers, layer)
    head = EMBEDDING if config.tie_word_embeddings else HEAD
    ops += [
        Select(registers.last, registers.residual),
        RMSNorm(registers.last_normed, registers.last, Weight((FINAL_NORM,)), config.rms_norm_eps),
        Head(registers.logits, registers.last_normed, Weight((head,))),
        Sample(registers.logits),
    ]
    rope = Rope(config.head_dim, config.rope_theta, config.rope_scaling)
    return Program(tuple(ops), config.num_layers, config.vocab_size, heads, rope)


def attention_block(
    config: ModelConfig, variant: DecoderVariant, registers: DecoderRegisters, layer: int
) -> list[Op]:
    prefix = f"model.layers.{layer}."
    attention = prefix + "self_attn."
    projections = [attention + name for name in ("q_proj", "k_proj", "v_proj")]
    ops: list[Op] = [
        RMSNorm(
            registers.normed,
            registers.residual,
            Weight((prefix + "input_layernorm.weight",)),
            config.rms_norm_eps,
        ),
        _linear(registers.qkv, registers.normed, projections, variant.qkv_bias),
    ]
    if variant.qk_norm:
        q_weight, k_weight = (Weight((attention + name,)) for name in ("q_norm.weight", "k_norm.weight"))
        ops.append(QKNorm(registers.qkv, q_weight, k_weight, config.rms_norm_eps))
    return [
        *ops,
        RopeStore(registers.rotated, registers.qkv, layer),
        Attention(registers.attended, registers.rotated, layer),
        _linear(
            registers.residual,
            registers.attended,
            [attention + "o_proj"],
            variant.output_bias,
            accumulate=True,
        ),
    ]


def mlp_block(
    config: ModelConfig, variant: DecoderVariant, registers: DecoderRegisters, layer: int
) -> list[Op]:
    prefix = f"model.layers.{layer}."
    mlp = prefix + "mlp."
    norm = Weight((prefix + "post_attention_layernorm.weight",))
    return [
        RMSNorm(registers.normed, registers.residual, norm, config.rms_norm_eps),
        _linear(registers.gate_up, registers.normed, [mlp + "gate_proj", mlp + "up_proj"], variant.mlp_bias),
        SiluMul(registers.activated, registers.gate_up),
        _linear(
            registers.residual, registers.activated, [mlp + "down_proj"], variant.mlp_bias, accumulate=True
        ),
    ]


def _linear(
    out: Register, x: Register, modules: list[str], has_bias: bool, *, accumulate: bool = False
) -> Linear:
    weight = Weight(tuple(f"{module}.weight" for module in modules))
    bias = Weight(tuple(f"{module}.bias" for module in modules)) if has_bias else None
    return Linear(out, x, weight, bias, accumulate)
