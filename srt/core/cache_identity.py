"""Whose KV it is: what must be equal before saved pages may be read again."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class CacheIdentity:
    """All that the bytes of a KV page depend on, beside its tokens.

    `weights` is a digest of the model's files: two models with the same shapes share no page. `program` is the version
    of this software: the next one may compute keys and values another way.
    """

    program: str
    model: str
    weights: str
    dtype: str
    layout: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    page_bytes: int
    byte_order: str

    def differences(self, saved: CacheIdentity) -> list[str]:
        """What differs, in words; `model` is only a name for people, the weights count."""
        return [
            f"{field.name} is {getattr(saved, field.name)} in the file and {getattr(self, field.name)} here"
            for field in fields(self)
            if field.name != "model" and getattr(saved, field.name) != getattr(self, field.name)
        ]
