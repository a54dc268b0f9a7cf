"""What is asked in a bench: seeded workloads over token ids, so that every length is exact.

A workload is a frozen dataclass whose fields are command-line options: integers of at least 1, or switches. A new one
is a class and a line in `WORKLOADS`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from bench.vocabulary import TokenIds, Vocabulary
from srt.core.errors import ConfigError
from srt.core.option import flag, option


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation: `input_ids` go behind all earlier turns and their answers."""

    input_ids: TokenIds
    output_len: int


Conversation = tuple[Turn, ...]

INPUT_LEN = "prompt tokens of a request, behind those that it shares or that were said before"
OUTPUT_LEN = "answer tokens of a request"
PREFIX_LEN = "tokens that the prompts of a group, or all conversations, begin with"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run asks. `prefix_warmers` are asked before the clock starts, and what they leave in the cache stays."""

    conversations: tuple[Conversation, ...]
    prefix_warmers: tuple[Conversation, ...] = ()


class Workload(Protocol):
    """A kind of traffic with its sizes: a dataclass of integers and switches."""

    @property
    def num_requests(self) -> int:
        """How many requests a plan has, without those that warm prefixes."""

    def plan(self, vocabulary: Vocabulary, rng: np.random.Generator) -> Plan:
        """The requests: a function of the workload, the vocabulary and the state of `rng` alone."""


@dataclass(frozen=True, slots=True)
class RandomWorkload:
    """Prompts that share nothing."""

    num_prompts: int = option(64, "requests")
    input_len: int = option(256, INPUT_LEN, unit="tokens")
    output_len: int = option(64, OUTPUT_LEN, unit="tokens")

    @property
    def num_requests(self) -> int:
        return self.num_prompts

    def plan(self, vocabulary: Vocabulary, rng: np.random.Generator) -> Plan:
        prompts = [vocabulary.draw(rng, self.input_len) for _ in range(self.num_prompts)]
        return Plan(tuple((Turn(prompt, self.output_len),) for prompt in prompts))


@dataclass(frozen=True, slots=True)
class SharedPrefixWorkload:
    """Groups of prompts, shuffled; those of a group begin with the same tokens."""

    num_groups: int = option(8, "groups of requests")
    prompts_per_group: int = option(8, "requests of a group")
    prefix_len: int = option(512, PREFIX_LEN, unit="tokens")
    input_len: int = option(32, INPUT_LEN, unit="tokens")
    output_len: int = option(32, OUTPUT_LEN, unit="tokens")
    warm_prefix: bool = option(False, "ask once with each prefix before the clock starts")

    @property
    def num_requests(self) -> int:
        return self.num_groups * self.prompts_per_group

    def plan(self, vocabulary: Vocabulary, rng: np.random.Generator) -> Plan:
        prefixes = [vocabulary.draw(rng, self.prefix_len) for _ in range(self.num_groups)]
        asked = [
            self._ask(prefix, vocabulary, rng) for prefix in prefixes for _ in range(self.prompts_per_group)
        ]
        shuffled = tuple(asked[index] for index in rng.permutation(len(asked)))
        warmers = [self._ask(prefix, vocabulary, rng) for prefix in prefixes if self.warm_prefix]
        return Plan(shuffled, tuple(warmers))

    def _ask(self, prefix: TokenIds, vocabulary: Vocabulary, rng: np.random.Generator) -> Conversation:
        return (Turn(prefix + vocabulary.draw(rng, self.input_len), self.output_len),)


@dataclass(frozen=True, slots=True)
class MultiTurnWorkload:
    """Conversations under one system prompt: each request has all earlier turns and answers before its own."""

    num_conversations: int = option(16, "conversations; --max-concurrency counts these")
    num_turns: int = option(4, "requests of a conversation, one after the other")
    prefix_len: int = option(128, PREFIX_LEN, unit="tokens")
    input_len: int = option(64, INPUT_LEN, unit="tokens")
    output_len: int = option(32, OUTPUT_LEN, unit="tokens")

    @property
    def num_requests(self) -> int:
        return self.num_conversations * self.num_turns

    def plan(self, vocabulary: Vocabulary, rng: np.random.Generator) -> Plan:
        system = vocabulary.draw(rng, self.prefix_len)
        return Plan(tuple(self._talk(system, vocabulary, rng) for _ in range(self.num_conversations)))

    def _talk(self, system: TokenIds, vocabulary: Vocabulary, rng: np.random.Generator) -> Conversation:
        new = [vocabulary.draw(rng, self.input_len) for _ in range(self.num_turns)]
        new[0] = system + new[0]
        return tuple(Turn(input_ids, self.output_len) for input_ids in new)


WORKLOADS: dict[str, type[Any]] = {
    "random": RandomWorkload,
    "shared-prefix": SharedPrefixWorkload,
    "multi-turn": MultiTurnWorkload,
}
"""Name of a dataset -> its `Workload`."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A workload with a name, so that the figures of two engines or of two days can be compared."""

    dataset: str
    workload: Workload
    max_concurrency: int


PRESETS = {
    "single-stream": Preset("random", RandomWorkload(num_prompts=4, input_len=128, output_len=128), 1),
    "prefix-groups": Preset("shared-prefix", SharedPrefixWorkload(), 16),
    "random-batch": Preset("random", RandomWorkload(), 16),
    "long-prefix": Preset(
        "shared-prefix",
        SharedPrefixWorkload(
            num_groups=1, prompts_per_group=32, prefix_len=1800, input_len=20, output_len=16, warm_prefix=True
        ),
        8,
    ),
}

QUICK_SIZES = {
    "num_prompts": 8,
    "num_groups": 2,
    "prompts_per_group": 4,
    "num_conversations": 4,
    "num_turns": 2,
    "prefix_len": 64,
    "input_len": 32,
    "output_len": 8,
}
"""Option -> its largest value in a run that is over within seconds."""


def sizes_of(workload: Workload) -> dict[str, int]:
    """Option -> value; a switch is 0 or 1."""
    return {name: getattr(workload, name) for name in option_names(type(workload))}


def option_names(kind: type[Any]) -> list[str]:
    return [choice.name for choice in fields(kind)]


def quick(workload: Workload) -> Workload:
    """The same kind of traffic, over within seconds."""
    sizes = sizes_of(workload)
    smaller = {name: min(value, QUICK_SIZES[name]) for name, value in sizes.items() if name in QUICK_SIZES}
    # The protocol does not say that a workload is a dataclass, because no type can.
    made: Workload = replace(workload, **smaller)  # type: ignore[type-var]
    return made


def check_sizes(workload: Workload) -> None:
    """Raises:
    ConfigError: names the option, its value and the limit.
    """
    for name, value in sizes_of(workload).items():
        if not isinstance(value, bool) and value < 1:
            raise ConfigError(f"{flag(name)} is {value}, it must be at least 1")


def generator(seed: int, purpose: str) -> np.random.Generator:
    """Random numbers for one purpose of a run: two purposes share none, whatever the seed (0 or more)."""
    return np.random.default_rng([seed, *purpose.encode()])
