"""What requests share is computed once, and reported."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow

SEED = 21


def random_ids(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(1000, 40000) for _ in range(length)]


@pytest.fixture(scope="module")
def token_pages() -> Iterator[ServerProcess]:
    """Page size 1, chunks of 64 tokens."""
    server = ServerProcess("--max-total-tokens", "4096", "--page-size", "1", "--chunked-prefill-size", "64")
    try:
        yield server.wait_ready()
        server.assert_alive_and_drained()
    finally:
        server.close()


def test_a_repeated_prompt_of_1000_tokens_is_cached_but_for_its_end(
    server: ServerProcess, token_pages: ServerProcess
) -> None:
    prompt = random_ids(random.Random(SEED), 1000)
    for serving, cached in ((server, 992), (token_pages, 999)):
        cold = serving.gen(prompt, max_new_tokens=4)
        warm = serving.gen(prompt, max_new_tokens=4)
        assert cold["meta_info"]["cached_tokens"] == 0
        assert warm["meta_info"]["cached_tokens"] == cached
        assert warm["output_ids"] == cold["output_ids"]


def test_b01_b10_prompts_around_a_page_are_answered_alike_cold_and_warm(
    server: ServerProcess, token_pages: ServerProcess
) -> None:
    rng = random.Random(SEED)
    for serving, page in ((server, 16), (token_pages, 1)):
        for length in (1, 15, 16, 17, 31, 33):
            prompt = random_ids(rng, length)
            cold, warm = (serving.gen(prompt, max_new_tokens=2) for _ in range(2))
            assert cold["output_ids"] == warm["output_ids"], (SEED, length)
            assert warm["meta_info"]["cached_tokens"] == (length - 1) // page * page, (SEED, length)


@pytest.mark.parametrize(("name", "page"), [("token_pages", 1), ("server", 16)])
def test_eight_requests_that_arrive_together_compute_their_prefix_once(
    name: str, page: int, request: pytest.FixtureRequest
) -> None:
    """With chunks of 64 tokens, and of 2,048."""
    serving: ServerProcess = request.getfixturevalue(name)
    rng = random.Random(SEED)
    prefix = random_ids(rng, 500)
    # The first token behind the prefix differs, so that nothing more is shared.
    prompts = [[*prefix, 500 + index, *random_ids(rng, 19)] for index in range(8)]
    assert serving.http.post("/flush_cache").status_code == 200
    before = serving.stats()["computed_tokens_total"]
    body = {"input_ids": prompts, "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
    answers = serving.http.post("/generate", json=body).json()
    computed = serving.stats()["computed_tokens_total"] - before
    shared = 500 // page * page
    assert computed == shared + 8 * (520 - shared), SEED
    assert sorted(answer["meta_info"]["cached_tokens"] for answer in answers) == [0] + [shared] * 7


def test_namespaces_share_nothing(server: ServerProcess) -> None:
    prompt = random_ids(random.Random(SEED + 1), 40)
    body = {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
    cached = [
        server.http.post("/generate", json={**body, "extra_key": key}).json()["meta_info"]["cached_tokens"]
        for key in ("a", "a", "b", None)
    ]
    assert cached == [0, 32, 0, 0]


def test_b18_b19_requests_that_outgrow_the_pool_finish_as_with_room(
    small_server: ServerProcess, server: ServerProcess
) -> None:
    rng = random.Random(SEED + 2)
    # Both are admitted: this server reserves the next 32 tokens alone, 7 pages each. Both grow to 10 of its 16.
    prompts = [random_ids(rng, 70) for _ in range(2)]
    body = {
        "input_ids": prompts,
        "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": 80},
    }
    expected = [answer["output_ids"] for answer in server.http.post("/generate", json=body).json()]
    before = small_server.stats()["retracted_total"]
    answers = small_server.http.post("/generate", json=body).json()
    assert [answer["output_ids"] for answer in answers] == expected, SEED
    assert small_server.stats()["retracted_total"] > before, "this test is about a pool that is too small"
