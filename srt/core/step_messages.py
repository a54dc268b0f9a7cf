"""What the two loops say to each other: commands one way, results the other.

* control -> compute: the *commands* `PrefillBatch`, `PageGrant`, `Drop`, `Fence`, `Resume`, `CopyPages`, `Shutdown`,
  numbered by `seq`
* compute -> control: `StepResult`

A row is named by ``(slot, generation)``: a slot is a row of the device tables, a generation is one life of a request
in it. Arrays are columns, as in `srt.core.messages`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from srt.core.messages import FinishReason, Int32Array, Int64Array, empty_int32, empty_int64
from srt.core.sampling_params import SamplingParams

Row = tuple[int, int]
"""(slot, generation)"""

NO_TOKEN = -1
"""In a column of sampled tokens: this row sampled none. Never reaches an embedding: inputs are built on the device."""


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
    """Drain, then acknowledge by a result with `fenced` = `seq`; with `hold`, launch nothing until `Resume`."""

    seq: int
    epoch: int
    hold: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """Launch steps again, after a `Fence` with `hold`."""

    seq: int
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class CopyPages:
    """Copy KV between the pool and host memory: page ``src[i]`` of one to page ``dst[i]`` of the other.

    ::

        to_host        src, pages of the pool   -->   dst, host pages
        not to_host    src, host pages          -->   dst, pages of the pool

    Done when it is applied: what later commands write comes after it, and steps in flight name none of these pages.
    So the pages of the pool are settled and locked (or nobody's yet) until `StepResult.copied` names `seq`, and the
    host pages are compute's until then. It is done in any epoch: a failed step takes nothing from settled pages.
    """

    seq: int
    epoch: int
    src: Int32Array
    dst: Int32Array
    to_host: bool


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Drain and end the compute loop."""

    seq: int
    epoch: int


Command = PrefillBatch | PageGrant | Drop | Fence | Resume | CopyPages | Shutdown


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
    credit when compute last looked. `copied` are the `CopyPages` that were done since the last result. Times in
    seconds on the runner's clock: `busy` is how long the device worked, `gap` how long it was idle before.
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
    copied: tuple[int, ...] = ()
    fault: StepFault | None = None
    busy: float = 0.0
    gap: float = 0.0
