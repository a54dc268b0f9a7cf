"""What a tokenizer's files say, in one shape whatever the format of the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from srt.core.errors import ModelError

DEFAULT_TEMPLATE = "default"
"""Name of the chat template that is used unless another one fits better."""


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """A tokenizer as loaded.

    Attributes:
        source: file or directory, for messages.
        backend: the configured tokenizer; its post-processor adds BOS and EOS as the model wants them.
        bos_id: beginning of sequence, None where the model has none.
        eos_ids: every token that ends a generation.
        special_tokens: name ("bos_token", "eos_token", ...) -> text, for chat templates.
        chat_templates: name -> Jinja source; empty where the model has none.
    """

    source: str
    backend: Backend
    bos_id: int | None
    eos_ids: frozenset[int]
    special_tokens: Mapping[str, str]
    chat_templates: Mapping[str, str]


def set_affixes(backend: Backend, bos_id: int | None, eos_id: int | None) -> None:
    """Makes encoding with special tokens put `bos_id` before the text and `eos_id` behind it, where not None."""
    affixes = {
        name: token_id for name, token_id in (("BOS", bos_id), ("EOS", eos_id)) if token_id is not None
    }
    single = [name for name in ("BOS", "$A", "EOS") if name == "$A" or name in affixes]
    backend.post_processor = processors.TemplateProcessing(
        single=single,
        pair=[*single, "$B"],
        # Aliases, because a template splits on ":" and on spaces, which a token's own text may hold.
        special_tokens=[
            {"id": name, "ids": [token_id], "tokens": [backend.id_to_token(token_id)]}
            for name, token_id in affixes.items()
        ],
    )


def add_tokens(backend: Backend, tokens: Mapping[int, AddedToken], source: str) -> None:
    """Registers added tokens, so that they are matched whole in a text.

    Args:
        tokens: id -> token. The backend gives out ids on its own, in order, so a gap shows as an error here.

    Raises:
        ModelError: a token would get another id.
    """
    for token_id, token in sorted(tokens.items()):
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
        got = backend.token_to_id(token.content)
        if got != token_id:
            raise ModelError(
                f"{source}: added token {token.content!r} should have id {token_id}, the vocabulary gives it {got}"
            )
