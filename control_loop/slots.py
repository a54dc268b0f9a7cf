"""What the control loop knows of each slot, in columns, so that no pass loops over running requests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from control_loop.req import Phase, Req
from srt.core.messages import Int32Array
from srt.core.step_messages import Row


class SlotTable:
    """Thread: control. Columns by slot; slot 0 is the dummy of the device tables and is never taken.

    ::

        KV positions:  [0 .... kv_len)[.... scheduled)[........ limit)[...... num_pages * page_size)
                        reported       commanded       may decode      pages in the lease
        tokens:        [0 .......................... num_tokens)  prompt and every output that was reported

    The lease of a slot is ``pages[slot, :num_pages[slot]]``. A page is `owned` until the tree takes it; what is not
    owned belongs to the tree and is protected by the lock that the cache manager holds on the slot's node.

    Attributes:
        generation: the life in the slot, 0 when free. key: its request's key.
        prefill_len: tokens that the life begins with. max_kv: KV tokens it can ever need.
        sent_pages: page-table entries that compute has been given.
        cached: tokens of the prompt that came out of the tree in the first life.
        finished: the request has had its finish.
        alive: a life is in the slot and is not leaving it.
        prefilling: a part of the prompt is not commanded yet and the row is not leaving.
        runs_to_limit: nothing but its length ends the request.
        decoding: the whole prompt is commanded and the row is not leaving: it lives on credit.
    """

    def __init__(self, num_slots: int, max_tokens: int, page_size: int) -> None:
        rows = num_slots + 1
        max_pages = -(-max_tokens // page_size)
        self.num_slots = num_slots
        self.page_size = page_size
        self.generation = np.zeros(rows, np.int64)
        self.key = np.zeros(rows, np.int64)
        self.num_tokens = np.zeros(rows, np.int32)
        self.prefill_len = np.zeros(rows, np.int32)
        self.kv_len = np.zeros(rows, np.int32)
        self.scheduled = np.zeros(rows, np.int32)
        self.limit = np.zeros(rows, np.int32)
        self.max_kv = np.zeros(rows, np.int32)
        self.num_pages = np.zeros(rows, np.int32)
        self.sent_pages = np.zeros(rows, np.int32)
        self.cached = np.zeros(rows, np.int32)
        self.decoding: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.finished: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.alive: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.prefilling: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.runs_to_limit: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.tokens: Int32Array = np.zeros((rows, max_tokens + 1), np.int32)
        self.pages: Int32Array = np.zeros((rows, max_pages), np.int32)
        self.owned: npt.NDArray[np.bool_] = np.zeros((rows, max_pages), np.bool_)
        self._reqs: dict[int, Req] = {}
        self._free = list(range(num_slots, 0, -1))
        self._last_generation = 0

    @property
    def num_in_use(self) -> int:
        return len(self._reqs)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, req: Req) -> int:
        """A free slot for a new life of `req`, with its tokens in it. There must be one (`num_free`)."""
        slot = self._free.pop()
        self._last_generation += 1
        length = len(req.token_ids)
        self.generation[slot] = self._last_generation
        self.key[slot] = req.key
        self.tokens[slot, :length] = req.token_ids
        self.num_tokens[slot] = self.prefill_len[slot] = length
        self.max_kv[slot] = req.max_kv
        for column in (self.kv_len, self.scheduled, self.limit, self.num_pages, self.sent_pages):
            column[slot] = 0
        self.cached[slot] = req.cached_tokens or 0
        self.decoding[slot] = self.finished[slot] = False
        self.alive[slot] = self.prefilling[slot] = True
        self.runs_to_limit[slot] = req.runs_to_limit
        self._reqs[slot] = req
        req.slot, req.generation, req.phase = slot, self._last_generation, Phase.PREFILLING
        return slot

    def give_back(self, slot: int) -> Req:
        """Frees a slot whose lease is already released; returns the request that lived in it."""
        req = self._reqs.pop(slot)
        self.generation[slot] = 0
        self.decoding[slot] = self.alive[slot] = self.prefilling[slot] = False
        self._free.append(slot)
        return req

    def req(self, slot: int) -> Req:
        return self._reqs[slot]

    def find(self, row: Row) -> Req | None:
        """The request whose life is `row`, None when that life is over."""
        slot, generation = row
        return self._reqs.get(slot) if self.generation[slot] == generation else None

    def reqs(self) -> Iterator[Req]:
        """All lives, in the order in which they were admitted."""
        return iter(list(self._reqs.values()))

    def prefilling_slots(self) -> list[int]:
        """Rows whose prompt is not commanded whole, in the order in which they were admitted."""
        rows = np.flatnonzero(self.prefilling)
        in_order: list[int] = rows[np.argsort(self.generation[rows])].tolist()
        return in_order

    def known_tokens(self, slot: int) -> Int32Array:
        """A copy of prompt and reported outputs."""
        return self.tokens[slot, : self.num_tokens[slot]].copy()

    def owned_pages(self, slot: int) -> Int32Array:
        """The pages of the lease that the tree has not taken."""
        count = self.num_pages[slot]
        return self.pages[slot, :count][self.owned[slot, :count]]

    def __repr__(self) -> str:
        return f"SlotTable({self.num_in_use} of {self.num_slots} slots in use)"
