"""The allocator: every page has one owner at any time."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mem_pool.page_allocator import PageAllocator


def pages(*ids: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(ids, np.int32)


def test_hands_out_each_page_once_and_never_the_dummy() -> None:
    allocator = PageAllocator(5)
    first, second = allocator.alloc(3), allocator.alloc(2)
    assert first is not None and second is not None
    assert sorted([*first, *second]) == [1, 2, 3, 4, 5]
    assert allocator.num_free == 0
    assert allocator.alloc(1) is None
    assert allocator.alloc(0) is not None


@pytest.mark.parametrize("wrong", [pages(0), pages(6), pages(1), pages(2, 2), pages(2, 1)])
def test_a_wrong_free_is_an_error_and_changes_nothing(
    wrong: np.ndarray[tuple[int], np.dtype[np.int32]],
) -> None:
    allocator = PageAllocator(5)
    held = allocator.alloc(5)
    assert held is not None
    allocator.free(pages(1))
    with pytest.raises(ValueError, match="page"):
        allocator.free(wrong)
    assert allocator.num_free == 1


def test_a_pool_without_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 page"):
        PageAllocator(0)


@pytest.mark.parametrize("seed", range(20))
def test_random_allocation_never_shares_a_page(seed: int) -> None:
    rng, allocator = random.Random(seed), PageAllocator(40)
    held: list[list[int]] = []
    for _ in range(500):
        if rng.random() < 0.5:
            got = allocator.alloc(rng.randrange(8))
            if got is not None:
                held.append(got.tolist())
        elif held:
            allocator.free(pages(*held.pop(rng.randrange(len(held)))))
        in_use = [page for block in held for page in block]
        assert len(in_use) == len(set(in_use)) == allocator.num_used
