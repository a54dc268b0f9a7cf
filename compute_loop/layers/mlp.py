"""The gated activation of the MLP."""

from __future__ import annotations

import torch


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """``out = silu(gate) * up``, `gate_up` being gate and up side by side ``[tokens, 2 * width]``."""
    width = out.shape[-1]
    torch.ops.aten.silu.out(gate_up[:, :width], out=out)
    out.mul_(gate_up[:, width:])
