"""Small tokenizers of every kind, trained on the spot, as `tokenizers` objects, directories and GGUF metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from compute_loop.models.files import ModelFiles
from tests.server.text_corpus import SENTENCES

DATA = Path(__file__).parent / "data"
SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = "<tool_call>"

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _corpus() -> Iterator[str]:
    for _ in range(3):
        yield from SENTENCES


def _finish(backend: Tokenizer) -> Tokenizer:
    backend.add_tokens([AddedToken(USER_DEFINED, normalized=False)])
    return backend


def with_bos(backend: Tokenizer) -> Tokenizer:
    """The same tokenizer, putting ``<s>`` before every text."""
    bos_id = backend.token_to_id("<s>")
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos_id)])
    return backend


def byte_level(*patterns: str, vocab_size: int = 600, ignore_merges: bool = False) -> Tokenizer:
    """Byte-level BPE; without patterns split as GPT-2 does."""
    backend = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not patterns)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_corpus(), trainer)
    return _finish(backend)


def metaspace() -> Tokenizer:
    """BPE whose first word alone gets a blank before it (newer conversions of SentencePiece models)."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=list(SPECIAL), show_progress=False)
    backend.train_from_iterator(_corpus(), trainer)
    return _finish(backend)


def unigram() -> Tokenizer:
    """A unigram model behind Metaspace (T5, XGLM)."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=list(SPECIAL), unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(_corpus(), trainer)
    return _finish(backend)


def word_piece() -> Tokenizer:
    """WordPiece with the spacing rules of its decoder (BERT)."""
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=list(SPECIAL), show_progress=False)
    backend.train_from_iterator(_corpus(), trainer)
    return _finish(backend)


def sentencepiece() -> Tokenizer:
    """The recorded SentencePiece model, put together as the tokenizer.json of Llama 2 and Mistral is."""
    recorded = read_recorded()
    ids = {piece: index for index, piece in enumerate(recorded["pieces"])}
    normal = {piece for piece, kind in zip(recorded["pieces"], recorded["types"], strict=True) if kind == 1}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(normal, key=lambda piece: (-recorded["scores"][ids[piece]], ids[piece]))
        for cut in range(1, len(piece))
        if piece[:cut] in normal and piece[cut:] in normal
    ]
    backend = Tokenizer(
        models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return with_bos(_finish(backend))


KINDS: Mapping[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "sentencepiece": sentencepiece,
    "metaspace": metaspace,
    "unigram": unigram,
    "word_piece": word_piece,
}


def read_recorded() -> dict[str, Any]:
    """What SentencePiece itself said about a small model of its own."""
    recorded: dict[str, Any] = json.loads((DATA / "sentencepiece_bpe.json").read_text(encoding="utf-8"))
    return recorded


def save_directory(backend: Tokenizer, root: Path, **config: object) -> ModelFiles:
    """Writes what a model directory has of a tokenizer; `config` overrides keys of tokenizer_config.json."""
    backend.save(str(root / "tokenizer.json"))
    whole = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHATML,
        **config,
    }
    (root / "tokenizer_config.json").write_text(json.dumps(whole), encoding="utf-8")
    return ModelFiles("tiny", root, "safetensors", ())


def gguf_metadata(backend: Tokenizer, **keys: object) -> dict[str, object]:
    """A byte-level tokenizer as the metadata of a GGUF file."""
    state = json.loads(backend.to_str())
    tokens = [backend.id_to_token(index) for index in range(backend.get_vocab_size())]
    types = [1] * len(tokens)
    for token in state["added_tokens"]:
        types[token["id"]] = 3 if token["special"] else 4
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in state["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("</s>"),
        "tokenizer.chat_template": CHATML,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def sentencepiece_metadata(**keys: object) -> dict[str, object]:
    """The recorded SentencePiece model as the metadata of a GGUF file: scores, no merges."""
    recorded = read_recorded()
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": recorded["pieces"],
        "tokenizer.ggml.scores": recorded["scores"],
        "tokenizer.ggml.token_type": recorded["types"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }
