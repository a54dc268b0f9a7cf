"""``twinloop generate``: one answer on the terminal, from an engine that lives as long as the command."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from srt.core.config import Config
from srt.server.arguments import add_options, parse_config
from srt.server.engine import Engine

GROUPS = ("model", "cache", "schedule")


def generate_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="twinloop generate", description="Answer one prompt on the terminal.", allow_abbrev=False
    )
    parser.add_argument("prompt", help='the prompt, or "-" to read it from standard input')
    answer = parser.add_argument_group("answer", "How the answer is chosen.")
    answer.add_argument("--chat", action="store_true", help="the prompt is a user's message in a chat")
    answer.add_argument("--max-new-tokens", type=int, default=256, metavar="TOKENS", help="(default: 256)")
    answer.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0: greedy (default: 0)")
    answer.add_argument("--top-p", type=float, default=1.0, metavar="X", help="(default: 1)")
    answer.add_argument("--top-k", type=int, default=-1, metavar="N", help="-1: all (default: -1)")
    answer.add_argument("--seed", type=int, default=None, metavar="N", help="(default: random)")
    answer.add_argument(
        "--stop", action="append", default=None, metavar="TEXT", help="ends the answer; may be given again"
    )
    add_options(parser, GROUPS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Writes an answer to standard output as it comes; the exit code.

    Raises:
        TwinloopError: the model, an option or the prompt is not right.
    """
    config, arguments = parse_config(generate_parser(), argv)
    with Engine(**_options(config)) as engine:
        _write(engine, arguments)
    return 0


def _write(engine: Engine, arguments: argparse.Namespace) -> None:
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    input_ids = engine.chat_ids([{"role": "user", "content": prompt}]) if arguments.chat else None
    sampling = {
        "max_new_tokens": arguments.max_new_tokens,
        "temperature": arguments.temperature,
        "top_p": arguments.top_p,
        "top_k": arguments.top_k,
        "seed": arguments.seed,
        "stop": arguments.stop,
    }
    written = 0
    answers = engine.generate(None if arguments.chat else prompt, sampling, input_ids=input_ids, stream=True)
    with contextlib.closing(answers):
        for answer in answers:
            print(answer["text"][written:], end="", flush=True)
            written = len(answer["text"])
    print()


def _options(config: Config) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for group in GROUPS:
        options |= asdict(getattr(config, group))
    return options
