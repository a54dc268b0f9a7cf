"""The one place that knows whether memory is a CPU's or a GPU's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from srt.core.errors import ConfigError

MEMINFO = Path("/proc/meminfo")
CGROUP_ROOT = Path("/sys/fs/cgroup")
CPUINFO = Path("/proc/cpuinfo")

_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""x86 (two of them) and Arm."""

_CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
"""Limit, use, and the part of the use that the kernel gives back when asked: cgroup version 2, then 1."""


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken on `device`: for a CPU the machine's or the container's, whichever is less."""
    return _FREE_MEMORY[device.type](device)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros. On a CPU a page of memory is taken, and zeroed, when it is first touched."""
    return _ZEROS[device.type](shape, dtype, device)


def host_bytes(num_bytes: int, device: torch.device) -> torch.Tensor:
    """Zero bytes in host memory that `device` copies to and from: pinned where that makes the copy faster."""
    return _HOST_BYTES[device.type](num_bytes)


def return_freed_memory() -> None:
    """Gives memory that was freed in this process back to the system: after loading, a quarter of the weights' size.

    Only glibc keeps it; elsewhere there is nothing to do.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def read_cpu_free(meminfo: Path = MEMINFO, cgroup_root: Path = CGROUP_ROOT) -> int:
    """Bytes available without swapping, as the kernel says; capped by the limit of the control group.

    Raises:
        ConfigError: `meminfo` does not say (not Linux).
    """
    try:
        lines = meminfo.read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError) as error:
        raise ConfigError(
            f"{meminfo} does not tell the available memory ({error!r}); give --max-total-tokens"
        ) from error
    return min([available, *(_cgroup_free(cgroup_root, *names) for names in _CGROUP_FILES)])


def has_native_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; elsewhere it is several times slower than float32."""
    try:
        words = set(cpuinfo.read_text().split())
    except OSError:
        return False
    return not words.isdisjoint(_BFLOAT16_FLAGS)


def _cgroup_free(root: Path, limit_name: str, usage_name: str, stat_name: str, reclaimable: str) -> int:
    """Bytes left below the limit; a huge number where there is no such group or no limit."""
    try:
        limit = int((root / limit_name).read_text())
        usage = int((root / usage_name).read_text())
        stat = dict(line.split() for line in (root / stat_name).read_text().splitlines())
    except (OSError, ValueError):  # no such file, or the word "max"
        return 2**63
    return max(0, limit - usage + int(stat.get(reclaimable, 0)))


def _cpu_free(device: torch.device) -> int:
    return read_cpu_free()


def _cuda_free(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0])


def _cpu_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # torch.zeros writes every byte (seen: 3 s for 1 GiB); numpy asks the kernel for zero pages and touches none.
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, np.uint8)).view(dtype).view(shape)


def _cuda_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def _cpu_host_bytes(num_bytes: int) -> torch.Tensor:
    return _cpu_zeros((num_bytes,), torch.uint8, torch.device("cpu"))


def _cuda_host_bytes(num_bytes: int) -> torch.Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)


_FREE_MEMORY: dict[str, Callable[[torch.device], int]] = {"cpu": _cpu_free, "cuda": _cuda_free}
_ZEROS: dict[str, Callable[[tuple[int, ...], torch.dtype, torch.device], torch.Tensor]] = {
    "cpu": _cpu_zeros,
    "cuda": _cuda_zeros,
}
_HOST_BYTES: dict[str, Callable[[int], torch.Tensor]] = {"cpu": _cpu_host_bytes, "cuda": _cuda_host_bytes}
