"""A report's distributions as a picture: one line each from the median to the 99th percentile, by unit."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.report import Distribution, Report
from bench.summary import Summary

ROW_INCHES, FRAME_INCHES, WIDTH_INCHES = 0.34, 1.1, 9.0
COLOR, FAINT = "#1f6f8b", "#9fb8c2"


def save_plot(report: Report, path: Path) -> None:
    """Writes the picture. Times are on a logarithmic axis: what is compared lies far apart."""
    drawn = [item for item in report.distributions if item.summary is not None]
    groups = [(unit, list(items)) for unit, items in groupby(drawn, key=lambda item: item.unit)]
    heights = [len(items) * ROW_INCHES + FRAME_INCHES for _, items in groups]
    figure = Figure(figsize=(WIDTH_INCHES, max(sum(heights), FRAME_INCHES)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_title(report), fontsize=10)
    if groups:
        rows = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)
        for axes, (unit, items) in zip(rows[:, 0], groups, strict=True):
            _draw(axes, unit, items)
    figure.savefig(path, dpi=150)


def _title(report: Report) -> str:
    asked = ", ".join(f"{name} {value}" for name, value in report.options.items())
    where = report.environment
    return (
        f"twinloop bench {report.bench}: {asked}\n{where.cpu}, {where.cores} cores, {where.started_utc[:10]}"
    )


def _draw(axes: Axes, unit: str, items: list[Distribution]) -> None:
    for row, item in enumerate(reversed(items)):
        summary = item.summary
        assert summary is not None
        _draw_row(axes, row, summary)
    axes.set_yticks(range(len(items)), [item.label for item in reversed(items)])
    axes.set_ylim(-0.6, len(items) - 0.4)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_xlabel(f"{unit}: point = median, bar = to the 99th percentile, thin line = from least to most")
    axes.grid(axis="x", which="both", alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_row(axes: Axes, row: int, summary: Summary) -> None:
    axes.plot([summary.min, summary.max], [row, row], color=FAINT, linewidth=1)
    axes.plot(
        [summary.p50, summary.p99], [row, row], color=COLOR, linewidth=5, alpha=0.5, solid_capstyle="butt"
    )
    axes.plot([summary.p50], [row], "o", color=COLOR, markersize=6)
    axes.annotate(
        f"{summary.p50:.3g}",
        (summary.p50, row),
        xytext=(0, 7),
        textcoords="offset points",
        fontsize=7,
        ha="center",
    )
