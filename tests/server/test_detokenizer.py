from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from srt.core.messages import FinishReason
from srt.server.detokenizer import StreamText, TextDelta
from srt.server.incremental_text import IncrementalText
from srt.server.stop_strings import StopStrings
from srt.server.tokenizer import Tokenizer
from tests.server import tiny_tokenizers as tiny
from tests.server.test_stop_strings import first_match, longest_head
from tests.server.text_corpus import random_texts

LENGTH = FinishReason("length")
EOS = 2


@pytest.fixture(scope="module", params=["byte_level", "sentencepiece", "word_piece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    root = tmp_path_factory.mktemp(request.param)
    return Tokenizer.load(tiny.save_directory(tiny.KINDS[request.param](), root))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(tiny.save_directory(tiny.byte_level(), tmp_path_factory.mktemp("bytes")))


@dataclass(frozen=True)
class Expected:
    text: str
    token_ids: tuple[int, ...]
    finish: FinishReason
    keep_tokens: int | None


def complete_characters(tokenizer: Tokenizer, ids: list[int]) -> int:
    return len(IncrementalText(tokenizer).push(ids))


def answer(
    tokenizer: Tokenizer, ids: list[int], finish: FinishReason, stops: list[str], keep_stop: bool
) -> Expected:
    """The answer out of the whole, by plain searches."""
    hidden = finish.kind == "stop" and not keep_stop
    whole = tokenizer.decode(ids[:-1] if hidden else ids)
    match = first_match(whole, stops)
    if match is None:
        return Expected(whole, tuple(ids), finish, None)
    end, stop = match
    cut = end if keep_stop else end - len(stop)
    kept = 0
    while cut and complete_characters(tokenizer, ids[:kept]) < cut and kept < len(ids):
        kept += 1
    return Expected(whole[:cut], tuple(ids[:kept]), FinishReason("stop", stop), kept)


def stream(
    text: StreamText, ids: list[int], finish: FinishReason, rng: random.Random
) -> tuple[list[TextDelta], list[int]]:
    """Pushes of random lengths, the finish with the last; the deltas, and how many ids had been pushed at each."""
    deltas, pushed, done = [], [], 0
    while True:
        size = rng.choice((0, 1, 1, 1, 2, 5, len(ids)))
        part = ids[done : done + size]
        done += len(part)
        last = done == len(ids)
        deltas.append(
            text.push(part if rng.random() < 0.5 else np.array(part, np.int32), finish if last else None)
        )
        pushed.append(done)
        if last:
            return deltas, pushed


def make_case(
    tokenizer: Tokenizer, rng: random.Random, content: str
) -> tuple[list[int], FinishReason, list[str]]:
    ids = tokenizer.encode(content, add_special_tokens=False).tolist()
    for _ in range(rng.randrange(3)):
        ids.insert(rng.randrange(len(ids) + 1), rng.choice((3, 4, rng.randrange(tokenizer.vocab_size))))
    whole = tokenizer.decode(ids)
    stops = []
    for _ in range(rng.choice((1, 1, 2, 5, 32))):
        start = rng.randrange(len(whole) + 1)
        stop = whole[start : start + rng.randrange(1, 9)]
        # Some are only nearly in the text, so that heads are held back and let go.
        stop = stop if rng.random() < 0.4 else stop + rng.choice("ab\ufffd漢 ")
        if stop:
            stops.append(stop)
    if rng.random() < 0.5:
        return ids, LENGTH, stops
    return [*ids, EOS], FinishReason("stop", EOS), stops


def test_corner_07_b52_streams_in_any_split_give_the_answer_of_a_search_in_the_whole(
    tokenizer: Tokenizer,
) -> None:
    seed = 51
    rng = random.Random(seed)
    matched = 0
    for content in random_texts(seed, 600):
        ids, finish, stops = make_case(tokenizer, rng, content)
        keep_stop = rng.random() < 0.3
        expected = answer(tokenizer, ids, finish, stops, keep_stop)
        text = StreamText(tokenizer, tuple(stops), no_stop_trim=keep_stop)
        deltas, pushed = stream(text, ids, finish, rng)
        given = (text.text, text.token_ids, text.finish)
        assert given == (expected.text, expected.token_ids, expected.finish), (ids, stops)
        check_deltas(tokenizer, deltas, pushed, ids, stops, expected)
        matched += expected.keep_tokens is not None
    assert 100 < matched < 500


def check_deltas(
    tokenizer: Tokenizer,
    deltas: list[TextDelta],
    pushed: list[int],
    ids: list[int],
    stops: list[str],
    expected: Expected,
) -> None:
    ending = [delta for delta in deltas if delta.finish is not None]
    assert len(ending) == 1 and ending[0].keep_tokens == expected.keep_tokens
    assert "".join(delta.text for delta in deltas) == expected.text
    assert tuple(token_id for delta in deltas for token_id in delta.token_ids) == expected.token_ids
    shown = ""
    for delta, count in zip(deltas, pushed, strict=True):
        shown += delta.text
        if delta.finish is not None:
            break
        # Held back is exactly what may still become a stop string, and a character's head.
        so_far = IncrementalText(tokenizer).push(ids[:count])
        assert shown == so_far[: len(so_far) - longest_head(so_far, stops)]


def test_without_stop_strings_everything_comes_at_once(tokenizer: Tokenizer) -> None:
    seed = 52
    rng = random.Random(seed)
    for content in random_texts(seed, 100):
        ids = tokenizer.encode(content, add_special_tokens=False).tolist()
        text = StreamText(tokenizer)
        deltas, _ = stream(text, ids, LENGTH, rng)
        assert text.text == tokenizer.decode(ids) and text.token_ids == tuple(ids) and text.finish == LENGTH
        assert [delta.finish for delta in deltas] == [None] * (len(deltas) - 1) + [LENGTH]


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).tolist()
    return ids


def test_b52_the_head_of_a_stop_string_is_never_shown(byte_level: Tokenizer) -> None:
    text = StreamText(byte_level, ("STOP",))
    shown = [text.push([token_id]).text for token_id in ids_of(byte_level, "go SsT STO STOP on")]
    assert "".join(shown) == text.text == "go SsT STO "
    assert text.finish == FinishReason("stop", "STOP")


def test_b54_what_was_held_comes_out_at_the_end(byte_level: Tokenizer) -> None:
    for finish in (LENGTH, FinishReason("abort"), FinishReason("stop", EOS)):
        text = StreamText(byte_level, ("STOP",))
        ids = ids_of(byte_level, "now STO")
        assert text.push(ids).text == "now "
        end = [EOS] if finish.matched == EOS else []
        delta = text.push(end, finish)
        assert delta.text == "STO" and delta.finish == finish and delta.keep_tokens is None
        assert text.text == "now STO" and text.token_ids == (*ids, *end)


def test_b54_a_head_that_breaks_off_comes_out_at_once(byte_level: Tokenizer) -> None:
    text = StreamText(byte_level, ("STOP",))
    assert text.push(ids_of(byte_level, "STO")).text == ""
    assert text.push(ids_of(byte_level, "x")).text == "STOx"


def test_the_matched_token_stays_in_the_ids_and_not_in_the_text(byte_level: Tokenizer) -> None:
    word = ids_of(byte_level, "!")
    for stops in ((), ("never",)):
        text = StreamText(byte_level, stops)
        text.push([*ids_of(byte_level, "hey"), *word], FinishReason("stop", word[0]))
        assert text.text == "hey" and text.token_ids[-1:] == tuple(word)
        text = StreamText(byte_level, stops, no_stop_trim=True)
        text.push([*ids_of(byte_level, "hey"), *word], FinishReason("stop", word[0]))
        assert text.text == "hey!"


@pytest.mark.parametrize(
    ("skip", "no_trim", "expected"),
    [(True, False, "hey"), (False, False, "hey"), (True, True, "hey"), (False, True, "hey</s>")],
)
def test_eos_in_the_text(byte_level: Tokenizer, skip: bool, no_trim: bool, expected: str) -> None:
    text = StreamText(byte_level, skip_special_tokens=skip, no_stop_trim=no_trim)
    text.push([*ids_of(byte_level, "hey"), EOS], FinishReason("stop", EOS))
    assert text.text == expected and text.token_ids[-1] == EOS


def test_a_stop_string_before_eos_wins(byte_level: Tokenizer) -> None:
    text = StreamText(byte_level, ("x",))
    delta = text.push([*ids_of(byte_level, "ab"), *ids_of(byte_level, "x"), EOS], FinishReason("stop", EOS))
    assert delta.finish == FinishReason("stop", "x") and text.text == "ab"
    assert text.token_ids == tuple(ids_of(byte_level, "ab")) and delta.keep_tokens == text.num_tokens


def test_the_first_finish_wins_and_overrun_is_ignored(byte_level: Tokenizer) -> None:
    text = StreamText(byte_level, ("x",))
    text.push(ids_of(byte_level, "ax"))
    before = (text.text, text.token_ids, text.finish)
    assert text.push(ids_of(byte_level, "more"), LENGTH) == TextDelta()
    assert (text.text, text.token_ids, text.finish) == before and text.finished
    text = StreamText(byte_level)
    text.push([], LENGTH)
    assert text.push([EOS], FinishReason("stop", EOS)) == TextDelta() and text.finish == LENGTH
    assert "finished by" in repr(text)


def test_a_stop_string_at_the_very_start_leaves_nothing(byte_level: Tokenizer) -> None:
    text = StreamText(byte_level, ("hey",))
    delta = text.push(ids_of(byte_level, "hey you"))
    assert delta == TextDelta("", (), FinishReason("stop", "hey"), 0)
    assert text.text == "" and text.num_tokens == 0


def test_corner_07_a_stop_string_within_one_token_keeps_the_token(byte_level: Tokenizer) -> None:
    the = ids_of(byte_level, " the")
    assert len(the) == 1
    text = StreamText(byte_level, ("he",))
    assert text.push(the) == TextDelta(" t", tuple(the), FinishReason("stop", "he"), 1)


def test_an_unfinished_character_at_the_end_may_complete_a_stop_string(byte_level: Tokenizer) -> None:
    half = ids_of(byte_level, "😀")[:1]
    text = StreamText(byte_level, ("a\ufffd",))
    assert text.push([*ids_of(byte_level, "xa"), *half]).text == "x"
    delta = text.push([], LENGTH)
    assert delta.finish == FinishReason("stop", "a\ufffd") and text.text == "x"


def test_choices_may_share_their_stop_strings(byte_level: Tokenizer) -> None:
    stops = StopStrings(("x",))
    first, second = StreamText(byte_level, stops), StreamText(byte_level, stops)
    first.push(ids_of(byte_level, "ax"))
    second.push(ids_of(byte_level, "b"))
    assert first.finished and not second.finished and second.text == "b"
    assert "running" in repr(second) and "['x']" in repr(stops)
