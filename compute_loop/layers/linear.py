"""A linear layer with its weights as the CPU or GPU library likes them best."""

from __future__ import annotations

import torch


class LinearLayer:
    """Thread: compute. ``x @ weight.T + bias``; `weight` is ``[out, in]`` as in the files."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._transposed = weight.t()
        self._bias = bias

    def write(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """``out = x @ weight.T + bias``."""
        if self._bias is None:
            torch.mm(x, self._transposed, out=out)
        else:
            torch.addmm(self._bias, x, self._transposed, out=out)

    def add(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """``out += x @ weight.T + bias``."""
        out.addmm_(x, self._transposed)
        if self._bias is not None:
            out.add_(self._bias)

    def __repr__(self) -> str:
        columns, rows = self._transposed.shape
        return f"LinearLayer({columns} -> {rows}, {self._transposed.dtype})"
