"""The seam of attention: a backend plans a step once, then runs it layer by layer."""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch

from compute_loop.forward_batch import ForwardBatch
from mem_pool.page_table import PageTable

P = TypeVar("P")


class AttentionBackend(Protocol[P]):
    """Thread: compute. Softmax attention over paged KV, for prefill chunks and decode rows of one step together.

    Query rows lie in the order of the batch: the tokens of the chunks, then one token per decode row. A query at
    position p sees the KV positions ``(p - window, p]`` of its own sequence, of which this step stored the last ones.
    """

    def plan(self, batch: ForwardBatch, table: PageTable) -> P:
        """What all layers of a step have in common."""

    def run(self, plan: P, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        """Attention of `q` ``[tokens, num_heads * head_dim]`` over `layer`'s KV into `out` of the same shape."""
