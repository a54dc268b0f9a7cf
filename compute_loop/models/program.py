"""A model's forward step as a flat list of operations over named registers.

A model file builds the list from its configuration; a runner executes it: the eager one with torch, native ones with
their own kernels. Nothing here computes or imports torch.

Registers hold one row per token of the step (or per sampled row) and are reused from layer to layer. Every operation
reads and writes whole registers; `Select` is where rows become fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from compute_loop.models.config import RopeScaling

RowKind = Literal["token", "sampled"]


@dataclass(frozen=True, slots=True)
class Register:
    """A matrix of `width` columns, with a row for each token of the step or for each row that is sampled."""

    name: str
    width: int
    rows: RowKind = "token"


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter: the tensors with these Hugging Face names, one below another (along dimension 0)."""

    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding over the two halves of a head (Su et al., "RoFormer", 2021)."""

    head_dim: int
    theta: float
    scaling: RopeScaling


@dataclass(frozen=True, slots=True)
class Heads:
    """Shape of the attention of all layers. `window`: a token sees itself and ``window - 1`` tokens before it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        return self.q_size + 2 * self.kv_size


@dataclass(frozen=True, slots=True)
class Embed:
    """``out = weight[input ids]``."""

    out: Register
    weight: Weight


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """``out = x / sqrt(mean(x ** 2) + eps) * weight`` in float32 (Zhang and Sennrich, 2019)."""

    out: Register
    x: Register
    weight: Weight
    eps: float


@dataclass(frozen=True, slots=True)
class Linear:
    """``out = x @ weight.T + bias``, added to what `out` holds where `accumulate` (the residual stream)."""

    out: Register
    x: Register
    weight: Weight
    bias: Weight | None = None
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class QKNorm:
    """RMS norm of each head of q and of k inside `qkv`, in place."""

    qkv: Register
    q_weight: Weight
    k_weight: Weight
    eps: float


@dataclass(frozen=True, slots=True)
class RopeStore:
    """``rotated`` = q and k of `qkv`, rotated by the tokens' positions; k and v go into the KV pages of `layer`.

    All tokens of a step are stored before any `Attention` of the layer reads.
    """

    rotated: Register
    qkv: Register
    layer: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention of q over the KV pages of `layer`, causal, with ``head_dim ** -0.5`` as scale.

    q are the first columns of `rotated`.
    """

    out: Register
    rotated: Register
    layer: int


@dataclass(frozen=True, slots=True)
class SiluMul:
    """``out = silu(left half of gate_up) * right half``."""

    out: Register
    gate_up: Register


@dataclass(frozen=True, slots=True)
class Select:
    """Rows of `x` whose next token is sampled: the last token of each such row of the batch."""

    out: Register
    x: Register


@dataclass(frozen=True, slots=True)
class Head:
    """``logits = x @ weight.T`` in float32: nothing but `Sample` reads them."""

    logits: Register
    x: Register
    weight: Weight


@dataclass(frozen=True, slots=True)
class Sample:
    """Chooses a token for each row of `logits`; becomes the slot's input of the next step."""

    logits: Register


Op = Embed | RMSNorm | Linear | QKNorm | RopeStore | Attention | SiluMul | Select | Head | Sample


@dataclass(frozen=True, slots=True)
class Program:
    """A whole step. `Embed` is the first operation and `Sample` the last."""

    ops: tuple[Op, ...]
    num_layers: int
    vocab_size: int
    heads: Heads
    rope: Rope
