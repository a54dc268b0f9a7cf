"""The gated activation of the MLP."""

from __future__ import annotations

import torch


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """``out = silu(gate) * up``, `gate_up` being gate and up side by side ``[tokens, 2 * width]``."""
    gate, up = gate_up.chunk(2, dim=-1)
    torch.ops.aten.silu.out(gate, out=out)
    out.mul_(up)
