"""How a request stands among others: whose prefixes it shares, and how urgent it is."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31 - 1


@dataclass(frozen=True, slots=True)
class Placement:
    """`namespace`: prefixes are shared only within one (None: the common one). `priority`: higher goes first."""

    namespace: str | None = None
    priority: int = 0

    @classmethod
    def of(cls, extra_key: str | None, cache_salt: str | None, priority: int | None) -> Placement:
        """From what a client sent. Different pairs of `extra_key` and `cache_salt` never share a namespace."""
        namespace = None
        if extra_key is not None or cache_salt is not None:
            namespace = orjson.dumps([extra_key, cache_salt]).decode()
        return cls(namespace, priority or 0)


def namespace_label(namespace: str) -> str:
    """What a person calls a namespace: its `extra_key`; of a `cache_salt`, which is a secret, only that it is there."""
    try:
        extra_key, cache_salt = orjson.loads(namespace)
    except ValueError:
        return namespace
    words = [*([] if extra_key is None else [extra_key]), *([] if cache_salt is None else ["salted"])]
    return " + ".join(map(str, words))


COMMON = Placement()
"""Of a request that says nothing about it."""
