"""What clients and the control loop say to each other: frozen, and complete at birth.

* client -> control: `TokenizedReq`, `AbortReq`, and questions of operators: `FlushReq`, `StatsReq`, `PauseReq`,
  `ContinueReq`, `TreeViewReq`, `SaveReq`
* control -> client: `EngineReady`, `Accepted`, `Refused`, `TokenOutput`, `TreeChanges`, a reply to each question,
  `Heartbeat`, `EngineDied`

The two loops talk in `srt.core.step_messages`. Arrays are columns: element i of each column of a message speaks of
the same row. Nobody writes to an array after it was put into a message. A request is named by `key` (unique for the
life of an engine process, given by the client side); `rid` is what the user calls it and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from srt.core.errors import ErrorInfo
from srt.core.sampling_params import SamplingParams
from srt.core.tree_messages import TreeChanges, TreeViewReply, TreeViewReq

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

FinishKind = Literal["stop", "length", "abort", "error"]

PauseMode = Literal["abort", "retract", "in_place"]
"""What becomes of requests: they end; they wait again, without memory; they stay where they are."""


def empty_int32() -> Int32Array:
    return np.empty(0, np.int32)


def empty_int64() -> Int64Array:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class FinishReason:
    """Why a request ended; there is exactly one for each accepted request.

    `matched` is the stop token id or the stop string. `error` says more for kinds "abort" and "error".
    """

    kind: FinishKind
    matched: int | str | None = None
    error: ErrorInfo | None = None


# --- client -> control --------------------


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedReq:
    """A request as the control loop sees it.

    `token_ids` is the whole prompt (int32, at least one). Prompts match each other's prefixes only within one
    `namespace`. A higher `priority` goes first, where the policy looks at it.
    """

    key: int
    rid: str
    token_ids: Int32Array
    params: SamplingParams
    namespace: str | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class AbortReq:
    """End this request now. `keep_tokens` output tokens belong to the answer (all so far when None)."""

    key: int
    keep_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class FlushReq:
    """Empty the prefix cache, as soon as there is no work; refused when that takes longer than `timeout` seconds."""

    key: int
    timeout: float = 0.0


@dataclass(frozen=True, slots=True)
class StatsReq:
    key: int


@dataclass(frozen=True, slots=True)
class PauseReq:
    """Start no step until `ContinueReq`; answered when none runs any more. New requests are accepted and wait."""

    key: int
    mode: PauseMode


@dataclass(frozen=True, slots=True)
class ContinueReq:
    """Go on after a pause; without one, nothing changes."""

    key: int


@dataclass(frozen=True, slots=True)
class SaveReq:
    """Write the prefix cache to its file, under traffic; answered when it is on disk."""

    key: int


Question = FlushReq | StatsReq | PauseReq | ContinueReq | TreeViewReq | SaveReq
"""What an operator asks; each has one reply, which names its `key`."""

ClientMessage = TokenizedReq | AbortReq | Question


# --- control -> client --------------------


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The limits that a request must keep to; sent once, when the engine can serve.

    Lengths are in tokens. `load_seconds` is the time from process start. `restored_tokens` of the prefix cache came
    from --cache-dir.
    """

    model: str
    dtype: str
    device: str
    runner: str
    overlap: bool
    vocab_size: int
    context_length: int
    max_total_tokens: int
    page_size: int
    max_running_requests: int
    load_seconds: float
    restored_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    key: int


@dataclass(frozen=True, slots=True)
class Refused:
    key: int
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class RowFinish:
    """The end of one row of a `TokenOutput`: `row` indexes its columns."""

    row: int
    reason: FinishReason
    num_retractions: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TokenOutput:
    """New tokens of many requests: row i owns ``token_ids[offsets[i]:offsets[i + 1]]``.

    `cached_tokens[i]` is how much of the prompt came out of the cache when the request was first admitted.
    """

    keys: Int64Array
    offsets: Int32Array
    token_ids: Int32Array
    cached_tokens: Int32Array
    finishes: tuple[RowFinish, ...] = ()


@dataclass(frozen=True, slots=True)
class FlushReply:
    key: int
    flushed_tokens: int = 0
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class PauseReply:
    """The engine stands still: `num_running` requests hold memory, `num_waiting` wait."""

    key: int
    num_running: int
    num_waiting: int


@dataclass(frozen=True, slots=True)
class ContinueReply:
    """The engine goes on; `was_paused` says whether it stood still."""

    key: int
    was_paused: bool


@dataclass(frozen=True, slots=True)
class SaveReply:
    """The file is on disk, `num_bytes` long, with the KV of `saved_tokens`; or there is an error, and the old file."""

    key: int
    saved_tokens: int = 0
    num_bytes: int = 0
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine is doing and has done. Counters (``*_total``) only grow. Tokens unless said otherwise."""

    num_running_reqs: int = 0
    num_queue_reqs: int = 0
    max_total_num_tokens: int = 0
    num_used_tokens: int = 0
    num_cached_tokens: int = 0
    num_free_tokens: int = 0
    num_locked_tokens: int = 0
    num_slots_in_use: int = 0
    is_paused: bool = False
    steps_total: int = 0
    requests_total: int = 0
    finished_total: int = 0
    aborted_total: int = 0
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    computed_tokens_total: int = 0
    generation_tokens_total: int = 0
    prefill_chunks_total: int = 0
    evicted_tokens_total: int = 0
    num_host_tokens: int = 0
    host_hit_tokens_total: int = 0
    retracted_total: int = 0
    preempted_total: int = 0
    parked_rows_total: int = 0
    failed_steps_total: int = 0
    device_busy_seconds_total: float = 0.0
    device_gap_seconds_total: float = 0.0
    control_seconds_total: float = 0.0


@dataclass(frozen=True, slots=True)
class StatsReply:
    key: int
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Control is alive; the oldest command without a result has waited `waiting_seconds`."""

    waiting_seconds: float


@dataclass(frozen=True, slots=True)
class EngineDied:
    """The last words of an engine process whose loop raised."""

    error: ErrorInfo


Reply = FlushReply | StatsReply | PauseReply | ContinueReply | TreeViewReply | SaveReply

EngineMessage = EngineReady | Accepted | Refused | TokenOutput | TreeChanges | Reply | Heartbeat | EngineDied
