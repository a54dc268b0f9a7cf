"""Which content has which host page, and who leaves for whom."""

from __future__ import annotations

from radix_cache.host_index import HostIndex


def names(word: str) -> list[bytes]:
    return [letter.encode() for letter in word]


def test_a_run_is_found_until_its_first_gap() -> None:
    index = HostIndex(10, 4)
    assert index.find(names("abc")) == []
    places, pages = index.place(names("abc"))
    where = dict(zip(places, pages, strict=True))
    assert sorted(where) == [0, 1, 2] and set(pages) < set(range(10, 14))
    assert index.find(names("abx")) == [where[0], where[1]]
    assert index.find(names("xab")) == []
    assert len(index) == 3


def test_what_is_there_is_not_copied_again() -> None:
    index = HostIndex(0, 4)
    index.place(names("ab"))
    places, _ = index.place(names("abc"))
    assert places == [2]


def test_the_least_recently_used_leaves_and_the_end_of_a_run_before_its_beginning() -> None:
    index = HostIndex(0, 4)
    index.place(names("ab"))
    index.place(names("cd"))
    index.find(names("ab"))
    index.place(names("e"))
    assert len(index.find(names("cd"))) == 1, "d has left"
    index.place(names("f"))
    assert len(index.find(names("ab"))) == 1, "b has left: c was used since"


def test_of_a_run_that_is_too_long_the_beginning_is_kept() -> None:
    index = HostIndex(0, 3)
    places, pages = index.place(names("abcde"))
    assert sorted(places) == [0, 1, 2] and sorted(pages) == [0, 1, 2]
    assert len(index.find(names("abcde"))) == 3


def test_a_page_has_one_content_only() -> None:
    index = HostIndex(0, 5)
    held: dict[bytes, int] = {}
    for turn in range(200):
        word = [bytes([turn * 7 % 31 + place]) for place in range(turn % 4 + 1)]
        places, pages = index.place(word)
        for place, page in zip(places, pages, strict=True):
            held = {name: at for name, at in held.items() if at != page}
            held[word[place]] = page
        assert index.find(word) == [held[name] for name in word]
    index.clear()
    assert len(index) == 0 and index.find(word) == []
