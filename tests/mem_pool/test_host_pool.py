"""KV pages that go to host memory and come back are the same bits, and no other page is touched."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from mem_pool.host_pool import HostPool
from mem_pool.kv_format import KVFormat
from mem_pool.kv_pool import KVPool

CPU = torch.device("cpu")
NUM_PAGES = 12


def bits_of(pool: KVPool) -> list[torch.Tensor]:
    return [layer.view(torch.uint8).clone() for layer in pool.layers]


def noisy_pool(page_size: int, dtype: torch.dtype, seed: int) -> KVPool:
    """Every bit pattern, numbers that are none too."""
    pool = KVPool(NUM_PAGES, page_size, 3, 2, 8, KVFormat(dtype), CPU)
    generator = torch.Generator().manual_seed(seed)
    for layer in pool.layers:
        layer.view(torch.uint8).random_(0, 256, generator=generator)
    return pool


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_pages_come_back_bit_by_bit_through_host_memory_into_another_pool(
    page_size: int, dtype: torch.dtype, seed: int
) -> None:
    rng = random.Random(seed)
    first, second = noisy_pool(page_size, dtype, seed), noisy_pool(page_size, dtype, seed + 99)
    host = HostPool(20, first.page_bytes, CPU)
    before = bits_of(first), bits_of(second)
    count = rng.randrange(1, NUM_PAGES)
    src, dst = (
        np.array(rng.sample(range(1, NUM_PAGES + 1), count), np.int32),
        np.array(rng.sample(range(1, NUM_PAGES + 1), count), np.int32),
    )
    between = np.array(rng.sample(range(20), count), np.int32)
    first.copy_to_host(src, host, between)
    second.copy_from_host(host, between, dst)
    expected = [layer.clone() for layer in before[1]]
    for layer, source in zip(expected, before[0], strict=True):
        layer[:, :, dst] = source[:, :, src]
    assert all(map(torch.equal, bits_of(second), expected)), f"seed {seed}"
    assert all(map(torch.equal, bits_of(first), before[0])), "the source was written"
    idle = np.setdiff1d(np.arange(20), between)
    assert not host.pages[idle].any(), "another host page was written"


def test_a_page_lies_in_one_piece_layer_after_layer() -> None:
    """What a file holds: all of a page's bytes, and nothing of its neighbours'."""
    pool = noisy_pool(4, torch.bfloat16, 1)
    host = HostPool(2, pool.page_bytes, CPU)
    pool.copy_to_host(np.array([5], np.int32), host, np.array([1], np.int32))
    parts = [layer[:, :, 5].contiguous().view(torch.uint8).flatten() for layer in pool.layers]
    assert host.pages[1].tobytes() == torch.cat(parts).numpy().tobytes()
    assert pool.page_bytes == 3 * 2 * 2 * 4 * 8 * 2
    assert repr(host) == "HostPool(2 pages, 0 MiB)"


def test_no_pages_are_no_work() -> None:
    pool = noisy_pool(1, torch.float32, 1)
    host = HostPool(1, pool.page_bytes, CPU)
    none = np.empty(0, np.int32)
    pool.copy_to_host(none, host, none)
    pool.copy_from_host(host, none, none)
    assert not host.pages.any()
