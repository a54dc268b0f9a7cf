"""The one place that turns figures into a table for people and into JSON for programs."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import orjson

from bench.environment import Environment
from bench.summary import Summary
from srt.core.errors import ConfigError

WIDTH = 76
LABEL_WIDTH = 40
COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")
"""What a table shows of a distribution; JSON has `Summary` whole."""
HEADINGS = {"p50": "median"}
MESSAGE_WIDTH = 300
ENGINE_SHOWN = ("model", "dtype", "device", "runner", "overlap", "page_size", "max_total_tokens")
"""What a table shows of the engine; JSON has all."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. `key` is its name in JSON and carries its unit; `text` is how a table shows it, if not plainly."""

    label: str
    key: str
    value: float | int | None
    text: str | None = None

    def shown(self) -> str:
        if self.text is not None:
            return self.text
        if self.value is None:
            return "-"
        return f"{self.value:,}" if isinstance(self.value, int) else f"{self.value:,.2f}"


@dataclass(frozen=True, slots=True)
class Distribution:
    """A quantity of which there are many values. In JSON, p90 of key "ttft" in "ms" is ``ttft_p90_ms``."""

    label: str
    key: str
    unit: str
    summary: Summary | None

    def items(self) -> Iterator[tuple[str, float | None]]:
        for number in fields(Summary):
            value = None if self.summary is None else getattr(self.summary, number.name)
            yield f"{self.key}_{number.name}_{self.unit}", value


@dataclass(frozen=True, slots=True)
class Errors:
    """Failed requests by kind, with one message of each kind as an example."""

    counts: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, failures: Sequence[tuple[str, str]]) -> Errors:
        """From (kind, message) of each failed request; the most frequent kind comes first."""
        counts = Counter(kind for kind, _ in failures)
        return cls(dict(counts.most_common()), dict(reversed(failures)))

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Report:
    """All that a run has to say.

    Attributes:
        options: what was asked of the bench, by option.
        engine: what the measured engine says of itself, by its own names.
    """

    bench: str
    environment: Environment
    options: Mapping[str, Any]
    engine: Mapping[str, Any]
    figures: Sequence[Figure]
    distributions: Sequence[Distribution]
    errors: Errors

    @property
    def results(self) -> dict[str, float | int | None]:
        """Every number by its JSON key."""
        results: dict[str, float | int | None] = {figure.key: figure.value for figure in self.figures}
        for distribution in self.distributions:
            results.update(distribution.items())
        return results

    def table(self) -> str:
        """For people."""
        lines = [f" twinloop bench {self.bench} ".center(WIDTH, "=")]
        lines += [part for line in self.environment.lines() for part in _wrap(line)]
        lines += [*_named(self.engine, ENGINE_SHOWN), *_named(self.options, tuple(self.options)), "-" * WIDTH]
        lines += [f"{figure.label + ':':<{LABEL_WIDTH}}{figure.shown():>14}" for figure in self.figures]
        lines += self._distribution_lines()
        lines += self._error_lines()
        return "\n".join([*lines, "=" * WIDTH])

    def to_json(self) -> dict[str, Any]:
        """For programs. Numbers that a run could not have are null."""
        return {
            "bench": self.bench,
            "environment": asdict(self.environment),
            "options": dict(self.options),
            "engine": dict(self.engine),
            "results": self.results,
            "errors": dict(self.errors.counts),
            "error_examples": dict(self.errors.examples),
        }

    def _distribution_lines(self) -> list[str]:
        if not self.distributions:
            return []
        headings = "".join(f"{HEADINGS.get(name, name):>10}" for name in COLUMNS)
        rows = [
            f"{f'{item.label} ({item.unit})':<16}" + "".join(_cell(item.summary, name) for name in COLUMNS)
            for item in self.distributions
        ]
        return ["-" * WIDTH, f"{'':<16}{headings}", *rows]

    def _error_lines(self) -> list[str]:
        if not self.errors.total:
            return []
        rows = [
            f"  {kind:<20}{count:>6}  {self.errors.examples[kind][:MESSAGE_WIDTH]}"
            for kind, count in self.errors.counts.items()
        ]
        return ["-" * WIDTH, "Failed requests by kind, with one message of each:", *rows]


def publish(report: Report, json_path: Path | None) -> int:
    """Prints the table and writes the JSON file; the exit code: 1 if a request failed."""
    print(report.table())
    if json_path is not None:
        json_path.write_bytes(orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2) + b"\n")
    return 1 if report.errors.total else 0


def check_writable(path: Path | None, option: str = "--json") -> None:
    """Finds out before a long run whether its results can be written.

    Raises:
        ConfigError: they cannot.
    """
    if path is None:
        return
    is_new = not path.exists()
    try:
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise ConfigError(
            f"{option} {path} cannot be written: {error.strerror}; name a file in an existing folder of yours"
        ) from error


def _named(values: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    known = (f"{name} {values[name]}" for name in names if values.get(name) is not None)
    return _wrap(", ".join(known))


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _cell(summary: Summary | None, name: str) -> str:
    return f"{'-':>10}" if summary is None else f"{getattr(summary, name):>10,.2f}"
