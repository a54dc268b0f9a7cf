"""How the byte-level BPE vocabularies of GGUF files cut a text into words, by the name in ``tokenizer.ggml.pre``.

A GGUF file names the splitting, it does not carry it. The expressions are those of the models' own ``tokenizer.json``
files; where a name stands for several models that differ, for the one that the Llama, Mistral and Qwen families use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend


@dataclass(frozen=True, slots=True)
class Splitting:
    """One way to cut a text.

    Attributes:
        patterns: applied in order, each to the parts that the one before left; matches and what lies between them
            become parts of their own.
        adds_bos: a text begins with BOS unless the file says otherwise.
        whole_words: a word that is a token stays one, whatever the merges say.
        composes: the text is brought to Unicode form NFC first.
    """

    patterns: tuple[str, ...]
    adds_bos: bool = False
    whole_words: bool = False
    composes: bool = False

    def apply(self, backend: Backend) -> None:
        """Sets the normalizer and pre-tokenizer of `backend`."""
        if self.composes:
            backend.normalizer = normalizers.NFC()
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_HEAD = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    rf"{_HEAD}{_UPPER}*{_LOWER}+|{_HEAD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"{_HEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_HEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)

_PLAIN = Splitting((_GPT2,))
_DIGITS_APART = Splitting((_DIGIT, _GPT2))
_LLAMA3_BOS = Splitting((_LLAMA3,), adds_bos=True, whole_words=True)
_QWEN = Splitting((_QWEN2,), composes=True)
_UNKNOWN_TO_CONVERTER = Splitting((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

SPLITTINGS: Mapping[str, Splitting] = {
    "default": _UNKNOWN_TO_CONVERTER,
    "gpt-2": _PLAIN,
    "phi-2": _PLAIN,
    "olmo": _PLAIN,
    "mpt": _PLAIN,
    "jais": _PLAIN,
    "trillion": _PLAIN,
    "smollm": _DIGITS_APART,
    "starcoder": _DIGITS_APART,
    "refact": _DIGITS_APART,
    "command-r": _DIGITS_APART,
    "codeshell": _DIGITS_APART,
    "exaone": _DIGITS_APART,
    "minerva-7b": _DIGITS_APART,
    "llama-bpe": _LLAMA3_BOS,
    "llama3": _LLAMA3_BOS,
    "llama-v3": _LLAMA3_BOS,
    "falcon3": _LLAMA3_BOS,
    "pixtral": _LLAMA3_BOS,
    "lfm2": _LLAMA3_BOS,
    "smaug-bpe": Splitting((_LLAMA3,)),
    "dbrx": Splitting((_LLAMA3,)),
    "qwen2": _QWEN,
    "stablelm2": Splitting((_QWEN2,)),
    "deepseek-r1-qwen": Splitting((_QWEN2,)),
    "megrez": Splitting((_QWEN2,)),
    "deepseek-coder": Splitting((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", _DIGIT)),
    "tekken": Splitting((_TEKKEN,), adds_bos=True, whole_words=True),
    "gpt-4o": Splitting((_GPT4O,)),
    "llama4": Splitting((_GPT4O,)),
}
"""Name -> splitting. A new one is a line here."""
