"""`twinloop doctor`: what this machine has, what is missing, what to do about it.

It needs nothing but the standard library: torch and the model are looked at in a process of their own, so that a
broken installation of either is one line of the report and not the end of it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DISTRIBUTION = "twinloop"
OLDEST_PYTHON = (3, 11)
GIB = 1 << 30
ROOMY_MEMORY_GIB = 2.0
"""The default model in float32 (0.5 GiB), torch itself, and a KV pool worth having."""
ROOMY_DISK_GIB = 5.0
"""A model of 2 billion weights in 16 bits, and some room."""
PROBE_SECONDS = 120.0
MEND_INSTALL = "`make setup` in a checkout, `pip install twinloop` elsewhere"

Level = Literal["ok", "note", "missing"]

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?P<bounds>[^;]*)(?:;(?P<marker>.*))?")
_AT_LEAST = re.compile(r">=\s*(?P<version>[0-9.]+)")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `missing` is what serving cannot do without; `note` is only worth knowing."""

    level: Level
    topic: str
    text: str
    todo: str = ""

    def lines(self) -> str:
        first = f"{self.level:<9}{self.topic:<10}{self.text}"
        return f"{first}\n{'':<19}-> {self.todo}" if self.todo else first


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """What `srt.server.doctor_torch` prints. `cuda_build` is None for a CPU build; `gpus` are names with sizes."""

    version: str
    cuda_build: str | None
    threads: int
    vectors: str
    gpus: list[str]


def main(arguments: Sequence[str]) -> int:
    """Prints the report. Returns 0 if a model can be served here, 1 if something is missing."""
    parser = argparse.ArgumentParser(prog="twinloop doctor", description=__doc__.partition("\n")[0])
    parser.parse_args(arguments)
    missing = 0
    for finding in report():
        missing += finding.level == "missing"
        print(finding.lines(), flush=True)
    print("\nready to serve: twinloop serve" if not missing else f"\nnot ready: {missing} missing, see above")
    return 1 if missing else 0


def report() -> Iterator[Finding]:
    """Every finding, as soon as it is known."""
    yield check_python()
    yield check_processor()
    yield check_memory()
    yield check_disk()
    yield check_compiler()
    yield check_packages()
    torch = probe_torch()
    yield check_torch(torch)
    yield check_gpu(torch)
    yield check_model()


def check_python() -> Finding:
    text = f"{platform.python_version()} at {sys.executable}, {platform.system()} {platform.machine()}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding("missing", "python", text, f"install {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    return Finding("ok", "python", text)


def check_packages() -> Finding:
    """Every dependency that the distribution declares, with its lower bound."""
    try:
        declared = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return Finding("missing", "packages", f"{DISTRIBUTION} itself is not installed", MEND_INSTALL)
    wrong: list[str] = []
    needed = 0
    for requirement in declared:
        match = _REQUIREMENT.match(requirement)
        if match is None or "extra" in (match["marker"] or ""):
            continue
        needed += 1
        if problem := _problem_with(match["name"], match["bounds"]):
            wrong.append(problem)
    if wrong:
        return Finding("missing", "packages", "; ".join(wrong), MEND_INSTALL)
    return Finding("ok", "packages", f"all {needed} that {DISTRIBUTION} needs are installed")


def _problem_with(name: str, bounds: str) -> str:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"{name} is not installed"
    bound = _AT_LEAST.search(bounds)
    if bound is not None and _numbers(version) < _numbers(bound["version"]):
        return f"{name} is {version}, at least {bound['version']} is needed"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


def probe_torch() -> TorchFacts | str:
    """What torch says of itself, or why it does not load."""
    ran = _python("-m", "srt.server.doctor_torch")
    return TorchFacts(**json.loads(ran.stdout)) if ran.returncode == 0 else _last_line(ran.stderr)


def check_torch(torch: TorchFacts | str) -> Finding:
    if isinstance(torch, str):
        return Finding("missing", "torch", f"does not load: {torch}", MEND_INSTALL)
    build = f"CUDA {torch.cuda_build} build" if torch.cuda_build else "CPU build"
    return Finding(
        "ok",
        "torch",
        f"{torch.version} ({build}), {torch.threads} threads, vector instructions {torch.vectors}",
    )


def check_gpu(torch: TorchFacts | str) -> Finding:
    """The GPU as torch sees it, and as the driver does where torch does not."""
    driver = _driver_says()
    if not isinstance(torch, str) and torch.gpus:
        return _check_gpu_packages(", ".join(torch.gpus))
    if not driver:
        return Finding("note", "gpu", "none found: steps run on the CPU")
    if isinstance(torch, str) or torch.cuda_build:
        return Finding("note", "gpu", f"{driver}, but torch does not see it", "check CUDA_VISIBLE_DEVICES")
    return Finding("note", "gpu", f"{driver}, but this torch is a CPU build", "install a CUDA build of torch")


def _check_gpu_packages(gpus: str) -> Finding:
    absent = [name for name in ("triton", "flashinfer") if importlib.util.find_spec(name) is None]
    if not absent:
        return Finding("ok", "gpu", gpus)
    return Finding("note", "gpu", f"{gpus}; no {' and no '.join(absent)}", "pip install 'twinloop[gpu]'")


def _driver_says() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    ran = _quietly(command, "--query-gpu=name,driver_version", "--format=csv,noheader")
    return "; ".join(ran.stdout.split("\n")).strip("; ") if ran.returncode == 0 else ""


def check_memory() -> Finding:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return Finding("note", "memory", "unknown on this system")
    kib = {line.split(":")[0]: int(line.split()[1]) for line in meminfo.read_text("utf-8").splitlines()}
    available, total = kib["MemAvailable"] / (1 << 20), kib["MemTotal"] / (1 << 20)
    text = f"{available:.1f} GiB available of {total:.1f} GiB"
    if available < ROOMY_MEMORY_GIB:
        return Finding(
            "note", "memory", text, f"the default model is at ease with {ROOMY_MEMORY_GIB:.0f} GiB"
        )
    return Finding("ok", "memory", text)


def check_processor() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = f"{usable} cores usable of {os.cpu_count()}"
    if usable < 2:
        return Finding("note", "processor", text, "the two loops share one core: expect gaps between steps")
    return Finding("ok", "processor", text)


def check_disk() -> Finding:
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    there = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(there).free / GIB
    text = f"{free:.1f} GiB free for models in {cache}"
    if free < ROOMY_DISK_GIB:
        return Finding("note", "disk", text, "HF_HOME=DIR puts models from the hub on another disk")
    return Finding("ok", "disk", text)


def check_compiler() -> Finding:
    for name in ("c++", "g++", "clang++"):
        if command := shutil.which(name):
            return Finding("ok", "compiler", _quietly(command, "--version").stdout.partition("\n")[0])
    return Finding(
        "note", "compiler", "no C++ compiler: native kernels cannot be built here", "apt-get install g++"
    )


def check_model() -> Finding:
    ran = _python(
        "-c",
        "from compute_loop.models.files import DEFAULT_MODEL, locate_model\n"
        "print(locate_model(DEFAULT_MODEL).weight_files[0])",
    )
    if ran.returncode != 0:
        return Finding("missing", "model", _last_line(ran.stderr))
    path = Path(ran.stdout.strip())
    return Finding("ok", "model", f"the default one is {path} ({path.stat().st_size / 1e6:.0f} MB)")


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _quietly(sys.executable, *arguments)


def _quietly(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {PROBE_SECONDS:.0f} s")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]
