"""Where a bench's report goes: the table for people, a file for programs, a picture for who would rather look."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from pathlib import Path

from bench.report import Report, check_writable
from bench.report import publish as publish_table
from srt.core.errors import ConfigError

PLOT_FORMATS = (".png", ".svg", ".pdf")


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """`--json` and `--plot`."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the distributions to this .png, .svg or .pdf file"
    )


def check_outputs(arguments: argparse.Namespace) -> None:
    """Before a long run.

    Raises:
        ConfigError: one of the files cannot be written, or a picture cannot be drawn.
    """
    check_writable(arguments.json)
    if arguments.plot is not None:
        _check_plot(arguments.plot)


def publish(report: Report, arguments: argparse.Namespace) -> int:
    """Prints the table and writes the files; the exit code: 1 if a request failed."""
    code = publish_table(report, arguments.json)
    if arguments.plot is not None:
        importlib.import_module("bench.plot").save_plot(report, arguments.plot)  # matplotlib is an extra
    return code


def _check_plot(path: Path) -> None:
    if path.suffix not in PLOT_FORMATS:
        raise ConfigError(
            f"--plot {path} has the ending {path.suffix!r}, it must be one of {', '.join(PLOT_FORMATS)}"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib, which is not installed: pip install matplotlib")
    check_writable(path, "--plot")
