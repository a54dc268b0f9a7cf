"""The engine process: both loops and the model.

Run as ``python -m srt.server.engine_process`` with an `EngineSpec` on stdin.
It serves one client, its parent, and never outlives it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys
from types import FrameType

from control_loop.collector import take_over_collection
from srt.core.errors import EngineFailure, TwinloopError
from srt.core.port import ControlPort
from srt.core.queues import Doorbell
from srt.server.engine_core import EngineCore
from srt.server.engine_spec import EngineSpec, decode_spec, encode_last_words
from srt.server.ipc import EngineSocket, ZmqPort, encode
from srt.server.logs import configure_logging

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
SWITCH_INTERVAL_SECONDS = 20e-6
"""How long a thread may keep the GIL while the other loop wants it (see the design, D6)."""

STOP_SECONDS = 4.0
STOP, FAILED = b"s", b"f"


def die_with_parent(parent_pid: int) -> bool:
    """Lets the kernel kill this process when its parent ends; False when the parent has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent_pid


class EngineMain:
    """Thread: main of the engine process (`on_failure` any). Holds the engine from its start to its end."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._socket = EngineSocket(spec.address)
        self._port: ZmqPort | None = None
        # One byte wakes the main thread: written by the signal handler or by a loop that failed.
        self._events, self._wake = os.pipe()

    def run(self) -> int:
        """Builds the engine and sleeps until it is told to end; the exit code."""
        try:
            core = EngineCore.build(self._spec.config, self._make_port, self.on_failure)
        except TwinloopError as error:
            self._say_last_words(error)
            return 1
        except Exception as error:
            log.exception("the engine cannot start")
            self._say_last_words(EngineFailure(f"the engine cannot start: {error!r}"))
            return 1
        take_over_collection()
        signal.signal(signal.SIGTERM, self._on_signal)
        self._socket.raw.send(encode(core.ready))
        core.start()
        event = os.read(self._events, 1)
        assert self._port is not None
        self._port.close()
        if event == FAILED:
            return 1
        core.stop(STOP_SECONDS)
        return 0

    def on_failure(self, failure: BaseException) -> None:
        """A loop has died: the parent must know why, and this process ends, whatever the other loop does."""
        log.error("a loop of the engine failed", exc_info=failure)
        if isinstance(failure, TwinloopError):
            self._say_last_words(failure)
        else:
            self._say_last_words(EngineFailure(f"a loop of the engine failed: {failure!r}"))
        os.write(self._wake, FAILED)

    def _make_port(self, doorbell: Doorbell) -> ControlPort:
        self._port = ZmqPort(self._socket, doorbell, self._spec.config.schedule.max_unsent_tokens)
        return self._port

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        os.write(self._wake, STOP)

    def _say_last_words(self, error: TwinloopError) -> None:
        os.write(self._spec.last_words_fd, encode_last_words(error))


def main() -> int:
    spec = decode_spec(sys.stdin.buffer.read())
    if not die_with_parent(spec.parent_pid):
        return 1
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    faulthandler.enable()
    configure_logging(spec.config.server.log_level)
    return EngineMain(spec).run()


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    # A loop that hangs in native code must not keep the process: nothing is left to clean up.
    os._exit(code)
