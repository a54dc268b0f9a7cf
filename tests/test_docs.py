"""What the documents say is there: files, commands, options."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from srt.cli import COMMANDS
from srt.core.config import Config
from srt.core.option import flag

ROOT = Path(__file__).resolve().parent.parent
REQUIRED = {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "DECISIONS.md"}
DOCUMENTS = sorted(REQUIRED | {path.name for path in ROOT.glob("*.md")})
TWINLOOP = Path(sys.executable).with_name("twinloop")

FILE_NAME = re.compile(r"`([\w.-]+(?:/[\w.-]+)*/?)`")
"""A path in backticks. Words without a slash or a known ending are names, not files."""
ENDINGS = (".py", ".md", ".toml", ".txt", ".cpp", ".cu")
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
FENCED = re.compile(r"^```(?:bash|sh|console|shell)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MAKE = re.compile(r"\bmake ([a-z][a-z-]*)")
COMMAND = re.compile(r"\btwinloop ([a-z]+)(?: ([a-z][a-z-]*))?")
"""A command and the word after it, which names a bench where the command is ``bench``."""
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]+)")


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def tracked_files() -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return set(listed.splitlines())


def files_named_in(text: str) -> set[str]:
    named = {name.rstrip("/") for name in FILE_NAME.findall(text) if name.endswith((*ENDINGS, "/"))}
    return named | {target.removeprefix("./").rstrip("/") for target in LINK.findall(text)}


def missing_files(text: str, tracked: set[str]) -> list[str]:
    """Names of files in `text` that no tracked path ends with (a document may leave out the room it speaks of)."""
    known = {"/" + path for path in tracked}
    known |= {"/" + str(parent) for path in tracked for parent in Path(path).parents}
    return sorted(
        name for name in files_named_in(text) if not any(path.endswith("/" + name) for path in known)
    )


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def help_of(*words: str) -> str:
    ran = subprocess.run([TWINLOOP, *words, "--help"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def shell_lines(text: str) -> list[str]:
    """The lines of all shell blocks, continued ones joined, comments cut off."""
    blocks = "\n".join(FENCED.findall(text)).replace("\\\n", " ")
    return [line.partition(" #")[0].strip() for line in blocks.splitlines() if line.strip()]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_a_document_names_exist(document: str) -> None:
    assert missing_files(text_of(document), tracked_files()) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_that_a_document_names_exist(document: str) -> None:
    text = text_of(document)
    assert set(MAKE.findall("\n".join(shell_lines(text)))) <= make_targets()
    assert {
        target for name in re.findall(r"`make [^`]*`", text) for target in MAKE.findall(name)
    } <= make_targets()
    assert {command for command, _ in COMMAND.findall("\n".join(shell_lines(text)))} <= set(COMMANDS)


@pytest.mark.e2e
@pytest.mark.parametrize("document", DOCUMENTS)
def test_options_in_the_commands_of_a_document_exist(document: str) -> None:
    for line in shell_lines(text_of(document)):
        for command, word in COMMAND.findall(line):
            words = help_of(*([command, word] if command == "bench" and word else [command])).split()
            known = {word.strip(",[]()").partition("=")[0] for word in words}
            assert set(OPTION.findall(line)) <= known, line


def config_options() -> list[tuple[str, str]]:
    return [
        (choice.name, choice.metadata["help"])
        for group in fields(Config)
        for choice in fields(getattr(Config(), group.name))
    ]


@pytest.mark.parametrize(("name", "text"), config_options())
def test_every_config_field_says_what_it_is(name: str, text: str) -> None:
    assert len(text.split()) > 1, f"{name} has no help text"


def test_serve_help_names_every_config_field() -> None:
    shown = help_of("serve")
    assert [name for name, _ in config_options() if flag(name) not in shown] == []


def test_a_missing_file_is_seen() -> None:
    tracked = {"srt/core/queues.py", "README.md", "tests/e2e/test_serve.py"}
    text = "`queues.py`, `srt/core/`, [this](README.md), `srt/core/nothing.py`, `e2e/`, [that](docs/gone.md), `pip`"
    assert missing_files(text, tracked) == ["docs/gone.md", "srt/core/nothing.py"]


def test_shell_lines_are_joined_and_cut() -> None:
    text = "```bash\nmake serve # note\ntwinloop serve \\\n  --port 1\n```\n\n```python\nmake nothing\n```\n"
    assert [line.split() for line in shell_lines(text)] == [
        ["make", "serve"],
        ["twinloop", "serve", "--port", "1"],
    ]
