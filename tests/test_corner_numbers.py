"""Every corner case has a test with its number in the name: ``test_corner_07_...``, or several numbers in a row."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

TESTS = Path(__file__).resolve().parent
NAME = re.compile(r"test_corner_((?:\d\d_)+)")

LAST: Final = 30
NOT_YET: Final = {
    8: "min_new_tokens",
    17: "penalties",
    18: "grammars",
}
"""Cases of features that do not exist. Whoever adds one writes the test, and takes its number out of here."""


def numbers_in(source: str) -> set[int]:
    """The numbers in the names of a module's test functions."""
    names = [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    found = [match[1] for match in map(NAME.match, names) if match]
    return {int(number) for numbers in found for number in numbers.split("_") if number}


def test_every_corner_case_has_a_test_with_its_number() -> None:
    found: set[int] = set()
    for path in TESTS.rglob("test_*.py"):
        found |= numbers_in(path.read_text(encoding="utf-8"))
    every = set(range(1, LAST + 1))
    assert found <= every, f"there are no corner cases {sorted(found - every)}"
    missing = every - found - NOT_YET.keys()
    assert not missing, f"no test for the corner cases {sorted(missing)}"
    done = {number: NOT_YET[number] for number in found & NOT_YET.keys()}
    assert not done, f"these have a test now, take them out of NOT_YET: {done}"


def test_numbers_are_read_from_names() -> None:
    source = (
        "def test_corner_03_09_pages() -> None: ...\nasync def test_corner_30_x() -> None: ...\ndef f(): ..."
    )
    assert numbers_in(source) == {3, 9, 30}
    assert numbers_in("def test_corner_cases() -> None: ...\ndef corner_04_x(): ...") == set()
