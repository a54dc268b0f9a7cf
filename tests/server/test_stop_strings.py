from __future__ import annotations

import random

import pytest

from srt.core.errors import InvalidRequest
from srt.server.stop_strings import MAX_STOP_CHARACTERS, ROOT, StopStrings


def first_match(text: str, strings: list[str]) -> tuple[int, str] | None:
    """Character by character: where the first string is complete, and the longest that ends there."""
    for end in range(1, len(text) + 1):
        ending = [string for string in strings if text[:end].endswith(string)]
        if ending:
            return end, max(ending, key=len)
    return None


def longest_head(text: str, strings: list[str]) -> int:
    """How many characters at the end of `text` begin one of the strings without completing it."""
    heads = {string[:size] for string in strings for size in range(1, len(string))}
    return max((size for size in range(1, len(text) + 1) if text[-size:] in heads), default=0)


def test_against_a_search_of_the_whole_text() -> None:
    seed = 41
    print(f"seed {seed}")
    rng = random.Random(seed)
    found = 0
    for _ in range(3000):
        strings = ["".join(rng.choices("ab漢", k=rng.randrange(1, 6))) for _ in range(rng.randrange(1, 33))]
        text = "".join(rng.choices("ab漢c", k=rng.randrange(30)))
        stops = StopStrings(strings)
        state, done, match = ROOT, 0, None
        while done < len(text) and match is None:
            piece = text[done : done + rng.randrange(4)]
            state, read, match = stops.scan(state, piece)
            done += read
            if match is None:
                assert read == len(piece)
                assert stops.depth[state] == longest_head(text[:done], strings)
        expected = first_match(text, strings)
        assert (None if match is None else (done, match)) == expected, (text, strings)
        found += match is not None
    assert 500 < found < 3000


@pytest.mark.parametrize(
    ("strings", "text", "end", "match"),
    [
        (["abc", "b"], "xabc", 3, "b"),
        (["abc", "bc"], "xabc", 4, "abc"),
        (["aab"], "aaab", 4, "aab"),
        (["abab", "bb"], "ababb", 4, "abab"),
        (["abcd", "bcx"], "abcx", 4, "bcx"),
        (["a", "a"], "a", 1, "a"),
    ],
)
def test_the_string_that_is_complete_first_wins(strings: list[str], text: str, end: int, match: str) -> None:
    assert StopStrings(strings).scan(ROOT, text)[1:] == (end, match)


def test_nothing_to_find() -> None:
    stops = StopStrings([])
    assert not stops
    assert stops.scan(ROOT, "abc") == (ROOT, 3, None)


def test_very_long_strings_are_refused() -> None:
    StopStrings(["x" * MAX_STOP_CHARACTERS])
    with pytest.raises(InvalidRequest, match=r"stop has 8193 characters, at most 8192") as caught:
        StopStrings(["x" * MAX_STOP_CHARACTERS, "y"])
    assert caught.value.field == "stop"
