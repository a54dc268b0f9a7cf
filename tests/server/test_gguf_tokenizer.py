from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import pytest
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from compute_loop.models.files import ModelFiles, locate_model
from compute_loop.models.gguf_file import GgufFile
from srt.core.errors import ModelError
from srt.server.gguf_pre_tokenizers import SPLITTINGS
from srt.server.gguf_tokenizer import read_gguf_tokenizer
from srt.server.tokenizer import Tokenizer
from tests.server import tiny_tokenizers as tiny
from tests.server.text_corpus import texts

# As the models' own tokenizer.json files have them.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DIGITS_THEN_GPT2 = (r"\p{N}", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def load(metadata: dict[str, object], **keys: object) -> Tokenizer:
    metadata = {**metadata, **{f"tokenizer.ggml.{key}": value for key, value in keys.items()}}
    return Tokenizer(read_gguf_tokenizer(Path("tiny.gguf"), metadata))


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return tiny.gguf_metadata(tiny.byte_level())


@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("gpt-2", ()),
        ("smollm", DIGITS_THEN_GPT2),
        ("llama-bpe", (LLAMA3,)),
        ("smaug-bpe", (LLAMA3,)),
        ("deepseek-r1-qwen", (QWEN2,)),
        ("tekken", (TEKKEN,)),
        ("gpt-4o", (GPT4O,)),
    ],
)
def test_ids_equal_those_of_the_tokenizer_the_file_was_made_from(
    name: str, patterns: tuple[str, ...]
) -> None:
    whole_words = name in ("llama-bpe", "tekken")
    backend = tiny.byte_level(*patterns, ignore_merges=whole_words)
    tokenizer = load(tiny.gguf_metadata(backend, pre=name))
    for text in [*texts(seed=21), "<|im_start|>a<tool_call> b</s>"]:
        assert tokenizer.encode(text, False).tolist() == backend.encode(text, add_special_tokens=False).ids, (
            repr(text)
        )
    assert tokenizer.adds_bos is whole_words


def test_qwen2_equals_transformers() -> None:
    backend = tiny.byte_level(QWEN2)
    metadata = tiny.gguf_metadata(backend, pre="qwen2")
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, list) and isinstance(merges, list)
    pairs: Any = [tuple(merge.split(" ")) for merge in merges]
    reference = transformers.Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=pairs,
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
    )
    tokenizer = load(metadata)
    for text in texts(seed=22):
        assert tokenizer.encode(text, False).tolist() == reference.encode(text), repr(text)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-2", ["It", "'s", " 1234", " DON", "'", "T", " x", "=", "1", "  ", " y"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", " DON", "'", "T", " x", "=", "1", "  ", " y"]),
        ("llama-bpe", ["It", "'s", " ", "123", "4", " DON", "'T", " x", "=", "1", "  ", " y"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", " DON", "'T", " x", "=", "1", "  ", " y"]),
        ("tekken", ["It", "'s", " ", "1", "2", "3", "4", " DON", "'T", " x", "=", "1", "  ", " y"]),
        ("gpt-4o", ["It's", " ", "123", "4", " DON'T", " x", "=", "1", "  ", " y"]),
        ("default", ["It", "'", "s", " ", "123", "4", " DON", "'", "T", " x", "=", "1", "  ", " y"]),
        (
            "deepseek-coder",
            ["It", "'", "s", " ", "1", "2", "3", "4", " DON", "'", "T", " x", "=", "1", "  ", " y"],
        ),
    ],
)
def test_a_splitting_cuts_words(name: str, words: list[str]) -> None:
    backend = tiny.byte_level()
    SPLITTINGS[name].apply(backend)
    assert backend.pre_tokenizer is not None
    pieces = backend.pre_tokenizer.pre_tokenize_str("".join(words))
    assert [piece.replace("Ġ", " ") for piece, _ in pieces] == words


@pytest.mark.parametrize("name", sorted(SPLITTINGS))
def test_every_splitting_gives_the_text_back(name: str, plain: dict[str, Any]) -> None:
    tokenizer = load(plain, pre=name)
    for text in texts(seed=23, count=50):
        if not SPLITTINGS[name].composes:
            assert tokenizer.decode(tokenizer.encode(text, False)) == text


def test_sentencepiece_ids_equal_sentencepiece() -> None:
    tokenizer = load(tiny.sentencepiece_metadata())
    recorded = tiny.read_recorded()["encoded"]
    assert len(recorded) > 100
    for text, ids in recorded:
        assert tokenizer.encode(text).tolist() == [1, *ids], repr(text)
        assert tokenizer.decode(ids) == text.replace("▁", " ")


def test_sentencepiece_ids_equal_transformers() -> None:
    """Up to a blank at the start, which transformers' current class swallows and SentencePiece keeps."""
    metadata = tiny.sentencepiece_metadata()
    tokenizer = load(metadata)
    pieces = {piece: index for index, piece in enumerate(tiny.read_recorded()["pieces"])}
    merges = [tuple(merge) for merge in _merges(tokenizer)]
    reference = transformers.LlamaTokenizer(vocab=pieces, merges=merges)
    compared = 0
    for text in texts(seed=24):
        if not text.startswith((" ", "▁")):
            compared += 1
            assert tokenizer.encode(text, False).tolist() == reference.encode(
                text, add_special_tokens=False
            ), repr(text)
    assert compared > 200


def _merges(tokenizer: Tokenizer) -> list[list[str]]:
    """What was derived from the scores."""
    merges: list[list[str]] = json.loads(tokenizer._backend.to_str())["model"]["merges"]
    return merges


