"""How keys and values lie in memory: number format and layout as one object for every reader and writer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True, eq=False)
class LayerViews:
    """One layer's memory as `KVLayout.store` and `KVLayout.gather` address it: views, made once."""

    keys: torch.Tensor
    values: torch.Tensor
    rows: torch.Tensor


class KVLayout(Protocol):
    """Order of the dimensions of one layer's keys and values. A *position* is ``page * page_size + offset``.

    Attributes:
        name: stands for the order in files.
    """

    @property
    def name(self) -> str: ...

    def shape(self, num_pages: int, page_size: int, num_kv_heads: int, head_dim: int) -> tuple[int, ...]:
        """Shape of one layer's tensor."""

    def views(self, layer: torch.Tensor) -> LayerViews:
        """The views of a layer's tensor that the other methods take."""

    def store(self, views: LayerViews, positions: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Writes k and v ``[tokens, num_kv_heads, head_dim]`` to int64 `positions` ``[tokens]``."""

    def page_rows(self, layer: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        """What `gather` needs to know of int64 `pages` ``[n]``: made once a step, the same for all layers."""

    def gather(self, views: LayerViews, page_rows: torch.Tensor) -> torch.Tensor:
        """A contiguous copy ``[2, num_kv_heads, n * page_size, head_dim]`` of pages: keys, then values."""

    def read_pages(self, layer: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        """A copy ``[n, numbers of a page]`` of int64 `pages`, each page's numbers in the order of this layout."""

    def write_pages(self, layer: torch.Tensor, pages: torch.Tensor, numbers: torch.Tensor) -> None:
        """Writes back what `read_pages` gave."""


@dataclass(frozen=True, slots=True)
class HeadMajor:
    """``[2, num_kv_heads, pages, page_size, head_dim]``: one page of one head is contiguous.

    A head's keys of one sequence then lie one after another when its pages are gathered, which a batched matrix
    multiplication over (head, sequence) reads without stride: measured 3 to 5 times faster at 16 sequences than
    attention over token-major pages.
    """

    name: str = "head-major"

    def shape(self, num_pages: int, page_size: int, num_kv_heads: int, head_dim: int) -> tuple[int, ...]:
        return 2, num_kv_heads, num_pages, page_size, head_dim

    def views(self, layer: torch.Tensor) -> LayerViews:
        keys, values = layer.flatten(2, 3).unbind(0)
        return LayerViews(keys, values, layer.flatten(0, 2).flatten(1))

    def store(self, views: LayerViews, positions: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        views.keys.index_copy_(1, positions, k.transpose(0, 1))
        views.values.index_copy_(1, positions, v.transpose(0, 1))

    def page_rows(self, layer: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        heads = torch.arange(layer.shape[0] * layer.shape[1], device=pages.device)
        return (heads.unsqueeze(1) * layer.shape[2] + pages).flatten()

    def gather(self, views: LayerViews, page_rows: torch.Tensor) -> torch.Tensor:
        heads, _, head_dim = views.keys.shape
        return views.rows.index_select(0, page_rows).view(2, heads, -1, head_dim)

    def read_pages(self, layer: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        return layer.index_select(2, pages).permute(2, 0, 1, 3, 4).flatten(1)

    def write_pages(self, layer: torch.Tensor, pages: torch.Tensor, numbers: torch.Tensor) -> None:
        two, heads, _, page_size, head_dim = layer.shape
        by_page = numbers.view(-1, two, heads, page_size, head_dim)
        layer.index_copy_(2, pages, by_page.permute(1, 2, 0, 3, 4))


@dataclass(frozen=True, slots=True)
class KVFormat:
    """Number format and layout of a pool."""

    dtype: torch.dtype
    layout: KVLayout = field(default_factory=HeadMajor)
