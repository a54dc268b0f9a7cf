"""The seam to the device. The loops know nothing of a device but this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy.typing as npt

from compute_loop.forward_batch import ForwardBatch
from srt.core.messages import Int32Array


class DeviceLost(Exception):
    """The device cannot be used any more: the engine process must end. Never caught by the loops."""


class StepHandle(Protocol):
    """A launched step. What is in it is the runner's business."""

    @property
    def batch(self) -> ForwardBatch: ...


H = TypeVar("H", bound=StepHandle)


@dataclass(frozen=True, slots=True, eq=False)
class StepTokens:
    """What a finished step says: one token per row of its batch, `NO_TOKEN` where none was sampled.

    `busy` and `gap` are seconds on the device's clock: work of this step, and idle time before it.
    """

    token_ids: Int32Array
    busy: float = 0.0
    gap: float = 0.0


class Runner(Protocol[H]):
    """Thread: compute. Runs steps in the order in which they are launched.

    A runner owns the device tables, indexed by slot: page table, last token, sampling parameters. Slot 0 and page 0
    are dummies for padding; no request gets them.

    Attributes:
        asynchronous: `launch` returns before the step is done, so that another one may be launched behind it.
        one_call: a step takes the GIL about ten times or less, so that two threads overlap.
    """

    name: str
    asynchronous: bool
    one_call: bool

    def launch(self, batch: ForwardBatch) -> H:
        """Starts the forward pass of a step behind those launched before.

        Any exception of `launch`, `sample` or `wait` but `DeviceLost` means that this step failed, and no other.
        """

    def sample(self, handle: H, rows: Int32Array, masks: npt.NDArray[Any] | None) -> None:
        """Samples the logits of `rows` (indices into the batch); `masks` bool[len(rows), vocab] allows tokens."""

    def wait(self, handle: H) -> StepTokens:
        """Sleeps, without the GIL, until the step and its sampling are done."""

    def copy_pages(self, src: Int32Array, dst: Int32Array, to_host: bool) -> None:
        """Copies KV page ``src[i]`` to ``dst[i]``: out of the pool to host memory, or back.

        Done when it returns: the bytes are in host memory, or every step launched from now on reads them. Steps in
        flight name none of the pages. Called only where the runner was given host memory.
        """

    def reset(self) -> None:
        """After a failed step: forgets launched steps and all rows. KV pages keep what settled steps wrote."""

    def close(self) -> None:
        """Releases the device."""
