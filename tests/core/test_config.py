"""Options: flat names in, one clear line out when something is wrong."""

from __future__ import annotations

import re

import pytest

from srt.core.config import Config, choices_of
from srt.core.errors import ConfigError


def test_defaults_are_valid() -> None:
    Config().validate()


def test_flat_names_find_their_group() -> None:
    config = Config.from_flat(page_size=1, port=0, schedule_policy="lpm", model="some/model")
    assert (config.cache.page_size, config.server.port) == (1, 0)
    assert (config.schedule.schedule_policy, config.model.model) == ("lpm", "some/model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_size": 0}, "--page-size is 0, it must be at least 1"),
        ({"schedule_policy": "best"}, "--schedule-policy is 'best', allowed are fcfs, lpm"),
        ({"eviction_policy": "?"}, "--eviction-policy is '?', allowed are lru"),
        ({"overlap": "yes"}, "--overlap is 'yes', allowed are auto, on, off"),
        ({"mem_fraction": 0.0}, "--mem-fraction is 0.0"),
        ({"mem_fraction": float("nan")}, "--mem-fraction is nan"),
        ({"port": 70000}, "--port is 70000, it must lie in [0, 65535]"),
        ({"watchdog_timeout": float("nan")}, "--watchdog-timeout is nan"),
        (
            {"chunked_prefill_size": 8, "page_size": 16},
            "--chunked-prefill-size 8 is less than --page-size 16",
        ),
        ({"max_step_tokens": 64, "max_running_requests": 64}, "prompts could starve"),
        ({"context_length": 1}, "--context-length is 1, it must be at least 2"),
        ({"compute_threads": 100_000}, "--compute-threads is 100000, it must lie in [1, 1024]"),
        ({"waiting_timeout": 0.0}, "--waiting-timeout is 0.0, it must be more than 0 seconds"),
        ({"running_timeout": float("nan")}, "--running-timeout is nan"),
        ({"schedule_conservativeness": 11.0}, "--schedule-conservativeness is 11.0, it must lie in [0, 10]"),
        ({"preemption_threshold": -1, "schedule_policy": "priority"}, "it must be at least 0"),
        ({"preemption_threshold": 1}, "needs --schedule-policy priority, it is fcfs"),
        (
            {"kv_events": "localhost:5557"},
            "--kv-events is 'localhost:5557', it must begin with tcp:// or ipc://",
        ),
        ({"kv_events": "ipc://a", "kv_events_replay": "5558"}, "--kv-events-replay is '5558'"),
        ({"kv_events_replay": "tcp://*:5558"}, "--kv-events-replay needs --kv-events"),
        ({"kv_events_topic": "kv"}, "--kv-events-topic needs --kv-events"),
        ({"kv_events": "tcp://*:5557", "radix_cache": False}, "--kv-events with --no-radix-cache"),
        ({"watchdog_timeout": 0.0}, "--watchdog-timeout is 0.0, it must be at least 1 seconds"),
        ({"max_total_tokens": 8}, "--max-total-tokens 8 is less than one page of 16"),
        ({"cache_dir_gb": 0.0}, "--cache-dir-gb is 0.0, it must lie in (0, 1e+06] GB"),
        ({"cache_dir": "x", "radix_cache": False}, "--cache-dir needs the radix cache"),
        ({"cache_save_timeout": -1.0}, "--cache-save-timeout is -1.0, it must be at least 0 seconds"),
        ({"pagesize": 1}, "unknown option 'pagesize'"),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Config.from_flat(**options)


def test_choices_come_from_the_annotation() -> None:
    assert choices_of("Overlap") == ("auto", "on", "off")
    assert choices_of("int") is None
