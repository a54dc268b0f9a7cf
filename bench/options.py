"""The options that benches over a workload share, and how a command line becomes a run."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bench.local_server import ENGINE_GROUPS, option_words
from bench.report import check_writable
from bench.workloads import (
    PRESETS,
    WORKLOADS,
    Preset,
    Workload,
    check_sizes,
    option_names,
    quick,
    sizes_of,
)
from srt.core.config import Config
from srt.core.errors import ConfigError
from srt.core.option import flag
from srt.server.arguments import add_options, parse_config

DEFAULT_DATASET = "random"
WARMUP = 2
QUICK_WARMUP = 1


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What every bench over a workload is told.

    Attributes:
        preset: where the sizes come from, as far as no option changes them.
        warmup: conversations before the clock starts, of the same sizes and of other tokens.
        timeout: seconds without a new token, while a request runs, after which the run is given up.
        config: options of the engine that the bench starts.
    """

    dataset: str
    workload: Workload
    preset: Preset | None
    quick: bool
    seed: int
    warmup: int
    timeout: float
    json_path: Path | None
    config: Config
    others: argparse.Namespace = field(repr=False)
    """Options of one bench alone."""

    def named(self) -> dict[str, Any]:
        """For a report."""
        return {
            "dataset": self.dataset,
            **sizes_of(self.workload),
            "warmup": self.warmup,
            "seed": self.seed,
            "quick": self.quick,
            "engine_options": " ".join(option_words(self.config)) or None,
        }


def workload_parser(name: str, description: str, datasets: Collection[str]) -> argparse.ArgumentParser:
    """A parser with everything but the options of one bench alone.

    Args:
        datasets: those that the bench can run.
    """
    presets = {name: preset for name, preset in PRESETS.items() if preset.dataset in datasets}
    parser = argparse.ArgumentParser(
        prog=f"twinloop bench {name}",
        description=description,
        epilog="\n".join(["presets:", *(f"  {name}: {_about(preset)}" for name, preset in presets.items())]),
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    _add_run(parser.add_argument_group("run", "How the run is made, and where its figures go."))
    _add_traffic(
        parser.add_argument_group("workload", "What is asked. Sizes overrule those of a preset."),
        datasets,
        presets,
    )
    add_options(parser, ENGINE_GROUPS)
    return parser


def parse_run(parser: argparse.ArgumentParser, argv: Sequence[str]) -> RunOptions:
    """The run that a command line means.

    Raises:
        SystemExit: from argparse, for an option that it does not know.
        ConfigError: names the option, its value and what is allowed.
    """
    config, arguments = parse_config(parser, argv)
    if arguments.warmup is None:
        arguments.warmup = QUICK_WARMUP if arguments.quick else WARMUP
    for name in ("seed", "warmup"):
        if getattr(arguments, name) < 0:
            raise ConfigError(f"--{name} is {getattr(arguments, name)}, it must be 0 or more")
    if not 0 < arguments.timeout < math.inf:
        raise ConfigError(f"--timeout is {arguments.timeout}, it must be a number of seconds over 0")
    check_writable(arguments.json)
    preset = PRESETS[arguments.preset] if arguments.preset else None
    dataset = arguments.dataset or (preset.dataset if preset else DEFAULT_DATASET)
    if preset is not None and preset.dataset != dataset:
        raise ConfigError(f"--preset {arguments.preset} is of --dataset {preset.dataset}, not {dataset}")
    return RunOptions(
        dataset=dataset,
        workload=_workload(dataset, preset, arguments),
        preset=preset,
        quick=arguments.quick,
        seed=arguments.seed,
        warmup=arguments.warmup,
        timeout=arguments.timeout,
        json_path=arguments.json,
        config=config,
        others=arguments,
    )


def _add_run(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--quick", action="store_true", help="small sizes: over within seconds")
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the same seed asks the same (default: 0)"
    )
    group.add_argument(
        "--warmup",
        type=int,
        default=None,
        metavar="N",
        help=f"conversations before the clock starts (default: {WARMUP}, with --quick {QUICK_WARMUP})",
    )
    group.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="give up after so long without a new token (default: 120 seconds)",
    )
    group.add_argument(
        "--json", type=Path, default=None, metavar="FILE", help="write all figures to this file"
    )


def _add_traffic(group: argparse._ArgumentGroup, datasets: Collection[str], presets: Collection[str]) -> None:
    group.add_argument(
        "--dataset",
        choices=tuple(datasets),
        default=None,
        help=f"kind of traffic (default: {DEFAULT_DATASET})",
    )
    group.add_argument(
        "--preset",
        choices=tuple(presets),
        default=None,
        help="a workload with a name, see below",
    )
    for option in _all_sizes(datasets):
        _add_size(group, option, datasets)


def _workload(dataset: str, preset: Preset | None, arguments: argparse.Namespace) -> Workload:
    workload = preset.workload if preset is not None else WORKLOADS[dataset]()
    if arguments.quick:
        workload = quick(workload)
    mine = option_names(type(workload))
    given = {option.name for option in _all_sizes(WORKLOADS)} & set(vars(arguments))
    for name in sorted(given - set(mine)):
        raise ConfigError(
            f"{flag(name)} is no option of --dataset {dataset}, which has {', '.join(map(flag, mine))}"
        )
    sized: Workload = replace(workload, **{name: getattr(arguments, name) for name in given})  # type: ignore[type-var]
    check_sizes(sized)
    return sized


def _all_sizes(datasets: Collection[str]) -> list[Any]:
    """The fields of all workloads, each name once."""
    return list({size.name: size for name in datasets for size in fields(WORKLOADS[name])}.values())


def _add_size(group: argparse._ArgumentGroup, size: Any, datasets: Collection[str]) -> None:
    """One option, absent from the namespace unless given: only a workload or a preset knows its default."""
    owners = [name for name in datasets if size.name in option_names(WORKLOADS[name])]
    defaults = ", ".join(f"{name}: {getattr(WORKLOADS[name](), size.name)}" for name in owners)
    help_text = f"{size.metadata['help']} (default of {defaults})"
    if isinstance(size.default, bool):
        group.add_argument(
            flag(size.name), action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=help_text
        )
    else:
        group.add_argument(
            flag(size.name),
            type=int,
            metavar=size.metadata["unit"].upper() or "N",
            default=argparse.SUPPRESS,
            help=help_text,
        )


def _about(preset: Preset) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in sizes_of(preset.workload).items())
    return f"{preset.dataset}, {sizes}; {preset.max_concurrency} at once"


class _Formatter(argparse.HelpFormatter):
    """Keeps the lines of the epilog apart."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent + "    ")
            for line in text.splitlines()
        )
