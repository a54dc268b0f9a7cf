"""Special tokens that a user typed, kept apart from those that a chat template wrote.

A template writes ``<|im_end|>`` to end a turn. If a message may hold it too, its author can end the turn and speak as
somebody else. So before a template runs, every special token in the messages gets a mark inside, and is no special
token any more; after the text is cut at the template's own special tokens, the marks are taken out again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MARK = "\ufdd0"
"""A code point that Unicode reserves for uses like this one: it is no character and is never interchanged.

A template that prints an object as Python would, not as JSON, shows it as an escape; the token is still none.
"""

_MARKED = re.compile(f"{MARK}({MARK}?)")


class SpecialText:
    """Marks special tokens in a text. Immutable; any thread may use it.

    Args:
        tokens: texts of the special tokens. A token of one character cannot be marked.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        names = sorted({token for token in tokens if len(token) > 1}, key=lambda name: (-len(name), name))
        self._pattern = re.compile("|".join([*map(re.escape, names), MARK]))
        self._num_tokens = len(names)

    def shield(self, text: str) -> str:
        """`text` with a mark after the first character of every special token; marks that are there are doubled."""
        return self._pattern.sub(lambda match: match[0][0] + MARK + match[0][1:], text)

    def __repr__(self) -> str:
        return f"SpecialText({self._num_tokens} tokens)"


def unshield(text: str) -> str:
    """The text before `SpecialText.shield`."""
    return _MARKED.sub(r"\1", text)
