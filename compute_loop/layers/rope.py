"""Rotary position embedding."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from compute_loop.models.config import RopeScaling
from compute_loop.models.program import Rope

Rotation = tuple[torch.Tensor, torch.Tensor]
"""cos ``[tokens, 1, head_dim]`` (both halves alike) and sin ``[tokens, 1, head_dim / 2]`` of a step's tokens."""


def inverse_frequencies(rope: Rope) -> torch.Tensor:
    """Radians per position of each pair of a head, float32 ``[head_dim / 2]``."""
    exponents = torch.arange(0, rope.head_dim, 2, dtype=torch.int64).float() / rope.head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    return _SCALINGS[rope.scaling.kind](frequencies, rope.scaling)


def rotation_of(positions: torch.Tensor, frequencies: torch.Tensor, dtype: torch.dtype) -> Rotation:
    """The rotation of tokens at int64 `positions` ``[tokens]``."""
    angles = positions.float().unsqueeze(1) * frequencies
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.cat((cos, cos), dim=1).unsqueeze(1), sin.unsqueeze(1)


def rotate(x: torch.Tensor, rotation: Rotation, out: torch.Tensor) -> None:
    """Rotates heads ``[tokens, heads, head_dim]``; pair i is (x[i], x[i + head_dim / 2]). `out` must not be `x`."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    out_first, out_second = out.chunk(2, dim=-1)
    torch.mul(x, cos, out=out)
    out_first.addcmul_(second, sin, value=-1)
    out_second.addcmul_(first, sin)


def _unscaled(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    return frequencies


def _linear(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    return frequencies / scaling.factor


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Long wavelengths are stretched, short ones kept, those between interpolated (Llama 3.1)."""
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position_embeddings / wavelengths
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def _factors(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    return frequencies / torch.tensor(scaling.factors, dtype=torch.float32)


_SCALINGS: dict[str, Callable[[torch.Tensor, RopeScaling], torch.Tensor]] = {
    "none": _unscaled,
    "linear": _linear,
    "llama3": _llama3,
    "factors": _factors,
}
