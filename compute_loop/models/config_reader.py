"""Typed reads from the key-value part of a model file (config.json, GGUF metadata)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from srt.core.errors import ModelError


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """Keys of one file. Every read that fails is a `ModelError` with the file, the key and what was expected.

    A key whose value is null counts as absent: model files use both for "not set".
    """

    path: Path
    values: Mapping[str, object]

    def error(self, key: str, expected: str) -> ModelError:
        """The error for a key that is missing or holds something unusable."""
        value = self.values.get(key)
        found = "is missing" if value is None else f"is {value!r}"
        return ModelError(f"{self.path}: key {key!r} {found}, expected {expected}")

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, *, low: int = 1) -> int:
        """An int >= `low`; `default` where the key is absent, an error where there is no default."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise self.error(key, f"an integer of at least {low}")
        return value

    def optional_integer(self, key: str, *, low: int = 1) -> int | None:
        return self.integer(key, low=low) if self.has(key) else None

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number > 0; `default` where the key is absent, an error where there is no default."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(key, "a number")
        if not (math.isfinite(value) and value > 0):
            raise self.error(key, "a finite number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.error(key, "a string")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id or a list of ids; empty where the key is absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        ids = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
            raise self.error(key, "a token id or a list of token ids")
        return tuple(ids)

    def section(self, key: str) -> ConfigReader:
        """A nested object, empty where the key is absent. Its errors name the nested key alone."""
        value = self.values.get(key)
        if value is None:
            return ConfigReader(self.path, {})
        if not isinstance(value, dict):
            raise self.error(key, "an object")
        return ConfigReader(self.path, {f"{name}": item for name, item in value.items()})
