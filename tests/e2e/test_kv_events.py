"""A router beside a real server: what it makes of the events is what the server has cached."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq

from tests.e2e.server_process import ServerProcess
from tests.replica import Prefix, Replica

OPTIONS = ("--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*")
STORY = "Once upon a time there was a fox who lived in the woods behind a house, and it knew nobody. "

Start = Callable[..., ServerProcess]


class Router:
    """Thread: the test's. Subscribes, and asks again for what it has missed."""

    def __init__(self, server: ServerProcess, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.server = server
        self.replica = Replica(
            16, next_number=0
        )  # what was said before it subscribed is missed, and asked for
        events = self.events()
        self.subscription = context.socket(zmq.SUB)
        self.subscription.subscribe(b"")
        self.subscription.connect(events["address"])
        self.asking = context.socket(zmq.DEALER)
        self.asking.connect(events["replay_address"])

    def events(self) -> dict[str, Any]:
        events: dict[str, Any] = self.server.http.get("/server_info").json()["kv_events"]
        return events

    def catch_up(self) -> None:
        """Reads until it has every batch; a gap, or a late start, is filled by a replay."""
        while self.replica.next_number != self.events()["next_number"]:
            if not self.subscription.poll(1000):
                self.replay()  # a subscription that is not established yet misses what is said
                continue
            _, number, batch = self.subscription.recv_multipart()
            (place,) = struct.unpack(">Q", number)
            if place >= (self.replica.next_number or 0) and not self.replica.read(place, batch):
                self.replay()

    def replay(self) -> None:
        wanted = self.replica.next_number or 0
        self.asking.send_multipart([b"", wanted.to_bytes(8, "big")])
        while True:
            _, number, batch = self.asking.recv_multipart()
            if not batch:
                assert number == b"\xff" * 8
                return
            assert self.replica.read(struct.unpack(">Q", number)[0], batch)

    def close(self) -> None:
        self.subscription.close(0)
        self.asking.close(0)


@contextmanager
def routing(server: ServerProcess) -> Iterator[Router]:
    context = zmq.Context()
    router = Router(server, context)
    try:
        yield router
    finally:
        router.close()
        context.term()


def cached_prefixes(server: ServerProcess) -> set[Prefix]:
    """The blocks of GET /radix_tree; no node may be longer than the ids that it shows."""
    tree = server.http.get("/radix_tree", params={"nodes": 1000, "head": 256}).json()
    assert tree["num_shown"] == tree["num_nodes"]
    paths: list[tuple[int, ...]] = []
    found: set[Prefix] = set()
    for node in tree["nodes"]:
        above = () if node["parent"] is None else paths[node["parent"]]
        assert len(node["head_ids"]) == node["num_tokens"]
        paths.append(above + tuple(node["head_ids"]))
        extra_key = None if node["namespace"] is None else "tenant"
        for end in range(len(above) + 16, len(paths[-1]) + 1, 16):
            found.add((extra_key, None, paths[-1][:end]))
    return found


def test_a_router_knows_what_is_cached(start: Start) -> None:
    server = start(*OPTIONS, "--max-total-tokens", "256", "--max-running-requests", "2").wait_ready()
    with routing(server) as router:
        server.gen(STORY + "One day it rained.", max_new_tokens=20)
        router.catch_up()
        assert router.replica.prefixes() == cached_prefixes(server) != set()
        for place in range(6):
            body = {
                "text": STORY * (1 + place % 3) + f"On day {place} it rained.",
                "sampling_params": {"max_new_tokens": 24, "temperature": 0, "ignore_eos": True},
            }
            tenant = {"extra_key": "tenant"} if place % 2 else {}
            assert server.http.post("/generate", json=body | tenant).status_code == 200
            router.catch_up()
            assert router.replica.prefixes() == cached_prefixes(server)
        assert server.stats()["evicted_tokens_total"] > 0
        assert server.http.post("/flush_cache").status_code == 200
        router.catch_up()
        assert router.replica.prefixes() == set()

        server.gen(STORY, max_new_tokens=2)
        router.catch_up()
        assert router.replica.blocks
        os.kill(server.engine_pid, signal.SIGKILL)
        while server.http.get("/health").status_code == 200:
            pass
        while router.replica.blocks:
            router.replay()
        while server.http.get("/health").status_code != 200:
            pass
        server.gen(STORY, max_new_tokens=2)
        router.catch_up()
        assert router.replica.prefixes() == cached_prefixes(server) != set()


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:5557", "must begin with tcp://"), ("tcp://1.2.3.4:5557", "tcp://1.2.3.4:5557: ")],
)
def test_an_address_that_is_none_is_one_line(start: Start, address: str, reason: str) -> None:
    server = start("--kv-events", address)
    assert server.wait() == 1
    assert server.log.startswith("twinloop: --kv-events") and reason in server.log
    assert len(server.log.splitlines()) == 1
