"""A distribution in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean, extremes and percentiles, in the unit of the values.

    Percentiles interpolate linearly between the two values next to them, as ``numpy.percentile`` does by default.
    """

    mean: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary | None:
        """The summary of some values; None of none."""
        if not len(values):
            return None
        array = np.asarray(values, np.float64)
        p50, p90, p95, p99 = np.percentile(array, PERCENTILES).tolist()
        return cls(float(array.mean()), float(array.min()), p50, p90, p95, p99, float(array.max()))
