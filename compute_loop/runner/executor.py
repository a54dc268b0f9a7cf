"""The torch interpreter of step programs: each operation is bound once to its weights and called once a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from compute_loop.attention.base import AttentionBackend
from compute_loop.layers.linear import make_linear
from compute_loop.layers.mlp import silu_mul
from compute_loop.layers.norm import RMSNormLayer
from compute_loop.layers.rope import Rotation, rotate
from compute_loop.models.program import (
    Attention,
    Embed,
    Head,
    Linear,
    Program,
    QKNorm,
    RMSNorm,
    RopeStore,
    Sample,
    Select,
    SiluMul,
    Weight,
)
from mem_pool.kv_pool import KVPool


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """What the operations of one step read beside weights and registers; index tensors are int64 on the device.

    Attributes:
        input_ids: ``[tokens]``.
        kv_positions: ``[tokens]``, where each token's keys and values go (``page * page_size + offset``).
        rotation: of each token's position.
        last_tokens: ``[sampled]``, token row of each row that is sampled.
        attention_plan: the attention backend's.
        registers: name -> matrix. An operation may put another matrix of the same shape in its place.
    """

    input_ids: torch.Tensor
    kv_positions: torch.Tensor
    rotation: Rotation
    last_tokens: torch.Tensor
    attention_plan: Any
    registers: dict[str, torch.Tensor]


BoundOp = Callable[[StepInputs], None]


class ProgramExecutor:
    """Thread: compute. Runs the operations of a program, up to its logits."""

    def __init__(
        self,
        program: Program,
        tensors: dict[str, torch.Tensor],
        pool: KVPool,
        attention: AttentionBackend[Any],
    ) -> None:
        """Takes the weights out of `tensors` (Hugging Face names), so that fused ones do not lie in memory twice.

        Raises:
            KeyError: a weight that the program names is missing.
        """
        self.program = program
        self.pool = pool
        self.attention = attention
        self._tensors = tensors
        self._uses = _count_uses(program)
        self._bound = tuple(BINDERS[type(op)](self, op) for op in program.ops if not isinstance(op, Sample))

    def run(self, inputs: StepInputs) -> None:
        for op in self._bound:
            op(inputs)

    def take(self, weight: Weight) -> torch.Tensor:
        """The tensor of a weight, its sources put together; a source that nothing else needs is let go of."""
        parts = []
        for name in weight.sources:
            parts.append(self._tensors[name])
            self._uses[name] -= 1
            if self._uses[name] == 0:
                del self._tensors[name]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _count_uses(program: Program) -> dict[str, int]:
    uses: dict[str, int] = {}
    for op in program.ops:
        for field in op.__dataclass_fields__:
            value = getattr(op, field)
            for name in value.sources if isinstance(value, Weight) else ():
                uses[name] = uses.get(name, 0) + 1
    return uses


def _bind_embed(executor: ProgramExecutor, op: Embed) -> BoundOp:
    weight, out = executor.take(op.weight), op.out.name

    def run(step: StepInputs) -> None:
        torch.index_select(weight, 0, step.input_ids, out=step.registers[out])

    return run


def _bind_rms_norm(executor: ProgramExecutor, op: RMSNorm) -> BoundOp:
    layer, x, out = RMSNormLayer(executor.take(op.weight), op.eps), op.x.name, op.out.name

    def run(step: StepInputs) -> None:
        layer.write(step.registers[x], step.registers[out])

    return run


def _bind_linear(executor: ProgramExecutor, op: Linear) -> BoundOp:
    bias = executor.take(op.bias) if op.bias is not None else None
    layer, x, out = make_linear(executor.take(op.weight), bias), op.x.name, op.out.name
    apply = layer.add if op.accumulate else layer.write

    def run(step: StepInputs) -> None:
        step.registers[out] = apply(step.registers[x], step.registers[out])

    return run


def _bind_qk_norm(executor: ProgramExecutor, op: QKNorm) -> BoundOp:
    heads, qkv = executor.program.heads, op.qkv.name
    q_weight, k_weight = executor.take(op.q_weight), executor.take(op.k_weight)
    num_heads = heads.num_heads + 2 * heads.num_kv_heads
    # One norm over the heads of q and k together: each head has its own row of weights.
    weight = torch.cat((q_weight.expand(heads.num_heads, -1), k_weight.expand(heads.num_kv_heads, -1)))
    layer = RMSNormLayer(weight, op.eps)

    def run(step: StepInputs) -> None:
        qk = step.registers[qkv].view(-1, num_heads, heads.head_dim)[:, : len(weight)]
        layer.write(qk, qk)

    return run


def _bind_rope_store(executor: ProgramExecutor, op: RopeStore) -> BoundOp:
    heads, pool, layer, qkv, rotated = (
        executor.program.heads,
        executor.pool,
        op.layer,
        op.qkv.name,
        op.rotated.name,
    )
    sizes = (heads.num_heads + heads.num_kv_heads, heads.num_kv_heads)

    def run(step: StepInputs) -> None:
        qk, v = step.registers[qkv].view(-1, sum(sizes), heads.head_dim).split_with_sizes(sizes, dim=1)
        out = step.registers[rotated].view(qk.shape)
        rotate(qk, step.rotation, out)
        pool.store(layer, step.kv_positions, out[:, heads.num_heads :], v)

    return run


def _bind_attention(executor: ProgramExecutor, op: Attention) -> BoundOp:
    backend, layer, rotated, out = executor.attention, op.layer, op.rotated.name, op.out.name
    q_size = executor.program.heads.q_size

    def run(step: StepInputs) -> None:
        backend.run(step.attention_plan, layer, step.registers[rotated][:, :q_size], step.registers[out])

    return run


def _bind_silu_mul(executor: ProgramExecutor, op: SiluMul) -> BoundOp:
    gate_up, out = op.gate_up.name, op.out.name

    def run(step: StepInputs) -> None:
        silu_mul(step.registers[gate_up], step.registers[out])

    return run


def _bind_select(executor: ProgramExecutor, op: Select) -> BoundOp:
    x, out = op.x.name, op.out.name

    def run(step: StepInputs) -> None:
        torch.index_select(step.registers[x], 0, step.last_tokens, out=step.registers[out])

    return run


def _bind_head(executor: ProgramExecutor, op: Head) -> BoundOp:
    layer, x, logits = make_linear(executor.take(op.weight)), op.x.name, op.logits.name

    def run(step: StepInputs) -> None:
        step.registers[logits] = layer.write(step.registers[x], step.registers[logits])

    return run


BINDERS: dict[type, Callable[[ProgramExecutor, Any], BoundOp]] = {
    Embed: _bind_embed,
    RMSNorm: _bind_rms_norm,
    Linear: _bind_linear,
    QKNorm: _bind_qk_norm,
    RopeStore: _bind_rope_store,
    Attention: _bind_attention,
    SiluMul: _bind_silu_mul,
    Select: _bind_select,
    Head: _bind_head,
}
"""Operation -> what binds it to its weights. `Sample` is the runner's: it happens when the loop asks for it."""
