"""The answer to one request as the client sees it: text, token ids, and where it ends (design D9)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from srt.core.messages import FinishReason
from srt.server.incremental_text import HasTokenTable, IncrementalText, TokenIds
from srt.server.stop_strings import ROOT, StopStrings


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What a push made visible; it will not change any more.

    Attributes:
        text: characters that follow the ones before.
        token_ids: output tokens that now belong to the answer for good.
        finish: why the answer ended, in the delta that ends it.
        keep_tokens: set with `finish` where a stop string ended the answer, which the engine does not know yet: how
            many output tokens belong to it.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    keep_tokens: int | None = None


_NOTHING = TextDelta()


class StreamText:
    """Thread: the one that pushes (the HTTP event loop in the server). One request's output tokens in, its answer out.

    Text that may become a stop string is held back, with its tokens. The first finish wins, whoever reports it;
    whatever is pushed afterwards (overrun) is ignored.

    ::

        text:    [ visible ... )[ stop string )[ overrun ...
        tokens:  [  ][  ][   ][   ][     ]
                 kept: each token that adds a character to the visible text

    Args:
        tokenizer: whose ids these are.
        stops: strings that end the answer.
        skip_special_tokens: special tokens show no text.
        no_stop_trim: a stop string, or the token that ended the request, stays in the text.
    """

    __slots__ = (
        "_finish", "_held", "_ids", "_no_stop_trim", "_parts", "_pending", "_starts", "_state", "_stops", "_text",
        "_total",
    )  # fmt: skip

    def __init__(
        self,
        tokenizer: HasTokenTable,
        stops: StopStrings | tuple[str, ...] = (),
        *,
        skip_special_tokens: bool = True,
        no_stop_trim: bool = False,
    ) -> None:
        self._text = IncrementalText(tokenizer, skip_special_tokens)
        self._stops = stops if isinstance(stops, StopStrings) else StopStrings(stops)
        self._no_stop_trim = no_stop_trim
        self._finish: FinishReason | None = None
        self._parts: list[str] = []
        self._ids: list[int] = []
        self._held = ""
        self._state = ROOT
        self._total = 0  # characters decoded so far
        self._pending: list[int] = []  # ids that a stop string may still cut off ...
        self._starts: list[int] = []  # ... and how many characters were complete before each

    def push(self, ids: TokenIds, finish: FinishReason | None = None) -> TextDelta:
        """Adds output tokens in order.

        Args:
            finish: the engine's reason, with the last tokens. A matched stop token is the last id: it stays in the
                ids, and shows no text unless `no_stop_trim`.
        """
        if self._finish is not None:
            return _NOTHING
        numbers: list[int] = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        shown = len(numbers) - self._hides_last(numbers, finish)
        if self._stops:
            matched = self._push_scanned(numbers[:shown], finish)
            if matched is not None:
                return matched
            self._pending += numbers[shown:]
            self._starts += [self._total] * (len(numbers) - shown)
            return self._release(finish)
        text = self._text.push(numbers[:shown])
        if finish is not None:
            text += self._text.finish()
        return self._emit(text, numbers, finish)

    def _hides_last(self, numbers: list[int], finish: FinishReason | None) -> bool:
        if finish is None or finish.kind != "stop" or self._no_stop_trim:
            return False
        return bool(numbers) and isinstance(finish.matched, int) and numbers[-1] == finish.matched

    def _push_scanned(self, numbers: list[int], finish: FinishReason | None) -> TextDelta | None:
        """Decodes token by token, so that each has its place in the text; the delta that ends at a stop string."""
        for token_id in numbers:
            self._pending.append(token_id)
            self._starts.append(self._total)
            if (matched := self._scan(self._text.push((token_id,)))) is not None:
                return matched
        return self._scan(self._text.finish()) if finish is not None else None

    def _scan(self, text: str) -> TextDelta | None:
        self._state, read, stop = self._stops.scan(self._state, text)
        self._held += text[:read]
        self._total += read
        if stop is None:
            return None
        if not self._no_stop_trim:
            self._held = self._held[: len(self._held) - len(stop)]
            self._total -= len(stop)
        kept = bisect_left(self._starts, self._total)
        return self._emit(self._held, self._pending[:kept], FinishReason("stop", stop), by_stop_string=True)

    def _release(self, finish: FinishReason | None) -> TextDelta:
        """Gives out what no stop string can cut off any more; all of it when the answer ends."""
        if finish is not None:
            return self._emit(self._held, self._pending, finish)
        num_visible = len(self._held) - self._stops.depth[self._state]
        text, self._held = self._held[:num_visible], self._held[num_visible:]
        kept = bisect_left(self._starts, self._total - len(self._held))
        ids, self._pending = self._pending[:kept], self._pending[kept:]
        self._starts = self._starts[kept:]
        return self._emit(text, ids, None)

    def _emit(
        self, text: str, ids: list[int], finish: FinishReason | None, by_stop_string: bool = False
    ) -> TextDelta:
        self._finish = finish
        if text:
            self._parts.append(text)
        self._ids += ids
        return TextDelta(text, tuple(ids), finish, len(self._ids) if by_stop_string else None)

    @property
    def text(self) -> str:
        """All that is visible so far."""
        self._parts = ["".join(self._parts)]
        return self._parts[0]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All output tokens that belong to the answer so far."""
        return tuple(self._ids)

    @property
    def num_tokens(self) -> int:
        return len(self._ids)

    @property
    def finish(self) -> FinishReason | None:
        """Why the answer ended, None while it goes on."""
        return self._finish

    @property
    def finished(self) -> bool:
        return self._finish is not None

    def __repr__(self) -> str:
        state = f"finished by {self._finish}" if self._finish is not None else "running"
        return f"StreamText({state}, {len(self._ids)} tokens visible, {len(self._pending)} held)"
