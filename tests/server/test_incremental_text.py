from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from srt.server.incremental_text import IncrementalText
from srt.server.tokenizer import Tokenizer
from tests.server import tiny_tokenizers as tiny
from tests.server.text_corpus import texts

LONGEST_HEAD = 3
"""Bytes of a UTF-8 character that is not complete."""


@pytest.fixture(scope="module", params=sorted(tiny.KINDS))
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    root = tmp_path_factory.mktemp(request.param)
    return Tokenizer.load(tiny.save_directory(tiny.KINDS[request.param](), root))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(tiny.save_directory(tiny.byte_level(), tmp_path_factory.mktemp("bytes")))


def split(rng: random.Random, ids: list[int]) -> list[list[int]]:
    """`ids` in pushes of random lengths, some of them empty."""
    parts = []
    while ids:
        size = rng.choice((0, 1, 1, 1, 2, 3, 8, len(ids)))
        parts.append(ids[:size])
        ids = ids[size:]
    return parts


def check(tokenizer: Tokenizer, parts: list[list[int]], skip: bool) -> None:
    """All pushes and the end give the text of all ids; and at no time is more held back than one character's head."""
    ids = [token_id for part in parts for token_id in part]
    text = IncrementalText(tokenizer, skip)
    shown, pushed = "", 0
    for index, part in enumerate(parts):
        shown += text.push(part if index % 2 else np.array(part, np.int32))
        pushed += len(part)
        so_far = tokenizer.decode(ids[:pushed], skip)
        held = so_far.removeprefix(shown)
        assert shown + held == so_far and held in ("", *("\ufffd" * n for n in range(1, LONGEST_HEAD + 1)))
    assert shown + text.finish() == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("skip", [True, False])
def test_random_ids_in_random_pushes_give_the_whole_text(tokenizer: Tokenizer, skip: bool) -> None:
    seed = 31
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(400):
        ids = [rng.randrange(-1, tokenizer.vocab_size + 2) for _ in range(rng.randrange(25))]
        check(tokenizer, split(rng, ids), skip)


@pytest.mark.parametrize("skip", [True, False])
def test_texts_in_random_pushes_come_back_whole(tokenizer: Tokenizer, skip: bool) -> None:
    seed = 32
    rng = random.Random(seed)
    for text in texts(seed, count=100):
        check(tokenizer, split(rng, tokenizer.encode(text).tolist()), skip)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_random_bytes_in_random_pushes(kind: str, tmp_path: Path) -> None:
    """Mostly heads and tails of UTF-8 characters, valid or not."""
    seed = 33
    print(f"seed {seed}")
    rng = random.Random(seed)
    tokenizer = Tokenizer.load(tiny.save_directory(tiny.KINDS[kind](), tmp_path))
    by_byte = {
        tokenizer.token_bytes(index)[0]: index
        for index in range(tokenizer.vocab_size)
        if len(tokenizer.token_bytes(index)) == 1
    }
    assert len(by_byte) == 256
    alphabet = [
        0x41,
        0x20,
        0x80,
        0x82,
        0xAC,
        0xBF,
        0xC0,
        0xC3,
        0xE2,
        0xED,
        0xA0,
        0xF0,
        0x9F,
        0x98,
        0xF4,
        0x90,
        0xFF,
    ]
    for _ in range(1500):
        data = [rng.choice(alphabet) for _ in range(rng.randrange(10))]
        check(tokenizer, split(rng, [by_byte[byte] for byte in data]), True)


def test_b55_an_emoji_over_several_tokens_comes_out_at_once(byte_level: Tokenizer) -> None:
    emoji = "👩‍👩‍👧‍👦🇩🇪"
    ids = byte_level.encode(emoji).tolist()
    assert len(ids) > len(emoji), "the emoji should be in single bytes here"
    text = IncrementalText(byte_level)
    shown = [text.push([token_id]) for token_id in ids]
    assert "\ufffd" not in "".join(shown) and text.finish() == ""
    assert "".join(shown) == emoji
    # Each character comes with the token that completes it, not later: nothing stalls.
    for count in range(len(ids)):
        data = b"".join(byte_level.token_bytes(token_id) for token_id in ids[:count])
        assert "".join(shown[:count]) == data.decode("utf-8", "ignore")


def test_b55_a_text_that_ends_within_a_character_says_so(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a😀").tolist()
    text = IncrementalText(byte_level)
    assert text.push(ids[:-1]) == "a"
    assert "3 bytes held" in repr(text)
    assert text.finish() == "\ufffd"
    assert byte_level.decode(ids[:-1]) == "a\ufffd"


def test_a_head_that_is_not_continued_does_not_swallow_what_follows(byte_level: Tokenizer) -> None:
    head = byte_level.encode("😀").tolist()[:2]
    text = IncrementalText(byte_level)
    assert text.push(head) == ""
    assert text.push(byte_level.encode("ok")) == "\ufffdok"


def test_only_the_first_visible_word_loses_its_blank(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(tiny.save_directory(tiny.sentencepiece(), tmp_path))
    the = tokenizer.encode("the", add_special_tokens=False).tolist()
    text = IncrementalText(tokenizer)
    assert text.push([1]) == "" and text.push(the) + text.push(the) == "the the"
    assert tokenizer.decode([1, *the], skip_special_tokens=False) == "<s> the"


def test_a_push_costs_what_it_brings(byte_level: Tokenizer) -> None:
    """The text behind a push is not read again: nothing but the head of one character is kept."""
    text = IncrementalText(byte_level)
    for _ in range(3):
        text.push(byte_level.encode("word " * 500))
        assert "0 bytes held" in repr(text)
    assert not hasattr(text, "__dict__")
