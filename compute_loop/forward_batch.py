"""One step as the device sees it: an immutable snapshot in columns.

Everything that a runner needs is in here, so that a launched step never reads state that the host goes on changing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from srt.core.messages import Int32Array, Int64Array
from srt.core.sampling_params import SamplingParams

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class NewSeq:
    """A life that begins with this step: the sampling parameters of its slot are set before the step runs."""

    slot: int
    params: SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class ForwardBatch:
    """Rows of one forward step.

    Rows ``[0, num_chunks)`` are prefill chunks: their input ids lie one after another in `chunk_ids`. The other rows
    decode one token: their input id is ``last_token[slot]`` on the device, which the host need not know yet.

    ::

        row i, KV positions:  [0 ........ starts[i])[starts[i] ... starts[i] + num_new_tokens[i])
                               computed before        this step computes and stores them

    All keys and values of a layer are stored before any attention of that layer reads: rows may share pages.

    Attributes:
        step: number of the step, from 1.
        slots, generations, starts, num_new_tokens: int columns, one element a row.
        sampled: bool column: the row's last logits are sampled; the token gets index ``starts + num_new_tokens``.
        chunk_ids: int32, the tokens of all chunk rows.
        table_slots, table_index, table_pages: int32 columns: page-table entries that are valid from this step on.
        new_seqs: lives that begin.
    """

    step: int
    num_chunks: int
    slots: Int32Array
    generations: Int64Array
    starts: Int32Array
    num_new_tokens: Int32Array
    sampled: BoolArray
    chunk_ids: Int32Array
    table_slots: Int32Array
    table_index: Int32Array
    table_pages: Int32Array
    new_seqs: tuple[NewSeq, ...] = ()

    @property
    def num_rows(self) -> int:
        return len(self.slots)

    @property
    def num_tokens(self) -> int:
        """Tokens that this step computes."""
        return len(self.chunk_ids) + self.num_rows - self.num_chunks
