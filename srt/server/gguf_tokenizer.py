"""The tokenizer that a GGUF file carries in its metadata (``tokenizer.ggml.*``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from compute_loop.models.config_reader import ConfigReader
from srt.core.errors import ModelError
from srt.server.gguf_pre_tokenizers import SPLITTINGS
from srt.server.tokenizer_spec import DEFAULT_TEMPLATE, TokenizerSpec, add_tokens, set_affixes

_KEY = "tokenizer.ggml."
_TEMPLATE_KEY = "tokenizer.chat_template"

_END_OF_TURN = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
"""Control tokens that end an answer; older files have them without saying which token ends a turn."""

_SPECIAL_NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}

T = TypeVar("T", str, int, float)


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``, as SentencePiece numbers its pieces."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def read_gguf_tokenizer(path: Path, metadata: Mapping[str, object]) -> TokenizerSpec:
    """The tokenizer in the metadata of a GGUF file.

    Args:
        path: the file, for messages.
        metadata: key -> bool, int, float, str or a list of these.

    Raises:
        ModelError: a key is missing or broken, or names a tokenizer or a splitting that is not known here.
    """
    reader = ConfigReader(path, metadata)
    kind = reader.text(_KEY + "model")
    if kind not in KINDS:
        raise reader.error(_KEY + "model", f"one of {', '.join(sorted(KINDS))}")
    vocabulary = _Vocabulary(reader)
    backend, adds_bos = KINDS[kind](vocabulary)
    add_tokens(backend, vocabulary.added_tokens(), str(path))
    bos_id, eos_id = vocabulary.token_id("bos_token_id"), vocabulary.token_id("eos_token_id")
    set_affixes(
        backend,
        bos_id if reader.flag(_KEY + "add_bos_token", adds_bos) else None,
        eos_id if reader.flag(_KEY + "add_eos_token", False) else None,
    )
    return TokenizerSpec(
        source=str(path),
        backend=backend,
        bos_id=bos_id,
        eos_ids=vocabulary.eos_ids(),
        special_tokens=vocabulary.special_tokens(),
        chat_templates=_chat_templates(reader),
    )


class _Vocabulary:
    """Tokens, their types and the special ids of one file, checked against each other."""

    def __init__(self, reader: ConfigReader) -> None:
        self.reader = reader
        self.tokens = _items(reader, "tokens", str)
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            twice = next(token for token_id, token in enumerate(self.tokens) if self.ids[token] != token_id)
            raise ModelError(f"{reader.path}: key {_KEY + 'tokens'!r} has the token {twice!r} twice")
        self.types = self.column("token_type", int) or [TokenType.NORMAL] * len(self.tokens)

    def column(self, name: str, kind: type[T]) -> list[T] | None:
        """A list as long as the vocabulary, None where the file has none."""
        if not self.reader.has(_KEY + name):
            return None
        items = _items(self.reader, name, kind)
        if len(items) != len(self.tokens):
            raise ModelError(
                f"{self.reader.path}: key {_KEY + name!r} has {len(items)} items for {len(self.tokens)} tokens"
            )
        return items

    def token_id(self, name: str) -> int | None:
        token_id = self.reader.optional_integer(_KEY + name, low=0)
        if token_id is not None and token_id >= len(self.tokens):
            raise self.reader.error(_KEY + name, f"an id below the vocabulary's size {len(self.tokens)}")
        return token_id

    def special_tokens(self) -> dict[str, str]:
        found = ((name, self.token_id(key)) for name, key in _SPECIAL_NAMES.items())
        return {name: self.tokens[token_id] for name, token_id in found if token_id is not None}

    def added_tokens(self) -> dict[int, AddedToken]:
        """Tokens that are matched whole in a text: control tokens are special, user-defined ones are not."""
        special = {self.ids[token] for token in self.special_tokens().values()}
        special.update(
            token_id
            for token_id, kind in enumerate(self.types)
            if kind in (TokenType.CONTROL, TokenType.UNKNOWN)
        )
        plain = {
            token_id for token_id, kind in enumerate(self.types) if kind == TokenType.USER_DEFINED
        } - special
        return {
            token_id: AddedToken(self.tokens[token_id], normalized=False, special=token_id in special)
            for token_id in special | plain
            if self.tokens[token_id]
        }

    def eos_ids(self) -> frozenset[int]:
        declared = [self.token_id(name) for name in ("eos_token_id", "eot_token_id", "eom_token_id")]
        ids = {token_id for token_id in declared if token_id is not None}
        if not self.reader.has(_KEY + "eot_token_id"):
            control = (self.ids.get(token) for token in _END_OF_TURN)
            ids.update(i for i in control if i is not None and self.types[i] == TokenType.CONTROL)
        return frozenset(ids)


def _items(reader: ConfigReader, name: str, kind: type[T]) -> list[T]:
    values = reader.values.get(_KEY + name)
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise ModelError(f"{reader.path}: key {_KEY + name!r} is missing or is not a list of {kind.__name__}")
    return values


def _byte_level(vocabulary: _Vocabulary) -> tuple[Backend, bool]:
    """Byte-level BPE: GPT-2, Llama 3, Qwen, SmolLM."""
    reader = vocabulary.reader
    name = reader.text(_KEY + "pre", "default")
    splitting = SPLITTINGS.get(name)
    if splitting is None:
        raise reader.error(_KEY + "pre", f"one of {', '.join(sorted(SPLITTINGS))}")
    merges = [_parse_merge(reader, merge) for merge in _items(reader, "merges", str)]
    backend = _bpe(vocabulary, merges, ignore_merges=splitting.whole_words)
    splitting.apply(backend)
    backend.decoder = decoders.ByteLevel()
    return backend, splitting.adds_bos


def _sentencepiece(vocabulary: _Vocabulary) -> tuple[Backend, bool]:
    """SentencePiece BPE with byte fallback: Llama 2, Mistral. Such a file has scores instead of merges."""
    reader = vocabulary.reader
    if reader.has(_KEY + "merges"):
        merges = [_parse_merge(reader, merge) for merge in _items(reader, "merges", str)]
    else:
        merges = _merges_from_scores(vocabulary)
    unknown_id = vocabulary.token_id("unknown_token_id")
    unknown = vocabulary.tokens[unknown_id] if unknown_id is not None else None
    backend = _bpe(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    adds_space = reader.flag(_KEY + "add_space_prefix", True)
    prefix = [normalizers.Prepend("▁")] if adds_space else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if adds_space else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend, True


def _bpe(vocabulary: _Vocabulary, merges: list[tuple[str, str]], **options: object) -> Backend:
    try:
        return Backend(models.BPE(vocab=vocabulary.ids, merges=merges, **options))
    except Exception as error:  # the library raises bare Exception
        path = vocabulary.reader.path
        raise ModelError(f"{path}: key {_KEY + 'merges'!r} does not fit the tokens: {error}") from error


def _parse_merge(reader: ConfigReader, merge: str) -> tuple[str, str]:
    # A token may begin with a space, so the first character never separates.
    middle = merge.find(" ", 1)
    if middle < 0:
        raise ModelError(
            f"{reader.path}: key {_KEY + 'merges'!r} has {merge!r}, expected two tokens and a space"
        )
    return merge[:middle], merge[middle + 1 :]


def _merges_from_scores(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Every way to make a normal piece of two others, best piece first.

    SentencePiece joins the neighbours whose joint piece has the highest score, the leftmost such pair first (Kudo and
    Richardson 2018, ``bpe_model.cc``); control, byte and user-defined pieces take no part. As merges, a pair's rank
    follows from the score of what it makes. Pairs that make one piece need different ranks: they go by the ids of their
    sides, as in the converted files of the Llama family.
    """
    scores = vocabulary.column("scores", float)
    if scores is None:
        raise ModelError(f"{vocabulary.reader.path}: has neither {_KEY + 'scores'!r} nor {_KEY + 'merges'!r}")
    tokens = vocabulary.tokens
    normal = {token: i for i, token in enumerate(tokens) if vocabulary.types[i] == TokenType.NORMAL}
    ranked = [
        (-scores[token_id], token_id, normal[token[:cut]], normal[token[cut:]], cut)
        for token, token_id in normal.items()
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]
    ranked.sort()
    return [(tokens[token_id][:cut], tokens[token_id][cut:]) for _, token_id, _, _, cut in ranked]


def _chat_templates(reader: ConfigReader) -> dict[str, str]:
    templates = {}
    for key in reader.values:
        if key == _TEMPLATE_KEY:
            templates[DEFAULT_TEMPLATE] = reader.text(key)
        elif key.startswith(_TEMPLATE_KEY + "."):
            templates[key.removeprefix(_TEMPLATE_KEY + ".")] = reader.text(key)
    return templates


KINDS: Mapping[str, Callable[[_Vocabulary], tuple[Backend, bool]]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}
"""``tokenizer.ggml.model`` -> builder, which also says whether texts begin with BOS by default."""
