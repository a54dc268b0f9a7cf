"""The text of one request's tokens, piece by piece, the same as if decoded at once."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from srt.server.token_table import TokenTable

TokenIds = Sequence[int] | npt.NDArray[np.int32]

_UNDECODABLE = re.compile("[\udc80-\udcff]")
_REPLACEMENT = "\ufffd"


class HasTokenTable(Protocol):
    """What a text needs of a tokenizer."""

    @property
    def table(self) -> TokenTable: ...


class IncrementalText:
    """Thread: the one that pushes (the HTTP event loop in the server). Token ids in, text out.

    Bytes are held back while they may be the head of a UTF-8 character, so no character is split and no U+FFFD
    comes out that a later token would have mended. Everything pushed, plus `finish()`, equals `Tokenizer.decode` of
    all ids. A push costs O(its own ids).

    Args:
        tokenizer: whose ids these are.
        skip_special_tokens: special tokens show no text.
    """

    __slots__ = ("_decoder", "_following", "_marks_each_byte", "_opening")

    def __init__(self, tokenizer: HasTokenTable, skip_special_tokens: bool = True) -> None:
        table = tokenizer.table
        pieces = table.plain if skip_special_tokens else table.all
        self._opening: tuple[bytes, ...] | None = pieces.opening
        self._following = pieces.following
        self._marks_each_byte = table.marks_each_byte
        # surrogateescape gives one mark for each bad byte; "replace" one for each maximal bad sequence.
        errors = "surrogateescape" if table.marks_each_byte else "replace"
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def push(self, ids: TokenIds) -> str:
        """The text that is final now. An id outside the vocabulary shows nothing."""
        numbers: Sequence[int] = ids.tolist() if isinstance(ids, np.ndarray) else ids
        if self._opening is not None:
            return self._push_opening(numbers)
        following, size = self._following, len(self._following)
        if len(numbers) == 1:
            token_id = numbers[0]
            return self._decode(following[token_id] if 0 <= token_id < size else b"")
        return self._decode(b"".join([following[token_id] for token_id in numbers if 0 <= token_id < size]))

    def finish(self) -> str:
        """What was held back: an unfinished character reads as U+FFFD. Call once, at the end."""
        return self._decode(b"", final=True)

    def _push_opening(self, numbers: Sequence[int]) -> str:
        assert self._opening is not None
        for index, token_id in enumerate(numbers):
            if 0 <= token_id < len(self._following) and self._following[token_id]:
                head = self._decode(self._opening[token_id])
                self._opening = None
                return head + self.push(numbers[index + 1 :])
        return ""

    def _decode(self, data: bytes, final: bool = False) -> str:
        text = self._decoder.decode(data, final)
        if self._marks_each_byte and not text.isascii():
            return _UNDECODABLE.sub(_REPLACEMENT, text)
        return text

    def __repr__(self) -> str:
        state = "empty" if self._opening is not None else "running"
        return f"IncrementalText({state}, {len(self._decoder.getstate()[0])} bytes held)"
