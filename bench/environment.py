"""Where and with what a bench ran: figures without this cannot be compared."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("twinloop", "torch")
GIB = 1 << 30
GIT_SECONDS = 10.0
ROOT = Path(__file__).resolve().parent.parent
CPU_NAME = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and the code at the start of a run.

    Attributes:
        commit: of the checkout that the code comes from, "+" behind it where files differ; None for an installed wheel.
        cores: those that this process may use.
        load_1min: processes that ran or wanted to, on average over the last minute, before the bench began.
    """

    started_utc: str
    commit: str | None
    versions: dict[str, str]
    cpu: str
    cores: int
    memory_gib: float
    load_1min: float
    system: str

    @classmethod
    def here(cls) -> Environment:
        return cls(
            started_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            commit=commit_of(ROOT),
            versions={"python": platform.python_version(), **_versions()},
            cpu=_cpu_name(),
            cores=len(os.sched_getaffinity(0)),
            memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB, 1),
            load_1min=round(os.getloadavg()[0], 2),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
        )

    def lines(self) -> list[str]:
        """For a person."""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        commit = f", commit {self.commit}" if self.commit else ""
        lines = [
            f"{self.cpu}, {self.cores} cores, {self.memory_gib:.0f} GiB, {self.system}",
            f"{versions}{commit}, {self.started_utc}",
        ]
        if self.load_1min > self.cores / 2:
            lines.append(
                f"The machine was busy before the run (load {self.load_1min:g} on {self.cores} cores): "
                f"expect better figures on a quiet one"
            )
        return lines


def commit_of(root: Path) -> str | None:
    """The commit of the checkout at `root`, with "+" when a tracked file differs; None where there is no git."""
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    return commit + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")


def _git(root: Path, *words: str) -> str | None:
    try:
        ran = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip()


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    match = CPU_NAME.search(cpuinfo.read_text("utf-8")) if cpuinfo.exists() else None
    return match[1] if match is not None else platform.processor() or platform.machine()
