"""The command table: light, complete, and plain about what went wrong."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from srt.cli import COMMANDS, Command, help_text, main, run
from srt.core.errors import ConfigError

HEAVY = ("torch", "numpy", "fastapi", "pydantic", "uvicorn", "zmq", "msgspec", "asyncio", "tokenizers")
TWINLOOP = Path(sys.executable).with_name("twinloop")


def test_help_names_every_command_once() -> None:
    lines = help_text().splitlines()
    for name, command in COMMANDS.items():
        assert [line for line in lines if line.startswith(f"  {name} ")] == [f"  {name:<10}{command.summary}"]


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import json, sys, srt.cli\n"
        "code = srt.cli.main(['--help'])\n"
        "print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    code_returned, loaded = json.loads(ran.stderr)
    assert code_returned == 0
    assert ran.stdout.startswith("usage: twinloop COMMAND")
    assert set(HEAVY) & set(loaded) == set()
    rooms = {name for name in loaded if name.partition(".")[0] in ("srt", "bench", "compute_loop")}
    assert rooms == {"srt", "srt.cli", "srt.core", "srt.core.errors"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_module(name: str) -> None:
    assert callable(importlib.import_module(COMMANDS[name].module).main)


@pytest.mark.e2e
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    ran = subprocess.run([TWINLOOP, name, "--help"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"usage: twinloop {name}")


def test_no_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().out == help_text() + "\n"


def test_an_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serv"]) == 2
    message = capsys.readouterr().err
    assert "'serv'" in message
    assert all(name in message for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("twinloop 0.")


def command_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> Command:
    """A real module on the path whose `main` does `body`."""
    name = f"cli_sample_{tmp_path.name.replace('-', '_')}"
    source = f"from srt.core.errors import ConfigError\ndef main(arguments):\n    {body}\n"
    (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return Command(name, "a sample")


@pytest.mark.parametrize(("arguments", "code"), [(["a"], 1), (["a", "b", "c"], 3)])
def test_a_command_gets_its_words_and_gives_the_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: Sequence[str], code: int
) -> None:
    assert run(command_that(monkeypatch, tmp_path, "return len(arguments)"), arguments) == code


def test_an_expected_failure_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ConfigError("--port is 70000, it must lie in [0, 65535]")
    assert run(command_that(monkeypatch, tmp_path, f"raise ConfigError({error.message!r})"), []) == 1
    assert capsys.readouterr().err == f"twinloop: {error.message}\n"


def test_an_interrupt_has_its_own_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(command_that(monkeypatch, tmp_path, "raise KeyboardInterrupt"), []) == 130


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run(command_that(monkeypatch, tmp_path, "return 1 // 0"), [])


@pytest.mark.parametrize("end", ["return 0", "raise SystemExit(0)"])
def test_a_reader_that_goes_away_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    command = command_that(monkeypatch, tmp_path, f"print('a line'); {end}")
    code = f"import sys; from srt.cli import Command, run; sys.exit(run({command!r}, []))"
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, env=environment, check=False
    )
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (1, b"")
