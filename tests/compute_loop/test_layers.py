"""Each layer against its definition in float64."""

from __future__ import annotations

import pytest
import torch

from compute_loop.layers.linear import DenseLinear, LinearLayer, PackedLinear, make_linear
from compute_loop.layers.mlp import silu_mul
from compute_loop.layers.norm import RMSNormLayer
from compute_loop.layers.rope import inverse_frequencies, rotate, rotation_of
from compute_loop.models.config import RopeScaling
from compute_loop.models.program import Rope

LLAMA3 = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
FACTORS = RopeScaling("factors", factors=tuple(1.0 + i for i in range(32)))


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def poisoned(*shape: int) -> torch.Tensor:
    return torch.full(shape, torch.nan)


@pytest.mark.parametrize("kind", [DenseLinear, PackedLinear])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 16, 33, 300])
def test_linear(kind: type[DenseLinear | PackedLinear], has_bias: bool, num_rows: int) -> None:
    weight, bias = randn(70, 48), randn(70, seed=1) if has_bias else None
    x, residual = randn(num_rows, 48, seed=2), randn(num_rows, 70, seed=3)
    layer: LinearLayer = kind(weight, bias)
    product = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    written = layer.write(x, poisoned(num_rows, 70))
    torch.testing.assert_close(written.double(), product, atol=1e-5, rtol=1e-5)
    added = layer.add(x, residual.clone())
    torch.testing.assert_close(added.double(), residual.double() + product, atol=1e-5, rtol=1e-5)


def test_float32_on_a_cpu_is_packed_and_bfloat16_is_not() -> None:
    assert isinstance(make_linear(randn(8, 8)), PackedLinear)
    assert isinstance(make_linear(randn(8, 8).bfloat16()), DenseLinear)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = (randn(5, 3, 64) * 3).to(dtype), randn(3, 64, seed=1).to(dtype)
    exact = x.double()
    exact = exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    out = poisoned(5, 3, 64).to(dtype)
    layer = RMSNormLayer(weight, 1e-5)
    layer.write(x, out)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), exact, atol=tolerance, rtol=tolerance)
    layer.write(x, x)
    assert torch.equal(x, out)


def test_rms_norm_of_zeros_is_zero() -> None:
    x = torch.zeros(2, 16)
    RMSNormLayer(torch.ones(16), 1e-6).write(x, x)
    assert not x.any()


def test_silu_mul() -> None:
    gate_up = randn(7, 40)
    out = poisoned(7, 20)
    silu_mul(gate_up, out)
    gate, up = gate_up[:, :20].double(), gate_up[:, 20:].double()
    torch.testing.assert_close(out.double(), gate / (1 + (-gate).exp()) * up, atol=1e-6, rtol=1e-6)


def test_rotation_turns_each_pair_by_position_times_frequency() -> None:
    rope = Rope(head_dim=8, theta=100.0, scaling=RopeScaling())
    positions = torch.tensor([0, 1, 7, 500])
    x, out = randn(4, 3, 8), poisoned(4, 3, 8)
    frequencies = inverse_frequencies(rope)
    rotate(x, rotation_of(positions, frequencies, torch.float32), out)
    assert torch.equal(out[0], x[0])
    angles = positions.double()[:, None] * 100.0 ** (-torch.arange(4).double() / 4)
    turned = torch.complex(x[..., :4].double(), x[..., 4:].double()) * torch.polar(
        torch.ones_like(angles), angles
    ).unsqueeze(1)
    expected = torch.cat((turned.real, turned.imag), -1)
    torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=0)


def test_scaled_frequencies() -> None:
    plain = inverse_frequencies(Rope(64, 500000.0, RopeScaling()))
    linear = inverse_frequencies(Rope(64, 500000.0, RopeScaling("linear", 4.0)))
    torch.testing.assert_close(linear, plain / 4)
    by_factor = inverse_frequencies(Rope(64, 500000.0, FACTORS))
    torch.testing.assert_close(by_factor, plain / torch.arange(1.0, 33.0))
    llama3 = inverse_frequencies(Rope(64, 500000.0, LLAMA3))
    wavelengths = 2 * torch.pi / plain
    short, long = wavelengths < 8192 / 4, wavelengths > 8192
    assert torch.equal(llama3[short], plain[short])
    torch.testing.assert_close(llama3[long], plain[long] / 8)
    between = llama3[~short & ~long] / plain[~short & ~long]
    assert len(between) and ((between > 1 / 8) & (between < 1)).all()
