"""Storing and gathering keys and values, and the page table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mem_pool.device import return_freed_memory
from mem_pool.kv_format import KVFormat
from mem_pool.kv_pool import KVPool
from mem_pool.page_table import PageTable
from srt.core.messages import Int32Array, empty_int32

CPU = torch.device("cpu")


def column(*values: int) -> Int32Array:
    return np.array(values, np.int32)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_stored_is_gathered_in_the_order_of_the_pages(page_size: int, dtype: torch.dtype) -> None:
    pool = KVPool(5, page_size, 2, 3, 8, KVFormat(dtype), CPU)
    generator = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, 2 * page_size, 3, 8, generator=generator).to(dtype)
    pages = torch.tensor([4, 2])
    positions = (pages.unsqueeze(1) * page_size + torch.arange(page_size)).flatten()
    pool.store(1, positions, k, v)
    gathered = pool.gather(1, pool.page_rows(pages))
    assert torch.equal(gathered[0].transpose(0, 1), k)
    assert torch.equal(gathered[1].transpose(0, 1), v)
    assert not pool.layers[0].any(), "another layer was written"
    untouched = pool.gather(1, pool.page_rows(torch.tensor([0, 1, 3, 5])))
    assert not untouched.any(), "another page was written"


def test_a_pool_has_its_pages_and_the_dummy_page_and_takes_no_memory_before_use() -> None:
    before = resident_bytes()
    pool = KVPool(2**15, 16, 2, 4, 64, KVFormat(torch.float32), CPU)
    assert pool.num_bytes == 2 * 2 * (2**15 + 1) * 16 * 4 * 64 * 4
    assert resident_bytes() - before < pool.num_bytes / 10
    assert not pool.gather(1, pool.page_rows(torch.tensor([2**15]))).any()
    assert repr(pool) == "KVPool(32768 pages of 16 tokens, 2 layers, torch.float32, 2048 MiB)"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_entries_reach_their_slots_and_no_others() -> None:
    table = PageTable(4, 5, CPU)
    table.apply(column(1, 3, 1), column(0, 4, 1), column(7, 8, 9))
    table.apply(empty_int32(), empty_int32(), empty_int32())
    expected = torch.zeros(4, 5, dtype=torch.int32)
    expected[1, 0], expected[3, 4], expected[1, 1] = 7, 8, 9
    assert torch.equal(table.pages, expected)
    assert repr(table) == "PageTable(4 slots of 5 pages, 3 entries set)"
    table.clear()
    assert not table.pages.any()


def test_the_later_of_two_entries_for_one_cell_counts() -> None:
    table = PageTable(3, 300, CPU)
    index = np.concatenate([np.arange(300), np.arange(300)]).astype(np.int32)
    pages = np.arange(1, 601, dtype=np.int32)
    table.apply(np.full(600, 2, np.int32), index, pages)
    assert table.pages[2].tolist() == list(range(301, 601))


@pytest.mark.parametrize(("slot", "index"), [(4, 0), (-1, 0), (0, 5), (0, -1)])
def test_an_entry_outside_the_table_changes_nothing(slot: int, index: int) -> None:
    table = PageTable(4, 5, CPU)
    with pytest.raises(IndexError, match="not all within"):
        table.apply(column(1, slot), column(1, index), column(3, 4))
    assert not table.pages.any()


def test_freed_memory_goes_back_to_the_system() -> None:
    blocks = [bytearray(60_000) for _ in range(2000)]
    keep = blocks[-1]
    full = resident_bytes()
    blocks.clear()
    return_freed_memory()
    assert full - resident_bytes() > 2000 * 60_000 / 2
    assert len(keep) == 60_000
