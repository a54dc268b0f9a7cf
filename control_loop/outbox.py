"""Collects what one pass has to say to clients into one columnar message."""

from __future__ import annotations

import numpy as np

from srt.core.messages import FinishReason, Int32Array, Int64Array, RowFinish, TokenOutput, empty_int32


class Outbox:
    """Thread: control. Tokens by the column, finishes one by one; `take` makes a `TokenOutput` of them.

    A finish whose tokens are in the same pass rides on their row, so that a client sees them together.
    """

    def __init__(self) -> None:
        self._keys: list[Int64Array] = []
        self._tokens: list[Int32Array] = []
        self._cached: list[Int32Array] = []
        self._finishes: list[tuple[int, int, FinishReason, int]] = []

    def add_tokens(self, keys: Int64Array, token_ids: Int32Array, cached: Int32Array) -> None:
        """One token for each key. Columns of equal length; the caller gives them away."""
        if len(keys):
            self._keys.append(keys)
            self._tokens.append(token_ids)
            self._cached.append(cached)

    def add_finish(self, key: int, reason: FinishReason, cached_tokens: int, num_retractions: int) -> None:
        self._finishes.append((key, cached_tokens, reason, num_retractions))

    def take(self) -> TokenOutput | None:
        """Everything since the last call, None when there is nothing."""
        if not self._keys and not self._finishes:
            return None
        keys, token_ids, cached = (
            np.concatenate([np.empty(0, kind), *parts])
            for kind, parts in (
                (np.int64, self._keys),
                (np.int32, self._tokens),
                (np.int32, self._cached),
            )
        )
        last_row = _last_rows(keys, {key for key, *_ in self._finishes})
        counts = [1] * len(keys)
        finishes, bare = [], []
        for key, cached_tokens, reason, num_retractions in self._finishes:
            row = last_row.get(key)
            if row is None:
                row = len(counts)
                counts.append(0)
                bare.append((key, cached_tokens))
            finishes.append(RowFinish(row, reason, num_retractions))
        if bare:
            keys = np.append(keys, np.array([key for key, _ in bare], np.int64))
            cached = np.append(cached, np.array([count for _, count in bare], np.int32))
        self._keys, self._tokens, self._cached, self._finishes = [], [], [], []
        offsets = np.concatenate([empty_int32(), [0], np.cumsum(counts)]).astype(np.int32)
        return TokenOutput(keys, offsets, token_ids, cached, tuple(finishes))

    def __repr__(self) -> str:
        return f"Outbox({sum(map(len, self._keys))} tokens, {len(self._finishes)} finishes)"


def _last_rows(keys: Int64Array, wanted: set[int]) -> dict[int, int]:
    """Wanted key -> the last row that has it; without those that no row has."""
    rows = np.flatnonzero(np.isin(keys, list(wanted))) if wanted else ()
    return {int(keys[row]): int(row) for row in rows}
