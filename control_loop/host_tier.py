"""The second home of cached pages: host memory, for what the KV pool has no room for."""

from __future__ import annotations

import numpy as np

from control_loop.commands import CommandSender
from radix_cache.block_ledger import BlockLedger
from radix_cache.content_hash import chain_hashes, root_hash
from radix_cache.host_index import HostIndex
from radix_cache.journal import Cleared, JournaledCache, Stored
from radix_cache.key import TOKEN_BYTES, RadixKey
from srt.core.messages import Int32Array, empty_int32
from srt.core.step_messages import CopyPages

SLICE_PAGES = 256
"""Pages in one copy at most."""


class HostTier:
    """Thread: control. What is evicted is copied to host memory, and back before a prefill that can use it.

    ::

        control   evict, CopyPages out ->  PrefillBatch (may write these pages) ->
        compute                            copies, then computes

        control   CopyPages in -> PrefillBatch (leans on these pages) ->
        compute                   copies, then computes

    The order of commands is all that is needed: nothing is locked for a copy, and nobody waits for it. A page that
    comes back is pending in the tree until its copy is acknowledged, as if a step computed it. It stays in host
    memory too, so that it need not be copied out again.
    """

    def __init__(self, cache: JournaledCache, commands: CommandSender, index: HostIndex) -> None:
        self._journal = cache.open_journal()
        self._ledger = BlockLedger(cache.page_size)
        self._stride = cache.page_size * TOKEN_BYTES
        self._commands = commands
        self._index = index
        self.hit_pages = 0

    @property
    def num_pages(self) -> int:
        """Pages that are kept."""
        return len(self._index)

    def keep(self, evicted: Int32Array) -> None:
        """Just after an eviction from the tree: copies the pages out that are not in host memory already."""
        if not len(evicted):
            return
        hashes = self._follow()
        assert len(hashes) == len(evicted)
        places, host_pages = self._index.place(hashes)
        dst = np.array(host_pages, np.int32)
        self._copy(evicted[places], dst, to_host=True)

    def find(self, key: RadixKey, cached: Int32Array) -> Int32Array:
        """Host pages with what follows the pages `cached` of `key`, the tree's; the last token is never among it."""
        start = len(cached) * self._stride
        if not len(self._index) or start >= len(key.data):
            return empty_int32()
        self._follow()
        parent = self._ledger.hash_of(int(cached[-1])) if len(cached) else root_hash(key.salt)
        hashes = chain_hashes(parent, key.data[start:-TOKEN_BYTES], self._stride)
        return np.array(self._index.find(hashes), np.int32)

    def bring_back(self, host_pages: Int32Array, pages: Int32Array) -> int:
        """Copies host pages to `pages` of the pool; the command that will have done it."""
        self.hit_pages += len(pages)
        return self._copy(host_pages, pages, to_host=False)

    def clear(self) -> None:
        self._follow()
        self._index.clear()

    def _copy(self, src: Int32Array, dst: Int32Array, to_host: bool) -> int:
        seq = self._commands.last_seq
        for start in range(0, len(src), SLICE_PAGES):
            part = slice(start, start + SLICE_PAGES)
            seq = self._send(src[part], dst[part], to_host)
        return seq

    def _send(self, src: Int32Array, dst: Int32Array, to_host: bool) -> int:
        return self._commands.send(lambda seq, epoch: CopyPages(seq, epoch, src, dst, to_host))

    def _follow(self) -> list[bytes]:
        """Takes in what the tree has done; the hashes of the pages that left it last, in their order."""
        removed: list[bytes] = []
        for change in self._journal.drain():
            if isinstance(change, Stored):
                pages = np.frombuffer(change.pages, np.int32).tolist()
                self._ledger.store(change.parent_page, change.namespace, change.tokens, pages)
            elif isinstance(change, Cleared):
                self._ledger.clear()
            else:
                removed = self._ledger.remove(change.pages.tolist())
        return removed

    def __repr__(self) -> str:
        return f"HostTier({self._index!r}, {self.hit_pages} pages came back)"
