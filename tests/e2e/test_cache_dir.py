"""A server that is started again knows what it knew: --cache-dir."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess, body_of

pytestmark = pytest.mark.slow

Start = Callable[..., ServerProcess]
SEED = 77
FILE = "prefix_cache.kv"


def random_ids(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(1000, 40000) for _ in range(length)]


def test_a_restarted_server_answers_a_known_prompt_of_1000_tokens_from_the_saved_cache(
    start: Start, tmp_path: Path
) -> None:
    """Saved under a running stream and killed; then ended in order; then with a damaged file."""
    options = ("--page-size", "1", "--max-total-tokens", "4096", "--cache-dir", str(tmp_path / "cache"))
    file = tmp_path / "cache" / FILE
    rng = random.Random(SEED)
    first_prompt, second_prompt = random_ids(rng, 1000), random_ids(rng, 1000)

    server = start(*options).wait_ready()
    cold = server.gen(first_prompt, max_new_tokens=4)
    alone = server.gen("Once upon a time", max_new_tokens=40)["output_ids"]
    with server.stream("/generate", body_of("Once upon a time", max_new_tokens=40)) as events:
        next(events)
        saved = server.http.post("/save_cache")
        *_, last, _ = events
    assert saved.status_code == 200, saved.text
    assert saved.json()["saved_tokens"] >= 1000
    assert saved.json()["file_bytes"] == file.stat().st_size
    assert last["output_ids"] == alone, "a save changes no answer"
    assert file.stat().st_mode & 0o077 == 0, "prompts are nobody else's business"
    server.signal(signal.SIGKILL)
    server.wait()

    server = start(*options).wait_ready()
    assert any("tokens of saved cache" in line for line in server.printed)
    warm = server.gen(first_prompt, max_new_tokens=4)
    assert warm["meta_info"]["cached_tokens"] == 999
    assert warm["output_ids"] == cold["output_ids"]
    cold = server.gen(second_prompt, max_new_tokens=4)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0

    server = start(*options).wait_ready()
    for prompt, expected in ((first_prompt, warm), (second_prompt, cold)):
        again = server.gen(prompt, max_new_tokens=4)
        assert again["meta_info"]["cached_tokens"] == 999
        assert again["output_ids"] == expected["output_ids"]
    server.assert_alive_and_drained()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert [path.name for path in file.parent.iterdir()] == [FILE], "nothing else is left"

    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    server = start(*options).wait_ready()
    assert "is damaged: the checksum of page" in server.log
    assert server.stats()["num_cached_tokens"] < 100
    again = server.gen(second_prompt, max_new_tokens=4)
    assert again["meta_info"]["cached_tokens"] == 0
    assert again["output_ids"] == cold["output_ids"]


def test_without_a_cache_dir_a_save_is_refused(server: ServerProcess) -> None:
    refused = server.http.post("/save_cache")
    assert refused.status_code == 400
    assert "--cache-dir" in refused.json()["error"]["message"]


def test_a_cache_dir_that_cannot_be_is_one_clear_line(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    server = start("--cache-dir", str(tmp_path / "file"))
    assert server.wait() == 1
    (line,) = [line for line in server.log.splitlines() if line.startswith("twinloop: ")]
    assert "--cache-dir" in line
    assert "Traceback" not in server.log
