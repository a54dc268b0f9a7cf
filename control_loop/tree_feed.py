"""Tells the client side what changes in the tree."""

from __future__ import annotations

import numpy as np

from radix_cache.journal import Change, JournaledCache, Removed, Stored
from srt.core.port import ControlPort
from srt.core.tree_messages import Int32Array, TreeChange, TreeChanges

NOTHING: Int32Array = np.empty(0, np.int32)


class TreeFeed:
    """Thread: control. One message for each pass that changed the tree; hashes and sockets are the client side's.

    What waits in the port for a client side that does not read is bounded by the requests which that same side has
    sent: nothing enters or leaves the tree without one.
    """

    def __init__(self, cache: JournaledCache, port: ControlPort) -> None:
        self._journal = cache.open_journal()
        self._port = port

    def deliver(self) -> None:
        journal = self._journal.drain()
        if journal:
            self._port.send(TreeChanges(tuple(map(to_message, journal))))


def to_message(change: Change) -> TreeChange:
    if isinstance(change, Stored):
        pages, token_ids = np.frombuffer(change.pages, np.int32), np.frombuffer(change.tokens, np.int32)
        return TreeChange("stored", pages, token_ids, change.parent_page, change.namespace)
    if isinstance(change, Removed):
        return TreeChange("removed", change.pages, NOTHING)
    return TreeChange("cleared", NOTHING, NOTHING)
