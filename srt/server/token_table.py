"""What each token id adds to a text, as bytes, worked out once from a tokenizer's decoder.

A decoder of the `tokenizers` library is a chain of steps over a list of tokens. For every chain that language models
use, what a token adds depends on two things only: the token, and whether the text is still empty. So the chain is run
once over the whole vocabulary, and decoding becomes joining bytes: it needs no window of earlier tokens, costs the
same for every token, and gives the same text however the tokens are cut into pushes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tokenizers import Tokenizer as Backend

from srt.core.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Pieces:
    """Bytes by token id: `opening` as long as the text is empty, `following` from then on."""

    opening: tuple[bytes, ...]
    following: tuple[bytes, ...]

    def without(self, ids: frozenset[int]) -> Pieces:
        """The same, with nothing for the tokens of `ids`."""
        return Pieces(_blank(self.opening, ids), _blank(self.following, ids))


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The whole vocabulary as bytes. Immutable; any thread may read it.

    Attributes:
        all: every token shows.
        plain: special tokens show nothing.
        special_ids: the special tokens.
        marks_each_byte: how bytes that are not UTF-8 read. True: one U+FFFD for each byte, as SentencePiece does for
            its byte tokens. False: one for each maximal invalid sequence, Unicode's usual rule, for byte-level BPE.
    """

    all: Pieces
    plain: Pieces
    special_ids: frozenset[int]
    marks_each_byte: bool

    @classmethod
    def of(cls, backend: Backend, source: str) -> TokenTable:
        """The table of a loaded tokenizer.

        Args:
            source: the file it came from, for messages.

        Raises:
            ModelError: the decoder has a step that no table can express.
        """
        draft = _Draft.of(backend, source)
        state = (
            json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {"type": "None"}
        )
        draft.run(state)
        special = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        pieces = draft.pieces()
        return cls(pieces, pieces.without(special), special, draft.has_byte_tokens)

    def __repr__(self) -> str:
        return f"TokenTable({len(self.all.following)} tokens, {len(self.special_ids)} special)"


def _blank(pieces: tuple[bytes, ...], ids: frozenset[int]) -> tuple[bytes, ...]:
    return tuple(b"" if token_id in ids else piece for token_id, piece in enumerate(pieces))


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE (GPT-2): printable Latin-1 stands for itself, the rest moves past U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update((chr(256 + index), byte) for index, byte in enumerate(others))
    return alphabet


@dataclass(slots=True)
class _Draft:
    """The vocabulary on its way through the decoder's steps: text by id, and bytes where a token is not text."""

    source: str
    tokens: list[str]
    added_ids: frozenset[int]
    raw: dict[int, bytes] = field(default_factory=dict)
    opening: dict[int, str] = field(default_factory=dict)
    strips: str = ""
    fused: bool = False
    has_byte_tokens: bool = False

    @classmethod
    def of(cls, backend: Backend, source: str) -> _Draft:
        vocab = backend.get_vocab(with_added_tokens=True)
        tokens = [""] * (max(vocab.values(), default=-1) + 1)
        for token, token_id in vocab.items():
            tokens[token_id] = token
        return cls(source, tokens, frozenset(backend.get_added_tokens_decoder()))

    def run(self, state: Mapping[str, object]) -> None:
        kind = str(state.get("type"))
        if kind not in STEPS:
            raise self.error(state, f"known decoders are {', '.join(sorted(STEPS))}")
        STEPS[kind](self, state)

    def error(self, state: Mapping[str, object], hint: str) -> ModelError:
        return ModelError(
            f"{self.source}: the tokenizer's decoder step {json.dumps(state)} is not supported: {hint}"
        )

    def pieces(self) -> Pieces:
        following = [token.encode() for token in self.tokens]
        for token_id, data in self.raw.items():
            following[token_id] = data
        opening = list(following)
        for token_id, text in self.opening.items():
            opening[token_id] = text.encode()
        if self.strips:
            opening = [data.removeprefix(self.strips.encode()) for data in opening]
        return Pieces(tuple(opening), tuple(following))


def _sequence(draft: _Draft, state: Mapping[str, object]) -> None:
    steps = state.get("decoders")
    assert isinstance(steps, list)
    for step in steps:
        draft.run(step)


def _replace(draft: _Draft, state: Mapping[str, object]) -> None:
    pattern, content = state.get("pattern"), str(state.get("content"))
    old = pattern.get("String") if isinstance(pattern, dict) else None
    if not isinstance(old, str) or (draft.fused and len(old) != 1):
        raise draft.error(state, "only a literal string within one token can be replaced")
    draft.tokens = [token.replace(old, content) for token in draft.tokens]


def _byte_fallback(draft: _Draft, state: Mapping[str, object]) -> None:
    draft.has_byte_tokens = True
    for token_id, token in enumerate(draft.tokens):
        if match := _BYTE_TOKEN.fullmatch(token):
            draft.raw[token_id] = bytes([int(match[1], 16)])


def _fuse(draft: _Draft, state: Mapping[str, object]) -> None:
    draft.fused = True


def _strip(draft: _Draft, state: Mapping[str, object]) -> None:
    if not draft.fused or state.get("start") not in (0, 1) or state.get("stop") != 0:
        raise draft.error(state, "only one character at the start of the whole text can be stripped")
    draft.strips = str(state.get("content")) if state.get("start") else ""


def _metaspace(draft: _Draft, state: Mapping[str, object]) -> None:
    marker = str(state.get("replacement"))
    if state.get("prepend_scheme") != "never":
        draft.opening = {
            token_id: token.replace(marker, "")
            for token_id, token in enumerate(draft.tokens)
            if marker in token
        }
    draft.tokens = [token.replace(marker, " ") for token in draft.tokens]


def _byte_level(draft: _Draft, state: Mapping[str, object]) -> None:
    alphabet = byte_alphabet()
    latin = str.maketrans({character: chr(byte) for character, byte in alphabet.items()})
    characters = frozenset(alphabet)
    for token_id, token in enumerate(draft.tokens):
        # Added tokens are matched in the text as they are written, so that is how they read.
        if token_id not in draft.added_ids and characters.issuperset(token):
            draft.raw[token_id] = token.translate(latin).encode("latin-1")


def _word_piece(draft: _Draft, state: Mapping[str, object]) -> None:
    prefix, tidy = str(state.get("prefix")), bool(state.get("cleanup"))
    draft.opening = {
        token_id: _tidy_english(token) if tidy else token for token_id, token in enumerate(draft.tokens)
    }
    for token_id, token in enumerate(draft.tokens):
        text = token.removeprefix(prefix) if token.startswith(prefix) else " " + token
        draft.tokens[token_id] = _tidy_english(text) if tidy else text


def _tidy_english(text: str) -> str:
    """Drops the space before punctuation and contractions, within one token, as the WordPiece decoder does."""
    for old, new in (
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ):
        text = text.replace(old, new)
    return text


def _no_decoder(draft: _Draft, state: Mapping[str, object]) -> None:
    draft.opening = dict(enumerate(draft.tokens))
    draft.tokens = [" " + token for token in draft.tokens]


STEPS: Mapping[str, Callable[[_Draft, Mapping[str, object]], None]] = {
    "Sequence": _sequence,
    "Replace": _replace,
    "ByteFallback": _byte_fallback,
    "Fuse": _fuse,
    "Strip": _strip,
    "Metaspace": _metaspace,
    "ByteLevel": _byte_level,
    "WordPiece": _word_piece,
    "None": _no_decoder,
}
"""Decoder step -> what it does to a vocabulary. A new one is a function above and a line here."""
