"""The wheel, installed outside the checkout: what a person gets who never sees this repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("srt", "radix_cache", "control_loop", "compute_loop", "mem_pool", "lang_frontend", "bench")

pytestmark = pytest.mark.e2e


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel in it, and an empty folder to run in."""

    wheel: Path
    python: Path
    folder: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs `twinloop` as an installed program, with nothing of this checkout on the path."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [str(self.python.with_name(words[0])), *words[1:]]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("wheel")
    source = copy_of_tracked_files(place / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    quietly(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(place), str(source))
    (wheel,) = place.glob("twinloop-*.whl")
    venv = place / "venv"
    quietly(sys.executable, "-m", "venv", "--without-pip", str(venv))
    python = venv / "bin" / "python"
    quietly(*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    # The dependencies are those of this environment. A path in a .pth file is searched last, and the .pth files in
    # it are not read: so the editable install of the checkout stays out.
    (site,) = (venv / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    folder = place / "elsewhere"
    folder.mkdir()
    return Installed(wheel, python, folder)


def copy_of_tracked_files(target: Path) -> Path:
    # Building in place would take up what an older build left in build/, and leave its own there.
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    return target


def quietly(*command: str) -> None:
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_wheel_holds_the_rooms_and_no_tests(installed: Installed) -> None:
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    inside = {name for name in names if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", *ROOMS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert inside == set(tracked.splitlines())
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_modules_come_from_the_wheel(installed: Installed) -> None:
    code = f"import importlib\nfor name in {ROOMS}: print(importlib.import_module(name).__file__)"
    ran = installed.run("python", "-c", code)
    assert ran.returncode == 0, ran.stderr
    places = [Path(line) for line in ran.stdout.splitlines()]
    assert len(places) == len(ROOMS)
    site = installed.python.parent.parent
    assert [place for place in places if site not in place.parents] == []


def test_help_and_doctor(installed: Installed) -> None:
    shown = installed.run("twinloop", "--help")
    assert (shown.returncode, shown.stdout.splitlines()[0]) == (0, "usage: twinloop COMMAND [options]")
    examined = installed.run("twinloop", "doctor")
    assert examined.returncode == 0, examined.stdout + examined.stderr
    assert str(installed.python) in examined.stdout


def test_generate_answers(installed: Installed) -> None:
    ran = installed.run(
        "twinloop", "generate", "The capital of France is", "--max-new-tokens", "8", "--temperature", "0"
    )
    assert ran.returncode == 0, ran.stderr
    assert "Paris" in ran.stdout
    assert list(installed.folder.iterdir()) == [], "it leaves nothing behind"
