"""The tensors that hold keys and values, one per layer, cut into pages."""

from __future__ import annotations

import torch

from mem_pool.device import zeros
from mem_pool.host_pool import HostPool
from mem_pool.kv_format import KVFormat
from srt.core.messages import Int32Array


class KVPool:
    """Thread: compute. Keys and values of all layers in `num_pages` pages of `page_size` tokens, and dummy page 0.

    Which page belongs to whom is not known here: see `PageAllocator` and `PageTable`.

    Attributes:
        layers: one tensor per layer, in the shape of the format's layout.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        kv_format: KVFormat,
        device: torch.device,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.format = kv_format
        shape = kv_format.layout.shape(num_pages + 1, page_size, num_kv_heads, head_dim)
        self.layers = tuple(zeros(shape, kv_format.dtype, device) for _ in range(num_layers))
        self._views = tuple(kv_format.layout.views(layer) for layer in self.layers)

    @property
    def num_bytes(self) -> int:
        return sum(layer.numel() * layer.element_size() for layer in self.layers)

    def store(self, layer: int, positions: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Writes k and v ``[tokens, num_kv_heads, head_dim]`` to int64 `positions` (``page * page_size + offset``)."""
        self.format.layout.store(self._views[layer], positions, k, v)

    def page_rows(self, pages: torch.Tensor) -> torch.Tensor:
        """What `gather` needs of int64 `pages`; the same for all layers."""
        return self.format.layout.page_rows(self.layers[0], pages)

    def gather(self, layer: int, page_rows: torch.Tensor) -> torch.Tensor:
        """A copy ``[2, num_kv_heads, tokens, head_dim]`` of the pages behind `page_rows`: keys, then values."""
        return self.format.layout.gather(self._views[layer], page_rows)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in all layers."""
        return self.num_bytes // (self.num_pages + 1)

    def copy_to_host(self, pages: Int32Array, host: HostPool, host_pages: Int32Array) -> None:
        """Page ``pages[i]`` of all layers, one layer after another, becomes ``host_pages[i]``, bit by bit."""
        index = self._index(pages)
        layers = [self.format.layout.read_pages(layer, index) for layer in self.layers]
        host.write(host_pages, torch.stack(layers, 1).flatten(1))

    def copy_from_host(self, host: HostPool, host_pages: Int32Array, pages: Int32Array) -> None:
        """The way back of `copy_to_host`."""
        index = self._index(pages)
        numbers = host.read(host_pages, self.format.dtype, self.layers[0].device)
        for layer, part in zip(self.layers, numbers.chunk(len(self.layers), 1), strict=True):
            self.format.layout.write_pages(layer, index, part.contiguous())

    def _index(self, pages: Int32Array) -> torch.Tensor:
        return torch.from_numpy(pages).to(self.layers[0].device, torch.int64)

    def __repr__(self) -> str:
        size = f"{self.num_pages} pages of {self.page_size} tokens"
        return f"KVPool({size}, {len(self.layers)} layers, {self.format.dtype}, {self.num_bytes / 2**20:.0f} MiB)"
