"""Attention over paged KV with torch operations: the twin that every kernel is compared with, and the fallback.

Pages are copied into dense blocks first, since torch's attention reads no page tables. A prefill chunk is one call.
Decode rows of like length share one: they differ only in a batch dimension and a mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from compute_loop.attention.row_groups import group_rows
from compute_loop.forward_batch import BoolArray, ForwardBatch
from compute_loop.models.program import Heads
from mem_pool.kv_pool import KVPool
from mem_pool.page_table import PageTable
from srt.core.messages import Int32Array, Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPlan:
    """One prefill chunk: its query rows, its pages, and which keys they hide (None: causal from the first key on)."""

    queries: slice
    page_rows: torch.Tensor
    num_keys: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class DecodePlan:
    """Decode rows that are computed together, each padded to `num_keys` keys.

    Attributes:
        queries: which query rows: a slice, or int64 indices where they do not lie together.
        page_rows: pages of all rows, one row after another.
        mask: ``[1, rows, 1, num_keys]``, -inf at padding; None: there is none.
        blanks: int64 positions of padding within the gathered pages. What lies there may be anything, even NaN, and
            NaN times a weight of zero is NaN: it is overwritten.
    """

    queries: slice | torch.Tensor
    num_rows: int
    page_rows: torch.Tensor
    num_keys: int
    mask: torch.Tensor | None
    blanks: torch.Tensor | None


TorchPlan = tuple[ChunkPlan | DecodePlan, ...]


class TorchAttention:
    """Thread: compute. Backend over torch's scaled-dot-product attention, on any device and in any float format."""

    def __init__(self, pool: KVPool, heads: Heads) -> None:
        self._pool = pool
        self._heads = heads
        self._scale = heads.head_dim**-0.5

    def plan(self, batch: ForwardBatch, table: PageTable) -> TorchPlan:
        begins = np.concatenate(([0], np.cumsum(batch.num_new_tokens)))
        chunks = [
            self._plan_chunk(batch, row, slice(int(begins[row]), int(begins[row + 1])), table)
            for row in range(batch.num_chunks)
        ]
        first_keys = self._first_keys(batch.starts)
        lengths = batch.starts + batch.num_new_tokens - first_keys
        decodes = [
            self._plan_decodes(batch, rows + batch.num_chunks, len(batch.chunk_ids), first_keys, table)
            for rows in group_rows(lengths[batch.num_chunks :])
        ]
        return (*chunks, *decodes)

    def run(self, plan: TorchPlan, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        for part in plan:
            if isinstance(part, ChunkPlan):
                self._run_chunk(part, layer, q, out)
            else:
                self._run_decodes(part, layer, q, out)

    # --- planning --------------------

    def _first_keys(self, starts: Int32Array) -> Int32Array:
        """First KV position that is read for a row, at the beginning of a page: the window may hide those before."""
        window = self._heads.window
        if window is None:
            return np.zeros_like(starts)
        return np.maximum(0, starts + 1 - window) // self._pool.page_size * self._pool.page_size

    def _plan_chunk(self, batch: ForwardBatch, row: int, queries: slice, table: PageTable) -> ChunkPlan:
        start, end = int(batch.starts[row]), int(batch.starts[row] + batch.num_new_tokens[row])
        first_key = int(self._first_keys(batch.starts[row : row + 1])[0])
        page_size, window = self._pool.page_size, self._heads.window
        pages = table.pages[int(batch.slots[row]), first_key // page_size : -(-end // page_size)]
        mask = None
        if start > 0 or (window is not None and end > window):
            mask = self._causal_mask(start, end, first_key, pages.device)
        return ChunkPlan(queries, self._pool.page_rows(pages.long()), end - first_key, mask)

    def _causal_mask(self, start: int, end: int, first_key: int, device: torch.device) -> torch.Tensor:
        """``[end - start, end - first_key]``: -inf where a query does not see a key."""
        queries = torch.arange(start, end, device=device).unsqueeze(1)
        keys = torch.arange(first_key, end, device=device)
        hidden = keys > queries
        if self._heads.window is not None:
            hidden |= keys <= queries - self._heads.window
        return torch.zeros(hidden.shape, dtype=self._pool.format.dtype, device=device).masked_fill_(
            hidden, -torch.inf
        )

    def _plan_decodes(
        self,
        batch: ForwardBatch,
        rows: Int64Array,
        first_query: int,
        first_keys: Int32Array,
        table: PageTable,
    ) -> DecodePlan:
        """`rows` index the batch; `first_query` is the query row of the batch's first decode row."""
        pool, device = self._pool, table.pages.device
        ends, firsts = batch.starts[rows] + 1, first_keys[rows]
        num_keys = int((ends - firsts).max())
        num_pages = -(-num_keys // pool.page_size)
        page_index = (firsts // pool.page_size)[:, None] + np.arange(num_pages)
        unused = page_index * pool.page_size >= ends[:, None]
        slots = torch.from_numpy(batch.slots[rows]).to(device).unsqueeze(1)
        pages = table.pages[slots, torch.from_numpy(np.where(unused, 0, page_index)).to(device)]
        keys = np.arange(num_pages * pool.page_size)
        blank = keys >= (ends - firsts)[:, None]
        hidden = blank
        if self._heads.window is not None:
            hidden = blank | (keys < (ends - firsts)[:, None] - self._heads.window)
        return DecodePlan(
            queries=self._query_rows(rows - batch.num_chunks + first_query, device),
            num_rows=len(rows),
            page_rows=pool.page_rows(pages.flatten().long()),
            num_keys=num_keys,
            mask=self._decode_mask(hidden[:, :num_keys], device),
            blanks=_indices(blank & (keys < num_keys), device),
        )

    def _decode_mask(self, hidden: BoolArray, device: torch.device) -> torch.Tensor | None:
        if not hidden.any():
            return None
        mask = torch.zeros(1, len(hidden), 1, hidden.shape[1], dtype=self._pool.format.dtype, device=device)
        return mask.masked_fill_(torch.from_numpy(hidden).to(device)[None, :, None], -torch.inf)

    def _query_rows(self, queries: Int64Array, device: torch.device) -> slice | torch.Tensor:
        first, last = int(queries[0]), int(queries[-1])
        if last - first + 1 == len(queries):
            return slice(first, last + 1)
        return torch.from_numpy(queries).to(device)

    # --- running --------------------

    def _run_chunk(self, part: ChunkPlan, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        heads = self._heads
        group = heads.num_heads // heads.num_kv_heads
        kv = self._pool.gather(layer, part.page_rows)[:, :, : part.num_keys]
        # KV heads stand where a batch usually does: the heads of a group then share their keys by a stride of zero.
        keys, values = kv.unsqueeze(2).expand(-1, -1, group, -1, -1).unbind(0)
        shape = -1, heads.num_kv_heads, group, heads.head_dim
        queries = q[part.queries].view(shape).permute(1, 2, 0, 3)
        attended = scaled_dot_product_attention(
            queries, keys, values, part.mask, is_causal=part.mask is None, scale=self._scale
        )
        out[part.queries].view(shape).copy_(attended.permute(2, 0, 1, 3))

    def _run_decodes(self, part: DecodePlan, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        heads = self._heads
        kv = self._pool.gather(layer, part.page_rows)
        if part.blanks is not None:
            kv.index_fill_(2, part.blanks, 0)
        kv = kv.view(2, heads.num_kv_heads, part.num_rows, -1, heads.head_dim)
        keys, values = kv.narrow(3, 0, part.num_keys).unbind(0)
        # The heads of a group are the "queries" of one attention: they read the same keys, and see all of them.
        shape = part.num_rows, heads.num_kv_heads, -1, heads.head_dim
        queries = q[part.queries].view(shape).transpose(0, 1)
        attended = scaled_dot_product_attention(queries, keys, values, part.mask, scale=self._scale)
        out[part.queries] = attended.transpose(0, 1).reshape(part.num_rows, -1)


def _indices(flags: BoolArray, device: torch.device) -> torch.Tensor | None:
    """Where the flattened `flags` are set; None: nowhere."""
    return torch.from_numpy(np.flatnonzero(flags)).to(device) if flags.any() else None
