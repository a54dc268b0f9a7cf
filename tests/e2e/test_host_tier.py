"""A prompt that the KV pool had no room for comes back from host memory: --host-cache-gb."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.e2e.server_process import ServerProcess
from tests.e2e.test_cache_dir import random_ids

pytestmark = pytest.mark.e2e

Start = Callable[..., ServerProcess]


def test_a_prompt_that_was_evicted_is_answered_from_host_memory(start: Start) -> None:
    server = start("--page-size", "1", "--max-total-tokens", "800", "--host-cache-gb", "0.5").wait_ready()
    rng = random.Random(78)
    prompt = random_ids(rng, 300)
    cold = server.gen(prompt, max_new_tokens=4)
    for _ in range(4):
        server.gen(random_ids(rng, 300), max_new_tokens=2)
    assert server.stats()["num_host_tokens"] >= 300
    warm = server.gen(prompt, max_new_tokens=4)
    assert warm["meta_info"]["cached_tokens"] == 299
    assert warm["output_ids"] == cold["output_ids"]
    assert server.stats()["host_hit_tokens_total"] >= 299
    server.assert_alive_and_drained()
