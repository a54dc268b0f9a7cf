"""The options of `twinloop bench long-prompt`, and the servers that they ask for."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from bench.bounds import check_bounds
from bench.local_server import ENGINE_GROUPS, option_words
from srt.core.config import Config
from srt.core.errors import ConfigError
from srt.server.arguments import add_options

CHUNK_SIZES, QUICK_CHUNK_SIZES = (128, 512, 2048), (64, 256)
PROMPT_TOKENS, QUICK_PROMPT_TOKENS = 8000, 512
ROUNDS, QUICK_ROUNDS = 3, 1
ALONE_TOKENS, QUICK_ALONE_TOKENS = 64, 8
"""What each stream writes before the long prompt of a round is sent."""
STREAM_PROMPT_TOKENS = 32
OWN_OPTIONS = ("--chunked-prefill-size", "--max-step-tokens", "--max-running-requests", "--max-total-tokens")
"""Options of the server that follow from the sizes of a run."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a run is made of: `chunks` in tokens, one server for each."""

    chunks: tuple[int, ...]
    num_streams: int
    prompt_tokens: int
    alone_tokens: int
    num_rounds: int
    seed: int

    def stream_tokens(self, chunk: int) -> int:
        """More than a stream writes until the last round ends, with a decode in each step of every long prompt."""
        steps = -(-self.prompt_tokens // chunk)
        return self.num_rounds * (2 * self.alone_tokens + 2 * steps) + self.alone_tokens

    def config(self, config: Config, chunk: int) -> Config:
        """A server in which every stream has its decode in each step, and the pool holds everything at once."""
        schedule = replace(
            config.schedule,
            chunked_prefill_size=chunk,
            max_step_tokens=chunk + self.num_streams,
            max_running_requests=self.num_streams + 1,
        )
        tokens = self.num_streams * (STREAM_PROMPT_TOKENS + self.stream_tokens(chunk)) + self.prompt_tokens
        room = tokens + (self.num_streams + 1) * 4 * config.cache.page_size
        return replace(config, schedule=schedule, cache=replace(config.cache, max_total_tokens=room))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="twinloop bench long-prompt",
        description="Measure how long running streams wait between two tokens, alone and while the prefill of a long "
        "prompt runs beside them, by the size of its chunks: a smaller one bounds the gap, and the long prompt takes "
        "longer. Starts servers of its own.",
        allow_abbrev=False,
    )
    run = made.add_argument_group("run", "What is measured, and where its figures go.")
    run.add_argument("--quick", action="store_true", help="small sizes: over within a minute")
    for name, metavar, text, default in (
        ("--streams", "N", "answers that run all the time", 4),
        ("--prompt-tokens", "TOKENS", "length of the long prompt", PROMPT_TOKENS),
        ("--rounds", "N", "long prompts for each size of chunk", ROUNDS),
        ("--seed", "N", "the same seed asks the same", 0),
    ):
        run.add_argument(name, type=int, metavar=metavar, help=f"{text} (default: {default})")
    chunks = " ".join(map(str, CHUNK_SIZES))
    run.add_argument(
        "--chunk-sizes",
        type=int,
        nargs="+",
        metavar="TOKENS",
        help=f"values of --chunked-prefill-size to compare (default: {chunks})",
    )
    run.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    add_options(made, ENGINE_GROUPS)
    return made


def sizes_of(arguments: argparse.Namespace, config: Config) -> Sizes:
    """Raises:
    ConfigError: names the option, its value and what is allowed.
    """
    quick = arguments.quick

    def value(name: str, usual: int) -> int:
        given: int | None = getattr(arguments, name)
        return usual if given is None else given

    for word in option_words(config):
        if word in OWN_OPTIONS:
            raise ConfigError(
                f"{word} is set by this bench: leave it out (--chunk-sizes, --streams size a run)"
            )
    sizes = Sizes(
        chunks=tuple(arguments.chunk_sizes or (QUICK_CHUNK_SIZES if quick else CHUNK_SIZES)),
        num_streams=value("streams", 4),
        prompt_tokens=value("prompt_tokens", QUICK_PROMPT_TOKENS if quick else PROMPT_TOKENS),
        alone_tokens=QUICK_ALONE_TOKENS if quick else ALONE_TOKENS,
        num_rounds=value("rounds", QUICK_ROUNDS if quick else ROUNDS),
        seed=value("seed", 0),
    )
    for option, given, least in (
        *(("chunk-sizes", chunk, 1) for chunk in sizes.chunks),
        ("streams", sizes.num_streams, 1),
        ("prompt-tokens", sizes.prompt_tokens, 1),
        ("rounds", sizes.num_rounds, 1),
        ("seed", sizes.seed, 0),
    ):
        check_bounds(option, given, least)
    return sizes
