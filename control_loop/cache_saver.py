"""Saving the prefix cache to a file while requests run: control says what and when, others move the bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from control_loop.parts import LoopParts
from control_loop.save_walk import SaveSlice, SaveWalk
from srt.core.errors import CacheFileError, InvalidRequest
from srt.core.messages import SaveReply, SaveReq
from srt.core.save_messages import (
    BeginSave,
    BufferFree,
    CancelSave,
    EndSave,
    SaveEnded,
    SaveFailed,
    SaveLinks,
    SaveWord,
    WriteRuns,
)
from srt.core.step_messages import CopyPages

STALL_SECONDS = 60.0
"""A disk that takes nothing for so long ends the save."""


@dataclass(slots=True, eq=False)
class _Save:
    """The save that is on, for the questions in `keys`. `heard_at`: when it last went on."""

    number: int
    keys: list[int]
    walk: SaveWalk
    heard_at: float
    is_ending: bool = False


class CacheSaver:
    """Thread: control. One save at a time; who asks meanwhile gets the next one.

    A slice of pages is locked, copied to host memory by compute, unlocked, and written by the helper::

        control   lock, CopyPages ->            unlock, WriteRuns ->              EndSave ->
        compute                    copies, ->
        helper                                                     writes, ->                renames

    One copy is under way at a time, so that a step waits for one slice at most, and nothing is locked while the disk
    is waited for: a save takes no memory from requests. With `links` None no directory was given to save in.
    """

    def __init__(self, parts: LoopParts, links: SaveLinks | None, may_copy: Callable[[], bool]) -> None:
        self._parts = parts
        self._links = links
        self._may_copy = may_copy
        self._free = list(range(links.num_buffers)) if links is not None else []
        self._asked: list[int] = []
        self._save: _Save | None = None
        self._num_saves = 0
        # The command under way: of which save, what it copies, and into which buffer.
        self._copying: dict[int, tuple[int, SaveSlice, int]] = {}

    @property
    def is_owed(self) -> bool:
        """Somebody waits for an answer, and pages may be locked."""
        return bool(self._asked or self._copying) or self._save is not None

    @property
    def awaits_disk(self) -> bool:
        """It is not compute that is waited for."""
        return self.is_owed and not self._copying

    @property
    def has_word(self) -> bool:
        """The helper has said something."""
        return self._links is not None and len(self._links.words) > 0

    def ask(self, message: SaveReq) -> None:
        if self._links is None:
            error = InvalidRequest(
                "the server was started without --cache-dir: there is no place to save the cache"
            )
            self._parts.port.send(SaveReply(message.key, error=error.info()))
            return
        self._asked.append(message.key)

    def advance(self) -> bool:
        """Goes on with the save, a slice or a thousand nodes further; True when it did."""
        if self._links is None:
            return False
        heard = self._listen(self._links)
        if self._save is None and self._asked:
            self._save = self._begin(self._links)
        return (self._save is not None and self._go_on(self._links, self._save)) or heard

    def on_copied(self, seq: int) -> None:
        """Compute has copied a slice: its pages are free to go."""
        if seq not in self._copying:
            return
        assert self._links is not None
        number, slice_, buffer = self._copying.pop(seq)
        for node in slice_.nodes:
            self._parts.manager.cache.unlock(node)
        if self._save is None or self._save.number != number:
            self._free.append(buffer)  # it has failed meanwhile
            return
        self._save.heard_at = self._parts.clock()
        self._links.jobs.put(WriteRuns(number, buffer, slice_.runs))

    def _begin(self, links: SaveLinks) -> _Save:
        self._num_saves += 1
        cache = self._parts.manager.cache
        walk = SaveWalk(cache.root, cache.page_size, links.max_pages)
        keys, self._asked = self._asked, []
        links.jobs.put(BeginSave(self._num_saves))
        return _Save(self._num_saves, keys, walk, self._parts.clock())

    def _go_on(self, links: SaveLinks, save: _Save) -> bool:
        if save.walk.gather():
            return True
        if save.is_ending or self._copying or not self._free or not self._may_copy():
            return self._check_stalled(links, save)
        slice_ = save.walk.next_slice(links.buffer_pages)
        if slice_ is None:
            save.is_ending = True
            links.jobs.put(EndSave(save.number))
            return True
        buffer = self._free.pop()
        dst = links.pages_of(buffer, len(slice_.pages))
        for node in slice_.nodes:
            self._parts.manager.cache.lock(node)
        seq = self._parts.commands.send(
            lambda seq, epoch: CopyPages(seq, epoch, slice_.pages, dst, to_host=True)
        )
        self._copying[seq] = save.number, slice_, buffer
        return True

    def _check_stalled(self, links: SaveLinks, save: _Save) -> bool:
        """A disk that hangs must not keep the save, and what it answers, for ever."""
        if self._copying or self._parts.clock() - save.heard_at < STALL_SECONDS:
            return False
        links.jobs.put(CancelSave(save.number))
        self._fail(save, f"the disk has taken nothing for {STALL_SECONDS:g} s")
        return True

    def _listen(self, links: SaveLinks) -> bool:
        words = links.words.drain()
        for word in words:
            self._hear(word)
        return bool(words)

    def _hear(self, word: SaveWord) -> None:
        save = self._save
        if save is not None:
            save.heard_at = self._parts.clock()
        if isinstance(word, BufferFree):
            self._free.append(word.buffer)
        elif save is None or word.save != save.number:
            return
        elif isinstance(word, SaveFailed):
            self._fail(save, word.message)
        elif isinstance(word, SaveEnded):
            self._save = None
            tokens = word.num_pages * self._parts.slots.page_size
            for key in save.keys:
                self._parts.port.send(SaveReply(key, tokens, word.num_bytes))

    def _fail(self, save: _Save, message: str) -> None:
        error = CacheFileError(f"the cache was not saved: {message}").info()
        for key in save.keys:
            self._parts.port.send(SaveReply(key, error=error))
        self._save = None

    def __repr__(self) -> str:
        return f"CacheSaver({self._save.walk if self._save else 'idle'}, {len(self._asked)} asked)"
