"""Memory for decoding rows: whom to grant pages ahead of need, and whom to retract when there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from control_loop.cache_manager import CacheManager
from control_loop.req import Phase, Req
from control_loop.slots import SlotTable
from srt.core.messages import Int32Array
from srt.core.step_messages import PageGrant

CREDIT_AHEAD = 32
"""KV tokens that a row may decode beyond what control knows of, when memory is plentiful."""
CREDIT_REFILL = 16
"""A row is granted more when this much or less is left."""
STARVING = 1
"""A row with this much credit or less may be parked at the next step."""

MakeGrant = Callable[[int, int], PageGrant]


class PageCredits:
    """Thread: control. Credit counts tokens, memory comes in pages; all rows of a pass in one columnar grant::

    KV:  [0 ..... scheduled)[..... limit)[..... scheduled + CREDIT_AHEAD)
          known or commanded  credit left  what a refill reaches
    """

    def __init__(self, manager: CacheManager, slots: SlotTable) -> None:
        self._manager = manager
        self._slots = slots
        self._page_size = slots.page_size

    def grant(self) -> tuple[MakeGrant | None, bool]:
        """Grants what is due. Second: True when memory is so short that a row has to be retracted."""
        slots = self._slots
        left = slots.limit - slots.scheduled
        rows = np.flatnonzero(slots.decoding & (slots.limit < slots.max_kv) & (left <= CREDIT_REFILL)).astype(
            np.int32
        )
        if len(rows) == 0:
            return None, False
        wanted = self._pages_wanted(rows, CREDIT_AHEAD)
        if int(wanted.sum()) <= self._manager.num_available:
            return self._give(rows, wanted), False
        return self._grant_starving(rows[left[rows] <= STARVING])

    def grant_exactly(self, slot: int, limit: int) -> tuple[MakeGrant | None, bool]:
        """Lets one row decode up to `limit` KV tokens and no further; second as in `grant`."""
        slots = self._slots
        limit = min(limit, int(slots.max_kv[slot]))
        if slots.limit[slot] >= limit:
            return None, False
        wanted = -(-limit // self._page_size) - int(slots.num_pages[slot])
        if wanted > self._manager.num_available:
            return None, True
        row, count = np.array([slot], np.int32), np.array([max(wanted, 0)], np.int32)
        return self._give(row, count, np.array([limit], np.int32)), False

    def _grant_starving(self, rows: Int32Array) -> tuple[MakeGrant | None, bool]:
        """Memory is short: credit shrinks to one token, the oldest lives first."""
        if len(rows) == 0:
            return None, False
        rows = rows[np.argsort(self._slots.generation[rows], kind="stable")]
        wanted = self._pages_wanted(rows, 1)
        fits = np.cumsum(wanted, dtype=np.int64) <= self._manager.num_available
        served = rows[fits]
        grant = self._give(served, wanted[fits]) if len(served) else None
        return grant, len(served) < len(rows)

    def _pages_wanted(self, rows: Int32Array, ahead: int) -> Int32Array:
        slots = self._slots
        target = np.minimum(slots.scheduled[rows] + ahead, slots.max_kv[rows])
        needed = -(-target // self._page_size) - slots.num_pages[rows]
        return np.maximum(needed, 0).astype(np.int32)

    def _give(self, rows: Int32Array, counts: Int32Array, limits: Int32Array | None = None) -> MakeGrant:
        """Reserves the pages and enters them into the leases; there are enough. Default limit: all they hold."""
        slots = self._slots
        pages = self._manager.reserve(int(counts.sum()))
        if pages is None:
            raise RuntimeError(
                f"{counts.sum()} pages were available and could not be reserved: {self._manager!r}"
            )
        offsets = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        first = slots.num_pages[rows]
        index = np.arange(len(pages), dtype=np.int32) + np.repeat(first - offsets[:-1], counts)
        row_of_page = np.repeat(rows, counts)
        slots.pages[row_of_page, index] = pages
        slots.owned[row_of_page, index] = True
        slots.num_pages[rows] = first + counts
        slots.sent_pages[rows] = first + counts
        if limits is None:
            limits = np.minimum(slots.num_pages[rows] * self._page_size, slots.max_kv[rows]).astype(np.int32)
        slots.limit[rows] = limits
        columns = (rows.astype(np.int32), slots.generation[rows], first, offsets, pages, limits)
        return lambda seq, epoch: PageGrant(seq, epoch, *columns)


def choose_victim(live: Iterable[Req], slots: SlotTable) -> Req | None:
    """Whom to retract: lowest priority, then least output, then the youngest. None while it would not help.

    While a row is leaving, its pages are still fenced: its release is waited for first, or one shortage would retract
    everybody. The last row is never retracted, so one request always makes progress.
    """
    reqs = list(live)
    if len(reqs) < 2 or any(req.phase is Phase.LEAVING for req in reqs):
        return None
    return min(
        reqs, key=lambda req: (req.priority, int(slots.num_tokens[req.slot]) - req.prompt_len, -req.arrival)
    )
