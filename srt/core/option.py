"""One option of the server: its text, its limits, its spelling."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that an option may be: from `least` (or only above it) to `most`. NaN is in no range."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.least < value if self.above else self.least <= value) and value <= self.most

    def __str__(self) -> str:
        if self.most == math.inf:
            return f"be {'more than' if self.above else 'at least'} {self.least:g}"
        return f"lie in {'(' if self.above else '['}{self.least:g}, {self.most:g}]"


ANY = Range()
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, above=True)
COUNT = Range(1)


def option(default: Any, text: str, *, unit: str = "", metavar: str = "", allowed: Range = ANY) -> Any:
    """A dataclass field that is also a command-line option: ``snake_case`` becomes ``--kebab-case``."""
    return field(
        default=default, metadata={"help": text, "unit": unit, "metavar": metavar, "allowed": allowed}
    )


def flag(name: str) -> str:
    """The command-line spelling of an option's name."""
    return "--" + name.replace("_", "-")