def test_sentencepiece_without_a_blank_before_the_text() -> None:
    tokenizer = load(tiny.sentencepiece_metadata(add_space_prefix=False))
    ids = tokenizer.encode("the", False)
    assert tokenizer.token_text(ids[0]) == "t" or not tokenizer.token_text(ids[0]).startswith(" ")
    assert tokenizer.decode(ids) == "the" and tokenizer.decode(tokenizer.encode(" the", False)) == " the"


def test_bos_and_eos_follow_the_file(plain: dict[str, Any]) -> None:
    assert load(plain).encode("a").tolist() == load(plain).encode("a", False).tolist()
    assert load(plain, add_bos_token=True).encode("a")[0] == 1
    assert load(plain, add_bos_token=True, add_eos_token=True).encode("a")[-1] == 2
    assert (
        load(plain, pre="llama-bpe").adds_bos
        and not load(plain, pre="llama-bpe", add_bos_token=False).adds_bos
    )
    spaced = dict(plain)
    tokens = plain["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    spaced["tokenizer.ggml.tokens"] = ["<s : 0>" if token == "<s>" else token for token in tokens]
    assert load(spaced, add_bos_token=True).encode("a")[0] == 1


def test_every_token_that_ends_an_answer_is_known(plain: dict[str, Any]) -> None:
    # <|im_end|> (4) ends a turn, though this file does not say so.
    assert load(plain).eos_ids == {2, 4}
    assert load(plain, eot_token_id=3).eos_ids == {2, 3}
    assert load(plain, eot_token_id=3, eom_token_id=5).eos_ids == {2, 3, 5}


def test_special_and_user_defined_tokens(plain: dict[str, Any]) -> None:
    tokenizer = load(plain)
    assert [index for index in range(tokenizer.vocab_size) if tokenizer.is_special(index)] == [0, 1, 2, 3, 4]
    assert tokenizer.encode("a<tool_call><|im_end|>", False).tolist()[1:] == [600, 4]
    assert tokenizer.decode([600, 4]) == "<tool_call>"
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_a_file_without_token_types_knows_its_named_tokens(plain: dict[str, Any]) -> None:
    metadata = {key: value for key, value in plain.items() if key != "tokenizer.ggml.token_type"}
    assert load(metadata).encode("</s>", False).tolist() == [2]


def test_named_chat_templates(plain: dict[str, Any]) -> None:
    metadata = {
        **plain,
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_templates": ["tool_use"],
    }
    assert load(metadata).chat_templates == {"default": tiny.CHATML, "tool_use": "tools"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "rwkv"}, r"key 'tokenizer.ggml.model' is 'rwkv', expected one of gpt2, llama"),
        ({"model": None}, r"key 'tokenizer.ggml.model' is missing"),
        ({"pre": "martian"}, r"key 'tokenizer.ggml.pre' is 'martian', expected one of .*command-r, .*smollm"),
        ({"merges": None}, r"key 'tokenizer.ggml.merges' is missing or is not a list of str"),
        ({"merges": ["ab"]}, r"key 'tokenizer.ggml.merges' has 'ab', expected two tokens and a space"),
        ({"merges": ["no such"]}, r"key 'tokenizer.ggml.merges' does not fit the tokens"),
        ({"tokens": ["a", "b", "a"]}, r"key 'tokenizer.ggml.tokens' has the token 'a' twice"),
        ({"tokens": [1, 2]}, r"key 'tokenizer.ggml.tokens' is missing or is not a list of str"),
        ({"token_type": [1, 1]}, r"key 'tokenizer.ggml.token_type' has 2 items for 601 tokens"),
        ({"eos_token_id": 601}, r"key 'tokenizer.ggml.eos_token_id' is 601, expected an id below .* 601"),
        (
            {"model": "llama", "merges": None},
            r"has neither 'tokenizer.ggml.scores' nor 'tokenizer.ggml.merges'",
        ),
    ],
)
def test_broken_metadata_names_the_key(plain: dict[str, Any], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=r"tiny\.gguf: " + message):
        load(plain, **keys)


def test_a_whole_file(tmp_path: Path, plain: dict[str, Any]) -> None:
    """Written by the `gguf` package, read by ours."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in plain.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer = Tokenizer.load(ModelFiles("tiny", tmp_path, "gguf", (path,)))
    for text in texts(seed=25, count=20):
        assert tokenizer.encode(text).tolist() == load(plain).encode(text).tolist()
    assert str(path) in repr(tokenizer)


@pytest.mark.e2e
def test_the_default_model_equals_its_original_and_transformers() -> None:
    files = locate_model("smollm2-135m-instruct")
    tokenizer = Tokenizer.load(files)
    assert tokenizer.vocab_size == 49152 and tokenizer.bos_id == 1 and tokenizer.eos_ids == {2}
    metadata = GgufFile(files.weight_files[0]).metadata
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, list) and isinstance(merges, list)
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs: Any = [tuple(merge.split(" ")) for merge in merges]
    # Put together as the model's own tokenizer.json says.
    original = Backend(models.BPE(vocab=vocab, merges=pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    original.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    original.add_special_tokens(tokens[:17])
    reference = transformers.GPT2Tokenizer(vocab=vocab, merges=pairs)
    reference.add_special_tokens({"additional_special_tokens": tokens[:17]})
    for text in [*texts(seed=26), tokenizer.chat_template or ""]:
        ids = tokenizer.encode(text).tolist()
        assert ids == original.encode(text).ids, repr(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        # transformers reads the file as if numerals were not apart.
        if not any(unicodedata.category(character).startswith("N") for character in text):
            assert ids == reference.encode(text), repr(text)
