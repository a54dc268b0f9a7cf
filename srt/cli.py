"""`twinloop`: the command table. A command's module is imported when the command runs, never before.

So `twinloop --help` costs a Python start, and a command without a model never loads torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from srt.core.errors import TwinloopError

PROGRAM = "twinloop"
USAGE_ERROR = 2
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """One line of the table.

    `module` has a ``main(arguments)`` that gets the words after the command, reads ``--help`` itself and returns
    the exit code.
    """

    module: str
    summary: str


COMMANDS = {
    "serve": Command("srt.server.serve", "serve a model over HTTP"),
    "generate": Command("srt.server.generate_command", "answer a prompt here, without a server"),
    "tree": Command("srt.server.tree_command", "show what a running server has cached, as a tree"),
    "bench": Command("bench.command", "measure throughput and latency"),
    "models": Command(
        "srt.server.models_command", "list the model families, file formats and the default model"
    ),
    "doctor": Command("srt.server.doctor", "say what this machine has, what is missing and what to do"),
}

EXAMPLES = """\
examples:
  twinloop serve                                    the default model on 127.0.0.1:30000
  twinloop serve --model owner/name --port 8000     a model from the hub, on another port
  twinloop generate "The capital of France is"      one answer, no server
  twinloop serve --help                             the options of one command"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: the words after the program's name; default: those of this process.

    Returns:
        The exit code: 0 done, 1 failed with a message, 2 wrong usage, 130 interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0 if words else USAGE_ERROR
    if words[0] in ("-V", "--version"):
        # Reading a distribution's version costs more than the whole rest of this program.
        print(f"{PROGRAM} {importlib.import_module('importlib.metadata').version(PROGRAM)}")
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        message = f"{PROGRAM}: there is no command {words[0]!r}; there are: {', '.join(COMMANDS)}"
        print(f"{message}\n`{PROGRAM} --help` says what each is for", file=sys.stderr)
        return USAGE_ERROR
    return run(command, words[1:])


def run(command: Command, arguments: Sequence[str]) -> int:
    """Runs `command`; an expected failure becomes one line on standard error and exit code 1."""
    function: Callable[[Sequence[str]], int] = importlib.import_module(command.module).main
    try:
        try:
            return function(arguments)
        finally:
            sys.stdout.flush()
    except TwinloopError as error:
        print(f"{PROGRAM}: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`twinloop models | head`). Python flushes once more at exit: give it a sink.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def help_text() -> str:
    """What `twinloop --help` prints."""
    lines = [
        f"usage: {PROGRAM} COMMAND [options]",
        "",
        "Serves language models to programs that share prefixes.",
        "",
        "commands:",
        *(f"  {name:<10}{command.summary}" for name, command in COMMANDS.items()),
        "",
        EXAMPLES,
    ]
    return "\n".join(lines)
