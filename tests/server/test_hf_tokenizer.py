from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from compute_loop.models.files import ModelFiles
from srt.core.errors import ModelError
from srt.server.tokenizer import Tokenizer
from tests.server import tiny_tokenizers as tiny
from tests.server.text_corpus import SENTENCES


def test_a_directory_without_a_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json.*save_pretrained"):
        Tokenizer.load(ModelFiles("x", tmp_path, "safetensors", ()))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", r"tokenizer\.json: is not a readable tokenizer"),
        ("tokenizer_config.json", "[]", r"tokenizer_config\.json: should hold an object"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json: is not JSON"),
        (
            "tokenizer_config.json",
            '{"bos_token": 5}',
            r"key 'bos_token' is 5, expected a string or an object",
        ),
        ("tokenizer_config.json", '{"chat_template": [{"name": "x"}]}', r"key 'chat_template'"),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"9999": {"content": "<new>"}}}',
            r"added token '<new>' should have id 9999, the vocabulary gives it 601",
        ),
        ("config.json", '{"eos_token_id": "x"}', r"config\.json: key 'eos_token_id'"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    files = tiny.save_directory(tiny.byte_level(), tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match=message):
        Tokenizer.load(files)


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.BPEDecoder(),
        decoders.CTC(),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]),
        decoders.Strip(" ", 1, 0),
    ],
)
def test_a_decoder_that_needs_what_comes_later_is_refused(tmp_path: Path, decoder: Any) -> None:
    backend = tiny.byte_level()
    backend.decoder = decoder
    with pytest.raises(ModelError, match=r"decoder step .* is not supported"):
        Tokenizer.load(tiny.save_directory(backend, tmp_path))


def test_a_tokenizer_without_a_decoder_joins_words_with_blanks(tmp_path: Path) -> None:
    backend = Backend(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer = Tokenizer.load(tiny.save_directory(backend, tmp_path, bos_token=None, eos_token=None))
    assert tokenizer.decode([0, 1, 0]) == backend.decode([0, 1, 0]) == "a b a"
    assert tokenizer.bos_id is None and tokenizer.eos_ids == frozenset()


def test_limits_left_in_a_file_do_not_cut_prompts(tmp_path: Path) -> None:
    backend = tiny.byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    tokenizer = Tokenizer.load(tiny.save_directory(backend, tmp_path))
    assert tokenizer.decode(tokenizer.encode(SENTENCES[0])) == SENTENCES[0]


def test_tokens_of_the_config_file_are_added(tmp_path: Path) -> None:
    declared = {
        "601": {"content": "<extra>", "special": True},
        "600": {"content": "<tool_call>", "special": True},
    }
    files = tiny.save_directory(tiny.byte_level(), tmp_path, added_tokens_decoder=declared)
    tokenizer = Tokenizer.load(files)
    assert tokenizer.encode("a<extra><tool_call>").tolist()[1:] == [601, 600]
    assert tokenizer.is_special(601) and tokenizer.is_special(600)


def test_special_tokens_are_found_in_every_spelling(tmp_path: Path) -> None:
    files = tiny.save_directory(
        tiny.byte_level(),
        tmp_path,
        bos_token={"content": "<|im_start|>", "lstrip": False},
        eos_token=None,
        additional_special_tokens=[{"content": "<tool_call>"}, "<not-in-the-vocabulary>"],
    )
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "bos_token": "<s>"})
    )
    tokenizer = Tokenizer.load(files)
    assert tokenizer.special_tokens["bos_token"] == "<|im_start|>"
    assert tokenizer.is_special(600) and tokenizer.vocab_size == 601


def test_chat_templates_are_found_in_every_place(tmp_path: Path) -> None:
    files = tiny.save_directory(
        tiny.byte_level(),
        tmp_path,
        chat_template=[{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}],
    )
    assert Tokenizer.load(files).chat_templates == {"default": "one", "tool_use": "two"}
    (tmp_path / "chat_template.json").write_text('{"chat_template": "three"}')
    assert Tokenizer.load(files).chat_template == "three"
    (tmp_path / "chat_template.jinja").write_text("four")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("five")
    assert Tokenizer.load(files).chat_templates == {"default": "four", "tool_use": "five"}


def test_no_chat_template(tmp_path: Path) -> None:
    assert (
        Tokenizer.load(tiny.save_directory(tiny.byte_level(), tmp_path, chat_template=None)).chat_template
        is None
    )


def test_every_eos_is_known(tmp_path: Path) -> None:
    files = tiny.save_directory(tiny.byte_level(), tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": 4}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert Tokenizer.load(files).eos_ids == {2, 3, 4}
