"""The token ids that random prompts are made of."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from compute_loop.models.files import locate_model
from srt.core.errors import ConfigError
from srt.core.messages import Int32Array
from srt.server.tokenizer import Tokenizer

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Every ordinary token of a model. `ids` is sorted (int32, at least one)."""

    ids: Int32Array

    @classmethod
    def of(cls, size: int, special_ids: Collection[int]) -> Vocabulary:
        """The ids below `size` that are not special.

        Raises:
            ConfigError: there is none.
        """
        ordinary = np.setdiff1d(np.arange(size, dtype=np.int32), np.array(sorted(special_ids), np.int32))
        if not len(ordinary):
            raise ConfigError(f"all {size} ids of the vocabulary are special tokens: no prompt can be made")
        return cls(ordinary)

    @classmethod
    def of_model(cls, model: str, revision: str | None, engine_size: int) -> Vocabulary:
        """The vocabulary of a model on this machine, as far as an engine takes it.

        Raises:
            ModelError: the model cannot be found, or its tokenizer is broken.
        """
        tokenizer = Tokenizer.load(locate_model(model, revision))
        return cls.of(min(engine_size, tokenizer.vocab_size), tokenizer.table.special_ids)

    def draw(self, rng: np.random.Generator, length: int) -> TokenIds:
        """`length` ids, each uniform over the vocabulary."""
        return tuple(self.ids[rng.integers(len(self.ids), size=length)].tolist())

    def __repr__(self) -> str:
        return f"Vocabulary({len(self.ids)} ids, {self.ids[0]} to {self.ids[-1]})"
