"""Counter-based Gumbel noise: the published generator, and its distribution."""

from __future__ import annotations

import math

import pytest
import torch

from compute_loop.sampling_noise import TokenNoise, mix64, row_keys
from tests.compute_loop.sampling_reference import gumbel, splitmix64

CPU = torch.device("cpu")


def as_signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_known_answers_of_splitmix64() -> None:
    """First outputs for seed 1234567 of the public-domain reference implementation."""
    known = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [splitmix64(1234567, index) for index in range(5)] == known
    gamma = as_signed(0x9E3779B97F4A7C15)
    words = 1234567 + torch.arange(1, 6, dtype=torch.int64) * gamma
    assert mix64(words).tolist() == [as_signed(word) for word in known]


@pytest.mark.parametrize("seed", [0, 1, 42, 2**63 - 1])
@pytest.mark.parametrize("position", [0, 1, 5, 2**31 - 1])
def test_noise_equals_the_reference(seed: int, position: int) -> None:
    vocab_size = 101
    keys = row_keys(torch.tensor([seed]), torch.tensor([position], dtype=torch.int32))
    assert keys.item() == as_signed(splitmix64(splitmix64(seed, 0), position))
    scores = torch.zeros(1, vocab_size)
    TokenNoise(vocab_size, CPU).add_to(scores, keys)
    expected = torch.tensor([[gumbel(seed, position, token) for token in range(vocab_size)]])
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 5000, 200_001])
def test_some_tokens_or_all_is_the_same_noise(vocab_size: int) -> None:
    noise = TokenNoise(vocab_size, CPU)
    keys = row_keys(torch.arange(5), torch.tensor([3, 3, 9, 0, 77]))
    scores = torch.zeros(5, vocab_size)
    noise.add_to(scores, keys)
    ids = torch.randint(0, vocab_size, (5, 40), generator=torch.Generator().manual_seed(1))
    assert torch.equal(noise.of(keys, ids), scores.gather(1, ids))
    alone = torch.zeros(1, vocab_size)
    noise.add_to(alone, keys[2:3])
    assert torch.equal(alone[0], scores[2])


def test_noise_is_gumbel_distributed() -> None:
    """Kolmogorov-Smirnov over 4 million numbers of 80 rows; the bound is that of p = 1e-6."""
    scores = torch.zeros(80, 50_000)
    TokenNoise(50_000, CPU).add_to(scores, row_keys(torch.arange(80) // 8, torch.arange(80) % 8))
    assert bool(scores.isfinite().all())
    uniform = torch.exp(-torch.exp(-scores.double())).flatten().sort().values
    count = len(uniform)
    steps = torch.arange(1, count + 1, dtype=torch.float64) / count
    assert float((uniform - steps).abs().max()) < math.sqrt(-0.5 * math.log(0.5e-6) / count)


def test_rows_tokens_and_positions_are_uncorrelated() -> None:
    """Neighbours in each direction: correlation within 5 standard errors."""
    rows, vocab_size = 64, 4096
    seeds, positions = torch.arange(rows) // 8, torch.arange(rows) % 8
    scores = torch.zeros(rows, vocab_size)
    TokenNoise(vocab_size, CPU).add_to(scores, row_keys(seeds, positions))
    ranks = scores.argsort(dim=1).argsort(dim=1).double() / vocab_size - 0.5
    grid = ranks.view(8, 8, vocab_size)
    pairs = {
        "seed": (grid[1:], grid[:-1]),
        "position": (grid[:, 1:], grid[:, :-1]),
        "token": (grid[:, :, 1:], grid[:, :, :-1]),
        "token pair": (grid[:, :, 2:], grid[:, :, :-2]),
    }
    for name, (first, second) in pairs.items():
        correlation = float((first * second).mean() * 12)
        assert abs(correlation) < 5 / math.sqrt(first.numel()), name
