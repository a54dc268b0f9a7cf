"""The command line of `twinloop serve`, derived from the fields of `Config`."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import MISSING, Field, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from srt.core.config import Config, choices_of
from srt.core.option import flag

ALL_GROUPS = tuple(group.name for group in fields(Config))
METAVARS = {int: "N", float: "X", str: "TEXT"}
"""Type of an option -> what stands for its value in the help text."""


def add_options(parser: argparse.ArgumentParser, groups: Collection[str] = ALL_GROUPS) -> None:
    """One argument group for each dataclass of `Config` that is named in `groups`, one option for each field.

    An option that is not given is not in the namespace, so that `Config` alone knows the defaults.
    """
    defaults = Config()
    for group in fields(Config):
        if group.name not in groups:
            continue
        options = getattr(defaults, group.name)
        section = parser.add_argument_group(group.name, type(options).__doc__)
        hints = get_type_hints(type(options))
        for option in fields(options):
            section.add_argument(
                flag(option.name),
                default=argparse.SUPPRESS,
                help=_help(option),
                **_kind(option, hints[option.name]),
            )


def serve_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="twinloop serve", description="Serve a model over HTTP.", allow_abbrev=False
    )
    parser.add_argument(
        "model_argument",
        nargs="?",
        metavar="model",
        default=argparse.SUPPRESS,
        help="the same as --model: a GGUF file, a directory, a hub id",
    )
    add_options(parser)
    return parser


def parse_config(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[Config, argparse.Namespace]:
    """The config that a command line means, and the arguments that are not options of `Config`.

    Raises:
        SystemExit: from argparse, for an option that it does not know.
        ConfigError: a value outside its limits.
    """
    arguments = parser.parse_args(argv)
    values = vars(arguments)
    if "model_argument" in values:
        if "model" in values:
            parser.error("the model is given twice: as an argument and with --model")
        values["model"] = values.pop("model_argument")
    names = {option.name for group in fields(Config) for option in fields(getattr(Config(), group.name))}
    chosen = {name: values.pop(name) for name in list(values) if name in names}
    return Config.from_flat(**chosen), arguments


def _kind(option: Field[Any], annotation: Any) -> dict[str, Any]:
    """How argparse reads one option."""
    plain = [kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType]
    choices = choices_of(option.type)
    if choices is not None:
        return {"choices": choices}
    if plain == [bool]:
        return {"action": argparse.BooleanOptionalAction}
    metavar = option.metadata["metavar"] or option.metadata["unit"].upper() or METAVARS[plain[0]]
    return {"type": plain[0], "metavar": metavar}


def _help(option: Field[Any]) -> str:
    text: str = option.metadata["help"].replace("%", "%%")
    unit = option.metadata["unit"]
    if option.default is None or option.default is MISSING:
        return text
    shown = ("no", "yes")[option.default] if isinstance(option.default, bool) else option.default
    return f"{text} (default: {shown}{' ' + unit if unit else ''})"
