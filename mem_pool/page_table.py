"""Which page holds which tokens of which slot, as the device reads it."""

from __future__ import annotations

import numpy as np
import torch

from srt.core.messages import Int32Array


class PageTable:
    """Thread: compute. ``pages[slot, i]`` holds tokens ``[i * page_size, (i + 1) * page_size)`` of the slot's sequence.

    Entries that no grant has named point to the dummy page 0 or to a page of an earlier life of the slot: nobody reads
    past a sequence's length.

    Attributes:
        pages: int32 ``[num_slots, max_pages]`` on the device.
    """

    def __init__(self, num_slots: int, max_pages: int, device: torch.device) -> None:
        self.pages = torch.zeros(num_slots, max_pages, dtype=torch.int32, device=device)

    def apply(self, slots: Int32Array, index: Int32Array, pages: Int32Array) -> None:
        """Sets ``pages[slots[i], index[i]] = pages[i]`` for i in order, for all steps from the next one on.

        Raises:
            IndexError: a slot or an index outside the table; nothing was changed.
        """
        if len(slots) == 0:
            return
        num_slots, max_pages = self.pages.shape
        for name, column, limit in (("slot", slots, num_slots), ("index", index, max_pages)):
            if int(column.min()) < 0 or int(column.max()) >= limit:
                raise IndexError(f"page-table {name}s {column.tolist()} are not all within [0, {limit})")
        # A slot that was dropped and given away again since the last step is named twice: the later entry counts.
        cells = slots.astype(np.int64) * max_pages + index
        _, from_end = np.unique(cells[::-1], return_index=True)
        last = len(cells) - 1 - from_end
        device = self.pages.device
        self.pages.view(-1)[torch.from_numpy(cells[last]).to(device)] = torch.from_numpy(pages[last]).to(
            device
        )

    def clear(self) -> None:
        """Points every entry to the dummy page."""
        self.pages.zero_()

    def __repr__(self) -> str:
        num_slots, max_pages = self.pages.shape
        used = int((self.pages != 0).sum())
        return f"PageTable({num_slots} slots of {max_pages} pages, {used} entries set)"
