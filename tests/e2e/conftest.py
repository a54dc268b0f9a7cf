"""One server for all tests that leave it as they found it, and one with very little room."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.server_process import ServerProcess


def _serving(*options: str) -> Iterator[ServerProcess]:
    server = ServerProcess(*options)
    try:
        yield server.wait_ready()
    finally:
        server.close()


@pytest.fixture(scope="session")
def shared_server() -> Iterator[ServerProcess]:
    yield from _serving(
        *("--max-total-tokens", "4096", "--chunked-prefill-size", "2048", "--max-step-tokens", "2200")
    )


@pytest.fixture(scope="session")
def shared_small_server() -> Iterator[ServerProcess]:
    yield from _serving(
        *("--max-total-tokens", "256", "--max-running-requests", "4", "--max-queued-requests", "4"),
        *("--chunked-prefill-size", "16", "--max-step-tokens", "32"),
        *("--schedule-conservativeness", "0"),
    )


@pytest.fixture
def server(shared_server: ServerProcess) -> Iterator[ServerProcess]:
    """The default model in float32: 4,096 tokens, pages of 16, chunks of 2,048; alive and drained after the test."""
    yield shared_server
    shared_server.assert_alive_and_drained()


@pytest.fixture
def small_server(shared_small_server: ServerProcess) -> Iterator[ServerProcess]:
    """256 tokens, 4 requests at once, 4 more may wait, chunks of 16, no room held back for answers;
    alive and drained after the test."""
    yield shared_small_server
    shared_small_server.assert_alive_and_drained()


@pytest.fixture
def start() -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers of one's own."""
    servers: list[ServerProcess] = []

    def start_server(*options: str) -> ServerProcess:
        servers.append(ServerProcess(*options))
        return servers[-1]

    yield start_server
    for server in servers:
        server.close()
