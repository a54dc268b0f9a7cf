"""Every type that crosses a thread or a process: frozen, and complete at birth.

Three conversations, each in one direction:

* client -> control: `TokenizedReq`, `AbortReq`, `FlushReq`, `StatsReq`
* control -> client: `EngineReady`, `Accepted`, `Refused`, `TokenOutput`, `FlushReply`, `StatsReply`, `Heartbeat`,
  `EngineDied`
* control -> compute: the *commands* `PrefillBatch`, `PageGrant`, `Drop`, `Fence`, `Shutdown`, numbered by `seq`
* compute -> control: `StepResult`

Arrays are columns: element i of each column of a message speaks of the same row. Nobody writes to an array after it
was put into a message. A request is named by `key` (unique for the life of an engine process, given by the client
side); `rid` is what the user calls it and decides nothing. In the loops a row is named by ``(slot, generation)``:
a slot is a row of the device tables, a generation is one life of a request in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from srt.core.errors import ErrorInfo
from srt.core.sampling_params import SamplingParams

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

FinishKind = Literal["stop", "length", "abort", "error"]
Row = tuple[int, int]
"""(slot, generation)"""

NO_TOKEN = -1
"""In a column of sampled tokens: this row sampled none. Never reaches an embedding: inputs are built on the device."""


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
    `namespace`.
    """

    key: int
    rid: str
    token_ids: Int32Array
    params: SamplingParams
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class AbortReq:
    """End this request now. `keep_tokens` output tokens belong to the answer (all so far when None)."""

    key: int
    keep_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class FlushReq:
    """Empty the prefix cache; refused while there is work."""

    key: int


@dataclass(frozen=True, slots=True)
class StatsReq:
    key: int


ClientMessage = TokenizedReq | AbortReq | FlushReq | StatsReq


# --- control -> client --------------------


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The limits that a request must keep to; sent once, when the engine can serve.

    Lengths are in tokens. `load_seconds` is the time from process start.
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
    retracted_total: int = 0
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


EngineMessage = (
    EngineReady | Accepted | Refused | TokenOutput | FlushReply | StatsReply | Heartbeat | EngineDied
)


# --- control -> compute --------------------


@dataclass(frozen=True, slots=True)
class SeqInit:
    """What compute must know of a sequence for the whole of a generation; travels with its first chunk.

    `generated` output tokens exist already (a resumed request has some); the sequence ends by length when there are
    `max_new_tokens`. `stop_token_ids` already holds the model's EOS ids unless the request ignores them.
    """

    prompt_len: int
    generated: int
    max_new_tokens: int
    stop_token_ids: frozenset[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledSeq:
    """One chunk of one sequence, to be computed whole in one step.

    ::

        tokens:   [0 ........ start)[start ...... start + n)[...... limit)
                   KV is there       token_ids, this chunk    pages are there
        pages:                 [first_page ... + len(pages))  new page-table entries

    `pages` may begin before `start` where the prefix grew by tokens that another sequence computed. `is_last`: this
    chunk ends the prompt, so its last token's logits are sampled (unless nothing more may be generated). The row may
    decode on its own up to `limit` KV tokens.
    """

    slot: int
    generation: int
    token_ids: Int32Array
    start: int
    first_page: int
    pages: Int32Array
    limit: int
    is_last: bool
    init: SeqInit | None

    @property
    def row(self) -> Row:
        return self.slot, self.generation

    @property
    def num_new_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, eq=False)
class PrefillBatch:
    """Chunks that join the next step, all of them, in this order."""

    seq: int
    epoch: int
    rows: tuple[ScheduledSeq, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PageGrant:
    """More memory for decoding rows, columnar.

    Row i gets ``pages[offsets[i]:offsets[i + 1]]`` as its page-table entries from `first_page[i]` on, and may decode
    up to `limits[i]` KV tokens.
    """

    seq: int
    epoch: int
    slots: Int32Array
    generations: Int64Array
    first_page: Int32Array
    offsets: Int32Array
    pages: Int32Array
    limits: Int32Array


@dataclass(frozen=True, slots=True)
class Drop:
    """Launch no further step of these rows.

    Each is acknowledged in `StepResult.dropped` once no launched step names it.
    """

    seq: int
    epoch: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Fence:
    """Drain, then acknowledge by a result with `fenced` = `seq`."""

    seq: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Drain and end the compute loop."""

    seq: int
    epoch: int


Command = PrefillBatch | PageGrant | Drop | Fence | Shutdown


# --- compute -> control --------------------


@dataclass(frozen=True, slots=True)
class SeqFinish:
    slot: int
    generation: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class StepFault:
    """A failed step. Compute has dropped every row it had; `suspects` were named by the step or one behind it."""

    message: str
    suspects: frozenset[Row]


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What one step did; also sent empty (`step` unchanged, no rows) when something changed and nothing ran.

    Row i has the KV of its first `kv_lens[i]` tokens now, and sampled `token_ids[i]` (`NO_TOKEN`: none). Rows that had
    already finished when the step was launched (overrun) are left out. `applied` is the last command that compute
    had applied when it launched this step: everything commanded up to it has been executed. `parked` rows had no
    credit when compute last looked. Times in seconds on the runner's clock: `busy` is how long the device worked,
    `gap` how long it was idle before.
    """

    step: int
    epoch: int
    applied: int
    slots: Int32Array = field(default_factory=empty_int32)
    generations: Int64Array = field(default_factory=empty_int64)
    kv_lens: Int32Array = field(default_factory=empty_int32)
    token_ids: Int32Array = field(default_factory=empty_int32)
    finished: tuple[SeqFinish, ...] = ()
    dropped: tuple[Row, ...] = ()
    num_parked: int = 0
    fenced: int | None = None
    fault: StepFault | None = None
    busy: float = 0.0
    gap: float = 0.0
