"""`twinloop serve` as users start it, and what a test asks of it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson

TWINLOOP = Path(sys.executable).with_name("twinloop")
READY = re.compile(r"is ready on (http://\S+)")

REPRODUCIBLE = ("--dtype", "float32", "--compute-threads", "1")
"""Near-ties of logits must not decide, and one thread is the most that a shared machine gives."""

SECONDS = 120.0


class ServerProcess:
    """A server on a free port. Not ready before `wait_ready`."""

    def __init__(self, *options: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by `close`
        self.process = subprocess.Popen(
            [TWINLOOP, "serve", "--port", "0", *REPRODUCIBLE, *options],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.printed: list[str] = []
        self.url = ""
        self.http = httpx.Client(timeout=SECONDS)
        self._reference: list[int] = []

    def wait_ready(self) -> ServerProcess:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line)
            if match := READY.search(line):
                self.url = match[1]
                self.http = httpx.Client(base_url=self.url, timeout=SECONDS)
                self._reference = self.gen("The sun is", max_new_tokens=4)["output_ids"]
                return self
        raise AssertionError(f"the server ended before it was ready: {self.printed}\n{self.log}")

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    # --- requests -----------------------------------------------------------------------------------------

    def gen(self, prompt: str | Sequence[int], **sampling: Any) -> Any:
        """The answer to a greedy request that must succeed."""
        response = self.http.post("/generate", json=body_of(prompt, **sampling))
        assert response.status_code == 200, response.text
        return response.json()

    @contextlib.contextmanager
    def stream(self, path: str, body: dict[str, Any]) -> Iterator[Iterator[Any]]:
        """The events of a streamed answer, "[DONE]" too; leaving the block hangs up."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            if response.status_code != 200:
                response.read()
                raise AssertionError(response.text)
            yield (_event(line) for line in response.iter_lines() if line)

    def raw_post(self, path: str, body: dict[str, Any]) -> socket.socket:
        """A connection on which a request was sent and nothing was read."""
        data = orjson.dumps(body)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        return connection

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self.http.get("/server_info").json()["stats"]
        return stats

    def until(self, **wanted: int) -> None:
        """Asks for the stats until they are so; the test's own time limit is the limit."""
        while any(self.stats()[name] != value for name, value in wanted.items()):
            pass

    def assert_alive_and_drained(self) -> None:
        """Serves as on its first day, and holds nothing of any request."""
        assert self.http.get("/health").status_code == 200
        assert self.gen("The sun is", max_new_tokens=4)["output_ids"] == self._reference
        self.until(num_running_reqs=0, num_queue_reqs=0, num_slots_in_use=0)
        stats = self.stats()
        assert stats["num_used_tokens"] == stats["num_cached_tokens"]
        assert stats["num_locked_tokens"] == 0
        assert self.http.post("/flush_cache").status_code == 200
        stats = self.stats()
        assert stats["num_free_tokens"] == stats["max_total_num_tokens"]

    # --- processes ----------------------------------------------------------------------------------------

    @property
    def engine_pid(self) -> int:
        (pid,) = children(self.process.pid)
        return pid

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Waits for the end; the exit code."""
        return self.process.wait(SECONDS)

    def close(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


def body_of(prompt: str | Sequence[int], **sampling: Any) -> dict[str, Any]:
    """The body of a greedy /generate."""
    field = "text" if isinstance(prompt, str) else "input_ids"
    return {field: prompt, "sampling_params": {"temperature": 0, "ignore_eos": True, **sampling}}


def children(pid: int) -> list[int]:
    """The processes whose parent is `pid`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid:
                    found.append(int(entry.name))
    return found


def wait_for_end(pid: int) -> None:
    """Waits until a process that is not our child is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        assert poller.poll(SECONDS * 1000), f"process {pid} is still there"
    finally:
        os.close(pidfd)


def _event(line: str) -> Any:
    data = line.removeprefix("data: ")
    return data if data == "[DONE]" else orjson.loads(data)
