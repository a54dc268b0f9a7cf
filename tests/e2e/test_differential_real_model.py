"""The differential test on the default model: any schedule gives the tokens of a dense recompute.

Sums in another order round differently, so two tokens whose logits are closer than `TIE` are both right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from compute_loop.attention.torch_backend import TorchAttention
from compute_loop.models.config import load_model_config
from compute_loop.models.files import DEFAULT_MODEL, locate_model
from compute_loop.models.registry import build_program
from compute_loop.models.weights import load_weights
from compute_loop.runner.eager import EagerRunner
from compute_loop.runner.executor import ProgramExecutor
from mem_pool.kv_format import KVFormat
from mem_pool.kv_pool import KVPool
from srt.server.tokenizer import Tokenizer
from tests.oracle import DenseOracle
from tests.rig import Answer, Rig

TIE = 1e-3
NUM_REQUESTS, MAX_RUNNING, CONTEXT, POOL_TOKENS = 60, 8, 128, 96

TOPICS = ("the sea", "a bicycle", "prime numbers", "an old map")
OPENINGS = (
    "Write one short sentence about {}.",
    "You are a patient teacher. Explain to a child, in simple words and without numbers, what is special about {}.",
    "List three facts about {}:\n1.",
)


class Bench:
    """The default model's weights, and rigs over them."""

    def __init__(self) -> None:
        files = locate_model(DEFAULT_MODEL)
        self.config = load_model_config(files)
        self.program = build_program(self.config)
        self.weights = load_weights(files, self.config, torch.float32, progress=False)
        self.tokenizer = Tokenizer.load(files)

    def rig(self, *, page_size: int = 16, pool_tokens: int = POOL_TOKENS, **options: Any) -> Rig:
        config, num_pages = self.config, pool_tokens // page_size
        pool = KVPool(
            num_pages,
            page_size,
            config.num_layers,
            config.num_kv_heads,
            config.head_dim,
            KVFormat(torch.float32),
            torch.device("cpu"),
        )
        executor = ProgramExecutor(
            self.program, dict(self.weights), pool, TorchAttention(pool, self.program.heads)
        )
        return Rig(
            num_pages=num_pages,
            page_size=page_size,
            chunk=options.pop("chunk", 32),
            max_running=MAX_RUNNING,
            context=CONTEXT,
            vocab=config.vocab_size,
            eos=config.eos_token_ids[0],
            runner=EagerRunner(executor, MAX_RUNNING + 1, -(-CONTEXT // page_size)),
            **options,
        )

    def prompts(self, seed: int) -> list[tuple[list[int], int]]:
        """(ids, max_new_tokens) of 60 requests of mixed length over few prefixes."""
        rng = random.Random(seed)
        requests = []
        for _ in range(NUM_REQUESTS):
            text = rng.choice(OPENINGS).format(rng.choice(TOPICS))
            requests.append((self.tokenizer.encode(text).tolist(), rng.choice([1, 8, 30, 30])))
        return requests


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


def staggered(rig: Rig, requests: list[tuple[list[int], int]], seed: int, abort_share: float) -> list[Answer]:
    rng = random.Random(seed)
    answers = []
    for ids, max_new in requests:
        answers.append(rig.submit(ids, max_new, ignore_eos=True))
        for _ in range(rng.randrange(3)):
            rig.both()
        if rng.random() < abort_share:
            rig.abort(rng.choice(answers))
    rig.run()
    rig.check_drained()
    return answers


class Judge:
    """Whether an answer is greedy, by one dense pass over all of it; asked once for each distinct answer."""

    def __init__(self, bench: Bench) -> None:
        self._oracle = DenseOracle(bench.config, bench.weights)
        self._verdicts: dict[tuple[int, ...], bool] = {}

    def accepts(self, answer: Answer) -> bool:
        prompt, output = answer.request.token_ids.tolist(), answer.token_ids
        whole = (*prompt, -1, *output)
        if whole not in self._verdicts:
            logits = self._oracle.logits([*prompt, *output[:-1]])[len(prompt) - 1 :]
            chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
            self._verdicts[whole] = bool((chosen >= logits.amax(1) - TIE).all())
        return self._verdicts[whole]


@pytest.fixture(scope="module")
def judge(bench: Bench) -> Judge:
    return Judge(bench)


def evicts(rig: Rig) -> bool:
    return rig.stats().evicted_tokens_total > 0


VARIANTS: dict[str, tuple[dict[str, Any], Callable[[Rig], bool]]] = {
    "page 16": ({"page_size": 16}, evicts),
    "page 1": ({"page_size": 1}, evicts),
    "no cache": ({"page_size": 16, "radix_cache": False}, lambda rig: rig.stats().cached_tokens_total == 0),
}


@pytest.mark.parametrize("variant", ["page 16", "page 1", pytest.param("no cache", marks=pytest.mark.long)])
def test_corner_25_any_schedule_gives_the_tokens_of_a_dense_recompute(
    bench: Bench, judge: Judge, variant: str
) -> None:
    options, happened = VARIANTS[variant]
    rig = bench.rig(**options)
    for answer in staggered(rig, bench.prompts(1), seed=7, abort_share=0.1):
        assert answer.finish is not None
        assert not answer.token_ids or judge.accepts(answer), answer
        wanted = answer.request.params.max_new_tokens
        assert answer.finish.kind != "length" or len(answer.token_ids) == wanted
    stats = rig.stats()
    assert stats.retracted_total > 0 and stats.aborted_total > 0
    assert stats.prefill_chunks_total > NUM_REQUESTS - stats.aborted_total, "some prompts came in chunks"
    assert happened(rig)
