"""Seeded random workloads for the two loops, and what happened in them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from compute_loop.forward_batch import ForwardBatch
from tests.rig import Answer, Rig


@dataclass(frozen=True)
class Traffic:
    """A workload: prompts over few prefixes, arrivals and aborts spread over the run."""

    num_requests: int = 20
    max_prompt: int = 40
    max_new: int = 24
    abort_share: float = 0.15
    random_share: float = 0.3
    num_families: int = 3
    patience: float = 0.2
    """Share of the requests that ignore EOS."""


def random_prompt(rng: random.Random, traffic: Traffic, vocab: int) -> list[int]:
    """Requests of one family share a prefix of random length."""
    family = random.Random(rng.randrange(traffic.num_families))
    base = [family.randrange(1, vocab) for _ in range(traffic.max_prompt)]
    shared = rng.randrange(0, traffic.max_prompt)
    own = [rng.randrange(1, vocab) for _ in range(rng.randrange(1, 8))]
    return (base[:shared] + own)[: traffic.max_prompt]


def play(rig: Rig, rng: random.Random, traffic: Traffic) -> None:
    """Sends the workload in random pieces between random steps, until everything has ended."""
    live: list[Answer] = []
    for _ in range(traffic.num_requests):
        params: dict[str, Any] = {}
        if rng.random() < traffic.random_share:
            params = {"temperature": 1.0, "seed": rng.randrange(1000)}
        if rng.random() < traffic.patience:
            params["ignore_eos"] = True
        if rng.random() < 0.2:
            params["stop_token_ids"] = (rng.randrange(rig.vocab),)
        namespace = "other" if rng.random() < 0.1 else None
        new_tokens = rng.choice([rng.randrange(3), rng.randrange(traffic.max_new + 1), traffic.max_new])
        prompt = random_prompt(rng, traffic, rig.vocab)
        live.append(rig.submit(prompt, new_tokens, namespace, rng.randrange(3), **params))
        for _ in range(rng.randrange(12)):
            (rig.control if rng.random() < 0.5 else rig.compute).step()
        rig.read()
        if rng.random() < traffic.abort_share:
            victim = rng.choice(live)
            rig.abort(victim, len(victim.token_ids) if rng.random() < 0.5 else None)
    rig.run(rng)


class Poison:
    """Fails each step that a poisoned prompt (it begins with `token`) is in, and each n-th step besides."""

    def __init__(self, token: int | None = None, every: int = 0) -> None:
        self.token = token
        self.every = every
        self.num_failures = 0
        self._poisoned: set[tuple[int, int]] = set()

    def __call__(self, batch: ForwardBatch) -> None:
        offsets = [0, *batch.num_new_tokens[: batch.num_chunks].cumsum().tolist()]
        rows = list(zip(batch.slots.tolist(), batch.generations.tolist(), strict=True))
        for index in range(batch.num_chunks):
            if batch.starts[index] == 0 and batch.chunk_ids[offsets[index]] == self.token:
                self._poisoned.add(rows[index])
        bad = self._poisoned.intersection(rows)
        if bad or (self.every and batch.step % self.every == 0):
            self.num_failures += 1
            raise FloatingPointError(f"injected into step {batch.step}")
