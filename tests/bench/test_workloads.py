"""Workloads: the same seed asks the same, every length is exact, and what is to be shared is shared."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from bench.vocabulary import Vocabulary
from bench.workloads import (
    PRESETS,
    QUICK_SIZES,
    WORKLOADS,
    MultiTurnWorkload,
    Plan,
    RandomWorkload,
    SharedPrefixWorkload,
    Turn,
    Workload,
    check_sizes,
    generator,
    quick,
    sizes_of,
)
from srt.core.errors import ConfigError

SPECIAL = frozenset({0, 1, 2, 63})
VOCABULARY = Vocabulary.of(64, SPECIAL)

SMALL: dict[str, Workload] = {
    "random": RandomWorkload(num_prompts=5, input_len=7, output_len=3),
    "shared-prefix": SharedPrefixWorkload(
        num_groups=3, prompts_per_group=4, prefix_len=10, input_len=6, output_len=2, warm_prefix=True
    ),
    "multi-turn": MultiTurnWorkload(
        num_conversations=3, num_turns=3, prefix_len=4, input_len=5, output_len=2
    ),
}


def plan(workload: Workload, seed: int = 7, purpose: str = "measured") -> Plan:
    return workload.plan(VOCABULARY, generator(seed, purpose))


def turns(made: Plan) -> list[Turn]:
    return [turn for conversation in made.conversations for turn in conversation]


def test_a_vocabulary_is_all_but_the_special_ids() -> None:
    assert set(VOCABULARY.ids.tolist()) == set(range(64)) - SPECIAL
    drawn = VOCABULARY.draw(generator(3, "test"), 4000)
    assert set(drawn) == set(VOCABULARY.ids.tolist())


def test_a_vocabulary_of_special_ids_only_is_refused() -> None:
    with pytest.raises(ConfigError, match="all 3 ids"):
        Vocabulary.of(3, {0, 1, 2})


def test_draws_are_uniform() -> None:
    counts = np.bincount(VOCABULARY.draw(generator(11, "test"), 60_000), minlength=64)[VOCABULARY.ids]
    # 1,000 are expected of each id: five standard deviations are 157.
    assert counts.min() > 843
    assert counts.max() < 1157


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_plan_is_a_function_of_seed_and_purpose(name: str) -> None:
    workload = SMALL[name]
    assert plan(workload) == plan(workload)
    assert plan(workload) != plan(workload, seed=8)
    assert plan(workload) != plan(workload, purpose="warm-up")


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_plan_has_as_many_requests_as_its_workload_says(name: str) -> None:
    made = plan(SMALL[name])
    assert len(turns(made)) == SMALL[name].num_requests
    assert not SPECIAL & {token for turn in turns(made) for token in turn.input_ids}


def test_random_prompts_have_their_lengths() -> None:
    assert [(len(turn.input_ids), turn.output_len) for turn in turns(plan(SMALL["random"]))] == [(7, 3)] * 5
    assert all(len(conversation) == 1 for conversation in plan(SMALL["random"]).conversations)


def test_prompts_of_a_group_share_their_prefix_and_are_shuffled() -> None:
    made = plan(SMALL["shared-prefix"])
    prefixes = [turn.input_ids[:10] for turn in turns(made)]
    assert sorted(map(prefixes.count, set(prefixes))) == [4, 4, 4]
    assert prefixes != sorted(prefixes, key=prefixes.index), "the groups come one after the other"
    own = {turn.input_ids[10:] for turn in turns(made)}
    assert len(own) == 12
    assert {len(ids) for ids in own} == {6}


def test_warmers_have_every_prefix_once_and_own_tokens_of_nobody_else() -> None:
    made = plan(SMALL["shared-prefix"])
    warmers = [turn for conversation in made.prefix_warmers for turn in conversation]
    assert len(warmers) == 3
    assert {turn.input_ids[:10] for turn in warmers} == {turn.input_ids[:10] for turn in turns(made)}
    assert not {turn.input_ids for turn in warmers} & {turn.input_ids for turn in turns(made)}
    assert plan(SharedPrefixWorkload()).prefix_warmers == ()


def test_conversations_share_only_the_system_prompt() -> None:
    made = plan(SMALL["multi-turn"])
    assert [list(map(len, (turn.input_ids for turn in talk))) for talk in made.conversations] == [
        [9, 5, 5]
    ] * 3
    assert len({talk[0].input_ids[:4] for talk in made.conversations}) == 1
    assert len({talk[0].input_ids[4:] for talk in made.conversations}) == 3


@pytest.mark.parametrize("workload", [preset.workload for preset in PRESETS.values()], ids=PRESETS)
def test_quick_only_makes_smaller(workload: Any) -> None:
    small = quick(workload)
    assert type(small) is type(workload)
    before, after = sizes_of(workload), sizes_of(small)
    assert before.keys() == after.keys()
    assert all(after[name] <= before[name] for name in before)
    assert small.num_requests <= 8
    assert sum(len(turn.input_ids) + turn.output_len for turn in turns(plan(small))) < 1000


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_size_has_a_help_text_and_a_quick_value(name: str) -> None:
    for size in fields(WORKLOADS[name]):
        assert len(size.metadata["help"].split()) > 1 or size.metadata["help"] == "requests"
        assert isinstance(size.default, bool) or size.name in QUICK_SIZES


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_size_must_be_positive(name: str) -> None:
    for size in fields(WORKLOADS[name]):
        if not isinstance(size.default, bool):
            with pytest.raises(ConfigError, match=rf"--{size.name.replace('_', '-')} is 0.* at least 1"):
                check_sizes(WORKLOADS[name](**{size.name: 0}))
    check_sizes(WORKLOADS[name]())


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_of_its_dataset(name: str) -> None:
    assert isinstance(PRESETS[name].workload, WORKLOADS[PRESETS[name].dataset])
