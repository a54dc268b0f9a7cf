"""Text to token ids and back, for every kind of model file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from compute_loop.models.files import ModelFiles, ModelKind
from compute_loop.models.gguf_file import GgufFile
from srt.core.errors import InvalidRequest
from srt.core.messages import Int32Array
from srt.server.gguf_tokenizer import read_gguf_tokenizer
from srt.server.hf_tokenizer import read_hf_tokenizer
from srt.server.incremental_text import IncrementalText, TokenIds
from srt.server.special_text import MARK, SpecialText, unshield
from srt.server.token_table import TokenTable
from srt.server.tokenizer_spec import DEFAULT_TEMPLATE, TokenizerSpec


class Tokenizer:
    """A model's tokenizer. Immutable; any thread may call it, and encoding releases the GIL.

    **Special tokens in a text.** `encode` reads ``<|im_end|>`` in a text as the special token, as transformers does,
    so that a rendered chat template works; ``allow_special=False`` reads it as the characters it is made of. In a
    chat, `ChatTemplate.render` tells what a user typed from what the template wrote, and `encode_chat` follows it.

    **One BOS.** Where the model wants one, it is added unless the text begins with it already.

    Attributes:
        vocab_size: number of ids, added tokens included. The model's embedding may be larger.
        bos_id: beginning of sequence, None where the model has none.
        eos_ids: every token that ends a generation.
        adds_bos: `encode` puts BOS before a text.
        chat_templates: name -> Jinja source; empty where the model has none.
        special_tokens: name ("bos_token", ...) -> text.
        special_text: marks special tokens that a user typed.
        table: what each token adds to a text.
    """

    def __init__(self, spec: TokenizerSpec) -> None:
        self.source = spec.source
        self.bos_id = spec.bos_id
        self.eos_ids = spec.eos_ids
        self.chat_templates: Mapping[str, str] = spec.chat_templates
        self.special_tokens: Mapping[str, str] = spec.special_tokens
        self.table = TokenTable.of(spec.backend, spec.source)
        self.vocab_size = len(self.table.all.following)
        self._backend = spec.backend
        self._plain = _ignoring_special(spec.backend, spec.backend.pre_tokenizer)
        self._plain_inside = _ignoring_special(spec.backend, _without_prefix(spec.backend.pre_tokenizer))
        self._finder = _finding_added(spec.backend)
        self._special_ids = {
            token.content: token_id
            for token_id, token in spec.backend.get_added_tokens_decoder().items()
            if token.special
        }
        self.special_text = SpecialText(self._special_ids)
        self._never_text = self._find_never_text()
        first = spec.backend.encode("", add_special_tokens=True).ids[:1]
        self.adds_bos = spec.bos_id is not None and first == [spec.bos_id]

    @classmethod
    def load(cls, files: ModelFiles) -> Tokenizer:
        """The tokenizer of a model.

        Raises:
            ModelError: a file or key is missing, broken or not supported.
        """
        return cls(LOADERS[files.kind](files))

    @property
    def chat_template(self) -> str | None:
        """The default chat template."""
        return self.chat_templates.get(DEFAULT_TEMPLATE)

    def encode(
        self, text: str, add_special_tokens: bool = True, allow_special: bool = True, *, field: str = "text"
    ) -> Int32Array:
        """Token ids of a text.

        Args:
            add_special_tokens: add BOS and EOS as the model wants them.
            allow_special: special tokens in the text are special; otherwise they are text.
            field: request field that the text came from, for messages.

        Raises:
            InvalidRequest: the text has a lone surrogate, which no encoding of Unicode can express; or a special
                token that is to be text, but that this model cannot spell otherwise.
        """
        return self.encode_batch([text], add_special_tokens, allow_special, field=field)[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        add_special_tokens: bool = True,
        allow_special: bool = True,
        *,
        field: str = "text",
    ) -> list[Int32Array]:
        """`encode` of each text; several texts are spread over the cores."""
        for index, text in enumerate(texts):
            _check_unicode(text, f"{field}[{index}]" if len(texts) > 1 else field)
            if not allow_special:
                self._check_plain(text, field)
        backend = self._backend if allow_special else self._plain
        # The batch call, also for one text: `encode` holds the GIL, for seconds on a long text.
        encodings = backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [self._one_bos(_ids(encoding)) for encoding in encodings]

    def encode_chat(self, rendered: str, *, field: str = "messages") -> Int32Array:
        """Token ids of a rendered chat template, with exactly one BOS where the model wants one.

        The template's special tokens are special, those that `ChatTemplate.render` marked as typed are text.

        Raises:
            InvalidRequest: as `encode`.
        """
        _check_unicode(rendered, field)
        if MARK in rendered:
            ids = self._encode_shielded(rendered, field)
        else:
            ids = _ids(self._backend.encode_batch_fast([rendered], add_special_tokens=False)[0])
        if self.adds_bos and (not len(ids) or ids[0] != self.bos_id):
            ids = np.concatenate([np.array([self.bos_id], np.int32), ids])
        return self._one_bos(ids)

    def decode(self, ids: TokenIds, skip_special_tokens: bool = True) -> str:
        """The text of token ids. Ids outside the vocabulary show nothing; bytes that are not UTF-8 read as U+FFFD."""
        text = IncrementalText(self, skip_special_tokens)
        return text.push(ids) + text.finish()

    def token_text(self, token_id: int) -> str:
        """What one token reads like within a text; a part of a character reads as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to a text, in UTF-8; nothing for an id outside the vocabulary."""
        return self.table.all.following[token_id] if 0 <= token_id < self.vocab_size else b""

    def is_special(self, token_id: int) -> bool:
        return token_id in self.table.special_ids

    def _one_bos(self, ids: Int32Array) -> Int32Array:
        if self.adds_bos and len(ids) > 1 and ids[0] == ids[1] == self.bos_id:
            return ids[1:]
        return ids

    def _encode_shielded(self, rendered: str, field: str) -> Int32Array:
        """Cuts at the special tokens that have no mark inside, and encodes what lies between as plain text.

        ::

            rendered:  <|im_start|>user\\n ... <M|im_end|> ... <|im_end|>\\n
                       [ special  )[        one part         )[special )[ part )
        """
        encoding = self._finder.encode_batch([rendered], add_special_tokens=False)[0]
        parts: list[Int32Array] = []
        done = 0
        for name, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
            if name in self._special_ids:
                parts.append(self._encode_part(rendered[done:start], done == 0, field))
                parts.append(np.array([self._special_ids[name]], np.int32))
                done = end
        parts.append(self._encode_part(rendered[done:], done == 0, field))
        return np.concatenate(parts)

    def _encode_part(self, shielded: str, is_first: bool, field: str) -> Int32Array:
        part = unshield(shielded)
        if not part:
            return np.empty(0, np.int32)
        self._check_plain(part, field)
        backend = self._plain if is_first else self._plain_inside
        return _ids(backend.encode_batch_fast([part], add_special_tokens=False)[0])

    def _find_never_text(self) -> tuple[str, ...]:
        """Special tokens that even as text become themselves: a unigram model has them among its ordinary words."""
        names = self._special_ids
        encodings = self._plain.encode_batch_fast(list(names), add_special_tokens=False)
        return tuple(
            name
            for (name, token_id), encoding in zip(names.items(), encodings, strict=True)
            if token_id in encoding.ids
        )

    def _check_plain(self, text: str, field: str) -> None:
        for name in self._never_text:
            if name in text:
                raise InvalidRequest(
                    f"{field} has the text {name!r}, which this model can read only as a special token: leave it "
                    f"out, or allow special tokens",
                    field=field,
                )

    def __repr__(self) -> str:
        return f"Tokenizer({self.source}, {self.vocab_size} tokens, bos {self.bos_id}, eos {sorted(self.eos_ids)})"


def _ids(encoding: Encoding) -> npt.NDArray[np.int32]:
    return np.array(encoding.ids, np.int32)


def _check_unicode(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{field} has a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}: it is half of "
            f"a character and cannot be encoded; send the whole character",
            field=field,
        ) from None


def _ignoring_special(backend: Backend, pre_tokenizer: pre_tokenizers.PreTokenizer | None) -> Backend:
    """A tokenizer over the same model (shared, not copied) to which special tokens are ordinary text."""
    twin = Backend(backend.model)
    if backend.normalizer is not None:
        twin.normalizer = backend.normalizer
    if pre_tokenizer is not None:
        twin.pre_tokenizer = pre_tokenizer
    if backend.post_processor is not None:
        twin.post_processor = backend.post_processor
    for _, token in sorted(backend.get_added_tokens_decoder().items()):
        (twin.add_special_tokens if token.special else twin.add_tokens)([token])
    twin.encode_special_tokens = True
    return twin


def _finding_added(backend: Backend) -> Backend:
    """A tokenizer that finds the added tokens of `backend` and takes all text between two of them as one token."""
    finder = Backend(models.WordLevel({MARK: 0}, unk_token=MARK))
    if backend.normalizer is not None:
        finder.normalizer = backend.normalizer
    for _, token in sorted(backend.get_added_tokens_decoder().items()):
        (finder.add_special_tokens if token.special else finder.add_tokens)([token])
    return finder


def _without_prefix(pre_tokenizer: pre_tokenizers.PreTokenizer | None) -> pre_tokenizers.PreTokenizer | None:
    """The same, for a part that is not the first: "prefix the first part" becomes "prefix none"."""
    if pre_tokenizer is None:
        return None
    inside = pre_tokenizers.Sequence([])
    inside.__setstate__(
        pre_tokenizer.__getstate__().replace(b'"prepend_scheme":"first"', b'"prepend_scheme":"never"')
    )
    return inside


def _load_gguf(files: ModelFiles) -> TokenizerSpec:
    # The first shard carries the metadata.
    path = files.weight_files[0]
    return read_gguf_tokenizer(path, GgufFile(path).metadata)


def _load_directory(files: ModelFiles) -> TokenizerSpec:
    return read_hf_tokenizer(files.root)


LOADERS: Mapping[ModelKind, Callable[[ModelFiles], TokenizerSpec]] = {
    "gguf": _load_gguf,
    "safetensors": _load_directory,
}
"""Kind of model files -> reader of their tokenizer."""
