"""Finding the first of several strings in a text that arrives in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from srt.core.errors import InvalidRequest

MAX_STOP_CHARACTERS = 8192
"""Of all stop strings of a request together. Each costs a node of the automaton."""

ROOT = 0
"""The state before any text."""


class StopStrings:
    """Which stop string a text completes first, and how much of its end may still become one. Immutable.

    An automaton after Aho and Corasick (1975): its state is the longest end of the text so far that begins a stop
    string, so a character costs a step however many strings there are, and the answer does not depend on how the text
    is cut into pieces. The string that is complete first wins; of several that end together, the longest.

    Args:
        strings: none of them empty.

    Raises:
        InvalidRequest: they are longer than `MAX_STOP_CHARACTERS` together.
    """

    __slots__ = ("_fallback", "_following", "_found", "depth", "strings")

    def __init__(self, strings: Sequence[str]) -> None:
        total = sum(map(len, strings))
        if total > MAX_STOP_CHARACTERS:
            raise InvalidRequest(
                f"stop has {total} characters, at most {MAX_STOP_CHARACTERS} are allowed in all strings together",
                field="stop",
            )
        self.strings = tuple(strings)
        self._following: list[dict[str, int]] = [{}]
        self._found: list[str | None] = [None]
        self.depth = [0]
        """By state: how many characters at the end of the text begin a stop string."""
        for string in self.strings:
            self._insert(string)
        self._fallback = self._link()

    def __bool__(self) -> bool:
        return bool(self.strings)

    def scan(self, state: int, text: str) -> tuple[int, int, str | None]:
        """Reads `text` on from `state`.

        Returns:
            The new state, how many characters were read, and the stop string that they completed, if any (reading
            ends there).
        """
        following, found = self._following, self._found
        for index, character in enumerate(text):
            while character not in following[state] and state != ROOT:
                state = self._fallback[state]
            state = following[state].get(character, ROOT)
            if found[state] is not None:
                return state, index + 1, found[state]
        return state, len(text), None

    def _insert(self, string: str) -> None:
        state = ROOT
        for character in string:
            if character not in self._following[state]:
                self._following[state][character] = len(self._following)
                self._following.append({})
                self._found.append(None)
                self.depth.append(self.depth[state] + 1)
            state = self._following[state][character]
        self._found[state] = string

    def _link(self) -> list[int]:
        """For each state, the next shorter end of the text that also begins a string; breadth first."""
        fallback = [ROOT] * len(self._following)
        waiting = deque(self._following[ROOT].values())
        while waiting:
            state = waiting.popleft()
            self._found[state] = self._found[state] or self._found[fallback[state]]
            for character, child in self._following[state].items():
                shorter = fallback[state]
                while character not in self._following[shorter] and shorter != ROOT:
                    shorter = fallback[shorter]
                fallback[child] = self._following[shorter].get(character, ROOT)
                waiting.append(child)
        return fallback

    def __repr__(self) -> str:
        return f"StopStrings({list(self.strings)!r})"
