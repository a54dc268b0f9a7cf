"""The memory of a program's registers."""

from __future__ import annotations

import torch

from compute_loop.models.program import Program, Register


def registers_of(program: Program) -> tuple[Register, ...]:
    """Every register that the operations name, once, in order of appearance."""
    found = [
        value
        for op in program.ops
        for value in (getattr(op, name) for name in op.__dataclass_fields__)
        if isinstance(value, Register)
    ]
    return tuple(dict.fromkeys(found))


class Workspace:
    """Thread: compute. One buffer per register, grown to the largest step so far and reused by all layers and steps."""

    def __init__(self, program: Program, dtype: torch.dtype, device: torch.device) -> None:
        self._registers = registers_of(program)
        self._dtype = dtype
        self._device = device
        self._buffers: dict[Register, torch.Tensor] = {}
        self._views: dict[str, torch.Tensor] = {}
        self._sizes = (-1, -1)

    def views(self, num_tokens: int, num_sampled: int) -> dict[str, torch.Tensor]:
        """Register name -> its rows in a step of this size. What is in them is left from an earlier step."""
        if self._sizes != (num_tokens, num_sampled):
            rows = {"token": num_tokens, "sampled": num_sampled}
            self._views = {r.name: self._buffer(r, rows[r.rows])[: rows[r.rows]] for r in self._registers}
            self._sizes = num_tokens, num_sampled
        return dict(self._views)

    def _buffer(self, register: Register, rows: int) -> torch.Tensor:
        buffer = self._buffers.get(register)
        if buffer is None or len(buffer) < rows:
            buffer = torch.empty(rows, register.width, dtype=self._dtype, device=self._device)
            self._buffers[register] = buffer
        return buffer

    def __repr__(self) -> str:
        num_bytes = sum(b.numel() * b.element_size() for b in self._buffers.values())
        return f"Workspace({len(self._registers)} registers, {num_bytes / 2**20:.1f} MiB)"
