"""Which decode rows are computed together, padded to the longest of them."""

from __future__ import annotations

import numpy as np

from srt.core.messages import Int32Array, Int64Array

SPLIT_COST = 256
"""Keys of padding that cost as much as one more group: a group is about eight small operations a layer."""


def group_rows(lengths: Int32Array) -> list[Int64Array]:
    """Splits rows by length: row indices of each group, ascending within a group.

    Rows are taken from short to long; where the next row is so much longer that padding all rows of the group to it
    costs more than `SPLIT_COST`, a new group begins.
    """
    if len(lengths) == 0:
        return []
    order = np.argsort(lengths, kind="stable")
    gaps = np.diff(lengths[order])
    cuts, first = [], 0
    for index in np.flatnonzero(gaps):
        if int(gaps[index]) * (int(index) + 1 - first) > SPLIT_COST:
            first = int(index) + 1
            cuts.append(first)
    return [np.sort(group) for group in np.split(order, cuts)]
