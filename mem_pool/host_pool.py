"""KV pages in host memory: where pages go that leave the device, and where files are written from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from mem_pool.device import host_bytes
from srt.core.messages import Int32Array


class HostPool:
    """`num_pages` pages of `page_bytes` bytes each, numbered from 0. What is in a page is known to the pool it is from.

    Thread: compute copies; whoever else reads or writes `pages` was given the page, and no copy names it meanwhile.

    Attributes:
        pages: uint8 ``[num_pages, page_bytes]``.
    """

    def __init__(self, num_pages: int, page_bytes: int, device: torch.device) -> None:
        """`device` is the one that pages come from: its host memory may be of a special kind."""
        self._memory = host_bytes(num_pages * page_bytes, device).view(num_pages, page_bytes)
        self.pages: npt.NDArray[np.uint8] = self._memory.numpy()

    @property
    def page_bytes(self) -> int:
        return self._memory.shape[1]

    @property
    def num_pages(self) -> int:
        return self._memory.shape[0]

    def write(self, host_pages: Int32Array, numbers: torch.Tensor) -> None:
        """Row i of `numbers` ``[n, numbers of a page]``, on any device, becomes page ``host_pages[i]``."""
        data = numbers.view(torch.uint8)
        for first, start, end in _ranges(host_pages):
            self._memory[first : first + end - start].copy_(data[start:end])

    def read(self, host_pages: Int32Array, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Pages as numbers ``[n, numbers of a page]`` on `device`: a copy."""
        data = torch.empty(len(host_pages), self.page_bytes, dtype=torch.uint8, device=device)
        for first, start, end in _ranges(host_pages):
            data[start:end].copy_(self._memory[first : first + end - start])
        return data.view(dtype)

    def __repr__(self) -> str:
        size = f"{self.num_pages} pages, {self._memory.numel() / 2**20:.0f} MiB"
        return f"HostPool({size}{', pinned' if self._memory.is_pinned() else ''})"


def _ranges(pages: Int32Array) -> list[tuple[int, int, int]]:
    """Neighbours are copied in one go: ``pages[start:end]`` counts up from `first`."""
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    starts = [0, *breaks.tolist()] if len(pages) else []
    ends = [*breaks.tolist(), len(pages)]
    return [(int(pages[start]), start, end) for start, end in zip(starts, ends, strict=False)]
