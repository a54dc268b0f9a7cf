"""A device that takes time but computes nothing: measures the control plane of a large model on a laptop.

A step occupies the simulated device for as long as the bytes and operations of the real one would, off the GIL; its
launch costs the host what a real launch does, on the GIL. Tokens are a function of (seed, position).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compute_loop.forward_batch import ForwardBatch
from compute_loop.runner.base import StepTokens
from srt.core.messages import Int32Array
from srt.core.step_messages import NO_TOKEN

SPIN_SECONDS = 80e-6
"""The last part of a wait is slept in short pieces: one long sleep overshoots by 35 to 50 us."""
SHORT_SLEEP_SECONDS = 5e-6


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """What a step costs on a device. Bytes, operations, seconds; rates per second, efficiencies as measured shares.

    The default is Llama-3.1-8B in bfloat16 on an H200: 7.505 G parameters beside the embedding, 131,072 bytes of KV a
    token, 4.3 TB/s and 790 TFLOP/s measured.
    """

    name: str = "llama-3.1-8b-h200"
    parameters: float = 7.505e9
    bytes_per_parameter: float = 2.0
    kv_bytes_per_token: float = 131_072.0
    attention_flop_per_pair: float = 4.0 * 32 * 32 * 128
    vocab_size: int = 128_256
    context_length: int = 131_072
    bandwidth: float = 4.3e12
    flops: float = 790e12
    fixed_seconds: float = 0.35e-3
    launch_seconds: float = 0.15e-3
    launch_gil_takes: int = 3

    def step_seconds(self, batch: ForwardBatch) -> float:
        """Time on the device: the slower of weight bytes and GEMM work, KV reads, chunk attention, sampling."""
        num_tokens = batch.num_tokens
        weights = self.parameters * self.bytes_per_parameter / (0.9 * self.bandwidth)
        gemm = 2 * self.parameters * num_tokens / (0.75 * self.flops)
        kv_lens = batch.starts.astype(np.int64) + batch.num_new_tokens
        read = float(kv_lens.sum()) * self.kv_bytes_per_token / (0.85 * self.bandwidth)
        chunks = slice(0, batch.num_chunks)
        pairs = float((kv_lens[chunks] * batch.num_new_tokens[chunks]).sum())
        attention = self.attention_flop_per_pair * pairs / (0.5 * self.flops)
        sampling = float(batch.sampled.sum()) * self.vocab_size * 4 * 3 / self.bandwidth
        return max(weights, gemm) + read + attention + sampling + self.fixed_seconds


@dataclass(slots=True, eq=False)
class SimulatedStep:
    """A launched step: when it will be done on the device's clock, and its tokens."""

    batch: ForwardBatch
    done_at: float
    busy: float
    gap: float
    token_ids: Int32Array


class SimulatedRunner:
    """Thread: compute. `free_at` is when the device has done all that was launched; a later launch leaves a gap."""

    name = "simulated"
    asynchronous = True
    one_call = True

    def __init__(
        self,
        model: DeviceModel,
        num_slots: int,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._model = model
        self._clock = clock
        self._sleep = sleep
        self._free_at: float | None = None
        self._seeds = np.zeros(num_slots + 1, np.uint64)

    def launch(self, batch: ForwardBatch) -> SimulatedStep:
        for new in batch.new_seqs:
            self._seeds[new.slot] = 0 if new.params.is_greedy else new.params.seed
        self._burn_host_time()
        now = self._clock()
        free_at = now if self._free_at is None else self._free_at
        busy = self._model.step_seconds(batch)
        done_at = max(now, free_at) + busy
        self._free_at = done_at
        return SimulatedStep(batch, done_at, busy, max(0.0, now - free_at), self._tokens(batch))

    def sample(self, handle: SimulatedStep, rows: Int32Array, masks: npt.NDArray[Any] | None) -> None:
        if masks is not None:
            raise NotImplementedError("the simulated device takes no token masks")
        unsampled = np.ones(handle.batch.num_rows, np.bool_)
        unsampled[rows] = False
        handle.token_ids[unsampled] = NO_TOKEN

    def wait(self, handle: SimulatedStep) -> StepTokens:
        while (left := handle.done_at - self._clock()) > 0:
            self._sleep(left - SPIN_SECONDS if left > 2 * SPIN_SECONDS else SHORT_SLEEP_SECONDS)
        token_ids = (
            handle.token_ids
            if handle.batch.sampled.any()
            else np.full(handle.batch.num_rows, NO_TOKEN, np.int32)
        )
        return StepTokens(token_ids, handle.busy, handle.gap)

    def copy_pages(self, src: Int32Array, dst: Int32Array, to_host: bool) -> None:
        """There is no KV: its tokens depend on positions alone."""

    def reset(self) -> None:
        self._free_at = None

    def close(self) -> None:
        self.reset()

    def _burn_host_time(self) -> None:
        """A launch is Python and driver calls: it holds the GIL, and gives it up a few times."""
        model = self._model
        for _ in range(model.launch_gil_takes):
            until = self._clock() + model.launch_seconds / model.launch_gil_takes
            while self._clock() < until:
                pass
            self._sleep(0)

    def _tokens(self, batch: ForwardBatch) -> Int32Array:
        positions = (batch.starts + batch.num_new_tokens).astype(np.uint64)
        mixed = (positions + self._seeds[batch.slots] * np.uint64(31)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        return (mixed % np.uint64(self._model.vocab_size)).astype(np.int32)
