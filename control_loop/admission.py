"""How much memory the rows that run will still ask for: what an admission must leave to them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from control_loop.page_credits import CREDIT_REFILL
from control_loop.req import Req
from control_loop.slots import SlotTable

FIRST_RATIO: Final = 0.7
"""Share of their remaining tokens that rows are believed to need, before anything is known of them."""
LEAST_RATIO: Final = 0.1
"""Most requests end long before `max_new_tokens`."""
DECAY_STEPS: Final = 600
"""Steps without a retraction from the first ratio to the least."""
JUMP: Final = 0.15
"""What one retraction adds: the estimate was too low."""
MAX_AHEAD: Final = 4096
"""No row counts for more tokens than this: memory comes back long before."""


class NewTokenRatio:
    """Thread: control. The share of remaining tokens that is reserved: falls step by step, jumps at a retraction.

    Attributes:
        value: in [0, 1]; `conservativeness` scales it, 0 reserves nothing but the next credit.
    """

    def __init__(self, conservativeness: float) -> None:
        self._first = min(1.0, FIRST_RATIO * conservativeness)
        self._least = min(1.0, LEAST_RATIO * conservativeness)
        self._jump = JUMP * conservativeness
        self.value = self._first

    def on_steps(self, count: int) -> None:
        """So many steps went by."""
        fall = (self._first - self._least) / DECAY_STEPS * count
        self.value = max(self._least, self.value - fall)

    def on_retractions(self, count: int) -> None:
        """So many rows had to give their memory back."""
        self.value = min(1.0, self.value + self._jump * count)

    def reset(self) -> None:
        """Nothing runs: what was learnt is of another load."""
        self.value = self._first

    def __repr__(self) -> str:
        return f"NewTokenRatio({self.value:.3f})"


class Admission:
    """Thread: control. Estimates in pages, over columns::

    KV of a row:  [0 ......... num_pages * page_size)[........... max_kv)
                   in its lease                       may still be asked for
    """

    def __init__(self, slots: SlotTable, ratio: NewTokenRatio, conservativeness: float) -> None:
        self._slots = slots
        self._ratio = ratio
        self._certain_ratio = min(1.0, conservativeness)

    def future_pages(self, rows: npt.NDArray[np.bool_]) -> int:
        """Pages that rows (a mask over slots) are believed to ask for; at least what their next credit takes."""
        slots = self._slots
        left = slots.max_kv[rows] - slots.num_pages[rows] * slots.page_size
        left = np.clip(left, 0, MAX_AHEAD)
        share = np.where(slots.runs_to_limit[rows], self._certain_ratio, self._ratio.value)
        tokens = np.minimum(left, np.maximum(left * share, CREDIT_REFILL))
        return int(np.ceil(tokens / slots.page_size).sum())

    def own_pages(self, req: Req) -> int:
        """Pages for the output of a request that is not admitted yet; none when it would run alone."""
        if self._slots.num_in_use == 0:
            return 0
        left = min(req.max_kv - len(req.token_ids), MAX_AHEAD)
        share = self._certain_ratio if req.params.ignore_eos else self._ratio.value
        return -(-int(left * share) // self._slots.page_size)

    def headroom(self) -> int:
        """Pages that an admission must leave to the rows that run or are about to."""
        return self.future_pages(self._slots.alive)

    def __repr__(self) -> str:
        return f"Admission({self._ratio!r})"
