"""How large the pool becomes, and what the operator reads where it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mem_pool.device import free_memory, has_native_bfloat16, read_cpu_free
from mem_pool.sizing import kv_bytes_per_token, pool_tokens
from srt.core.errors import ConfigError


def size(
    free_bytes: int,
    *,
    fraction: float = 0.5,
    total: int | None = None,
    context: int = 1000,
    running: int = 1000,
) -> int:
    return pool_tokens(
        free_bytes=free_bytes,
        bytes_per_token=10,
        mem_fraction=fraction,
        max_total_tokens=total,
        page_size=16,
        context_length=context,
        max_running=running,
    )


def test_keys_and_values_of_all_layers_count() -> None:
    assert kv_bytes_per_token(num_layers=30, num_kv_heads=3, head_dim=64, bytes_per_number=4) == 46_080


def test_the_pool_and_its_dummy_page_take_the_share_of_the_free_memory() -> None:
    assert size(320_000) == 999 * 16
    assert (size(320_000) + 16) * 10 <= 160_000


def test_no_more_than_all_running_requests_can_fill() -> None:
    assert size(10**9, context=100, running=3) == 3 * 112


def test_max_total_tokens_overrides_the_share_and_is_rounded_down_to_pages() -> None:
    assert size(10_000, fraction=0.01, total=100, context=8, running=1) == 96


def test_a_pool_shorter_than_the_context_is_fine() -> None:
    assert size(1000, fraction=1.0, context=100_000) == 80


def test_not_one_page_fits() -> None:
    with pytest.raises(
        ConfigError, match=r"--mem-fraction 0\.5 of 0\.00 GiB free memory holds no page of 16 tokens"
    ):
        size(600)
    with pytest.raises(ConfigError, match=r"--max-total-tokens 400 needs .* at most 32 tokens fit"):
        size(600, total=400)
    with pytest.raises(ConfigError, match="--max-total-tokens 15 is less than one page of 16 tokens"):
        size(10_000, total=15)


def test_the_least_of_machine_and_control_group_is_free(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       9000 kB\nMemAvailable:   5000 kB\n")
    group = tmp_path / "cgroup"
    group.mkdir()
    assert read_cpu_free(meminfo, group) == 5000 * 1024
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    (group / "memory.stat").write_text("anon 700\ninactive_file 300\n")
    assert read_cpu_free(meminfo, group) == 5000 * 1024
    (group / "memory.max").write_text("2500\n")
    assert read_cpu_free(meminfo, group) == 1800
    (group / "memory.max").write_text("500\n")
    assert read_cpu_free(meminfo, group) == 0


def test_a_machine_that_does_not_say_needs_the_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --max-total-tokens"):
        read_cpu_free(tmp_path / "none", tmp_path)


def test_this_machine_has_memory() -> None:
    assert 2**20 < free_memory(torch.device("cpu")) < 2**50


def test_bfloat16_is_native_where_the_flags_say_so(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    for flags, expected in (("fpu avx2 fma", False), ("avx2 avx512_bf16", True), ("amx_bf16 amx_tile", True)):
        cpuinfo.write_text(f"processor : 0\nflags\t\t: {flags}\n")
        assert has_native_bfloat16(cpuinfo) is expected
    assert has_native_bfloat16(tmp_path / "none") is False
