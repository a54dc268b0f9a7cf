"""Both loops over the hash model, driven step by step, and the oracle that judges what comes out."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compute_loop.forward_batch import ForwardBatch
from compute_loop.loop import ComputeLoop
from compute_loop.runner.base import Runner
from compute_loop.runner.hash_model import HashRunner, generate
from control_loop.intake import Limits
from control_loop.loop import ControlLoop
from control_loop.parts import LoopLinks
from radix_cache.host_index import HostIndex
from srt.core.cache_identity import CacheIdentity
from srt.core.config import Config
from srt.core.loop_thread import Loop
from srt.core.messages import (
    AbortReq,
    Accepted,
    ClientMessage,
    EngineMessage,
    EngineStats,
    FinishReason,
    FlushReply,
    FlushReq,
    Refused,
    SaveReply,
    SaveReq,
    TokenizedReq,
    TokenOutput,
)
from srt.core.port import LocalPort
from srt.core.sampling_params import SamplingParams
from srt.server.cache_store.store import CacheStore

EOS = 0
BUFFER_PAGES = 5
"""Of each of the two buffers between compute and the helper that writes files."""
SAVE_PAGES = 2 * BUFFER_PAGES


@dataclass
class Answer:
    """What a client has been told about one request."""

    request: TokenizedReq
    accepted: bool = False
    refused: Refused | None = None
    token_ids: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    cached_tokens: int = -1
    num_retractions: int = 0

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.refused is not None


def open_store(config: Config, runner: HashRunner, links: LoopLinks) -> CacheStore | None:
    """A place for saved caches of the hash model: its KV are the tokens themselves, 8 bytes each."""
    if config.cache.cache_dir is None:
        return None
    page_size = config.cache.page_size
    identity = CacheIdentity(
        "test", "hash", "none", "int64", "tokens", 1, 1, 1, page_size, page_size * 8, sys.byteorder
    )
    pages = runner.host[:SAVE_PAGES].view(np.uint8)
    return CacheStore(config.cache.cache_dir, config.cache.cache_dir_gb, identity, pages, links.doorbell)


class Rig:
    """Control and compute with no thread: a test calls `control.step()` and `compute.step()` in the order it chooses.

    Small by default, so that chunks, evictions and retractions happen: a vocabulary of 23 tokens, of which 0 ends.
    No memory is set aside for future output, so that rows run out of it. `runner` replaces the hash model; then the
    oracle is another run. `options` are further options of the engine; with `cache_dir` a third loop writes files.
    """

    def __init__(
        self,
        *,
        num_pages: int = 16,
        page_size: int = 4,
        chunk: int = 8,
        max_running: int = 4,
        context: int = 256,
        vocab: int = 23,
        radix_cache: bool = True,
        policy: str = "fcfs",
        conservativeness: float = 0.0,
        max_queued: int = 1000,
        asynchronous: bool = True,
        fault: Callable[[ForwardBatch], None] | None = None,
        runner: Runner[Any] | None = None,
        eos: int = EOS,
        clock: Callable[[], float] = time.monotonic,
        num_host_pages: int = 0,
        **options: object,
    ) -> None:
        self.config = Config.from_flat(
            page_size=page_size,
            chunked_prefill_size=max(chunk, page_size),
            max_step_tokens=max(chunk, page_size) + max_running + page_size,
            max_running_requests=max_running,
            max_queued_requests=max_queued,
            radix_cache=radix_cache,
            schedule_policy=policy,
            schedule_conservativeness=conservativeness,
            **options,
        )
        self.vocab = vocab
        self.links = LoopLinks.create()
        self.port = LocalPort(self.links.doorbell)
        self.runner = HashRunner(
            max_running,
            num_pages,
            page_size,
            context,
            vocab,
            asynchronous,
            fault,
            num_host_pages=SAVE_PAGES + num_host_pages,
        )
        limits = Limits(vocab, context, num_pages * page_size, frozenset({eos}))
        self.store = open_store(self.config, self.runner, self.links)
        saving = self.store.links if self.store is not None else None
        self.control = ControlLoop(
            self.config,
            limits,
            num_pages,
            self.port,
            self.links,
            clock,
            saving=saving,
            host_index=HostIndex(SAVE_PAGES, num_host_pages) if num_host_pages else None,
        )
        self.restored = 0
        if self.store is not None:
            self.restored = self.store.restore(self.control.restore, self.runner.copy_pages)
        self.compute = ComputeLoop(
            runner or self.runner, max_running, self.links.commands, self.links.results, self.links.doorbell
        )
        self.answers: dict[int, Answer] = {}
        self.others: list[EngineMessage] = []
        self._next_key = 1

    # --- clients --------------------

    def submit(
        self,
        prompt: Iterable[int],
        max_new_tokens: int = 8,
        namespace: str | None = None,
        priority: int = 0,
        **params: object,
    ) -> Answer:
        """Sends a request; greedy unless `params` say otherwise."""
        key, self._next_key = self._next_key, self._next_key + 1
        sampling = SamplingParams(max_new_tokens=max_new_tokens, **{"temperature": 0.0, **params})  # type: ignore[arg-type]
        request = TokenizedReq(
            key, f"r{key}", np.array(list(prompt), np.int32), sampling, namespace, priority
        )
        self.answers[key] = Answer(request)
        self.port.submit(request)
        return self.answers[key]

    def abort(self, answer: Answer, keep_tokens: int | None = None) -> None:
        self.send(AbortReq(answer.request.key, keep_tokens))

    def send(self, message: ClientMessage) -> None:
        self.port.submit(message)

    def expected(self, answer: Answer) -> list[int]:
        """What the oracle says this request must produce."""
        params = answer.request.params
        stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else {EOS})
        return generate(answer.request.token_ids.tolist(), params, self.vocab, stops)

    # --- driving --------------------

    def both(self) -> bool:
        """One step of each loop; True when either did something."""
        control = self.control.step()
        compute = self.compute.step()
        helper = self.store is not None and self.store.helper.step()
        self.read()
        return control or compute or helper

    def run(self, rng: random.Random | None = None, max_steps: int = 20_000) -> None:
        """Steps until nothing moves; with `rng` in random order. Fails when it goes on without an end."""
        quiet = 0
        for _ in range(max_steps):
            if rng is None:
                moved = self.both()
                quiet = 0 if moved else quiet + 1
                if quiet > 1:
                    return
                continue
            loop: Loop = self.control if rng.random() < 0.5 else self.compute
            if self.store is not None and rng.random() < 0.3:
                loop = self.store.helper
            moved = loop.step()
            self.read()
            quiet = 0 if moved else quiet + 1
            if quiet > 24:  # both loops were asked, many times over
                self.run(None, max_steps)
                return
        raise AssertionError(f"no end after {max_steps} steps: {self.control!r} {self.compute!r}")

    def read(self) -> None:
        """Takes in what the engine has sent, and checks that each request is told a consistent story."""
        for message in self.port.poll():
            self.read_message(message)

    def read_message(self, message: EngineMessage) -> None:
        if isinstance(message, Accepted):
            answer = self.answers[message.key]
            assert not answer.accepted, "accepted twice"
            answer.accepted = True
        elif isinstance(message, Refused):
            answer = self.answers[message.key]
            assert not answer.accepted and answer.refused is None
            answer.refused = message
        elif isinstance(message, TokenOutput):
            self._read_output(message)
        else:
            self.others.append(message)

    def _read_output(self, output: TokenOutput) -> None:
        assert len(output.keys) == len(output.offsets) - 1 == len(output.cached_tokens)
        for row, key in enumerate(output.keys):
            answer = self.answers[int(key)]
            assert answer.accepted, "output before Accepted"
            assert answer.finish is None, f"output after the finish of {answer}"
            answer.token_ids += output.token_ids[output.offsets[row] : output.offsets[row + 1]].tolist()
            answer.cached_tokens = int(output.cached_tokens[row])
        for finish in output.finishes:
            answer = self.answers[int(output.keys[finish.row])]
            assert answer.finish is None, "two finishes"
            answer.finish, answer.num_retractions = finish.reason, finish.num_retractions

    # --- judging --------------------

    def stats(self) -> EngineStats:
        return self.control.stats()

    def check_answers(self) -> None:
        """Every request has one end, and exactly the oracle's tokens (a prefix of them when it was aborted)."""
        for answer in self.answers.values():
            assert answer.ended, f"never ended: {answer}"
            if answer.finish is None or answer.finish.kind == "error":
                continue
            expected = self.expected(answer)
            if answer.finish.kind == "abort":
                assert answer.token_ids == expected[: len(answer.token_ids)]
                continue
            assert answer.token_ids == expected, f"{answer} expected {expected}"
            self._check_finish(answer)

    @staticmethod
    def _check_finish(answer: Answer) -> None:
        assert answer.finish is not None
        if answer.finish.kind == "stop":
            assert answer.finish.matched == answer.token_ids[-1]
        else:
            assert answer.finish.kind == "length"
            assert len(answer.token_ids) == answer.request.params.max_new_tokens

    def check_drained(self) -> None:
        """free + cached == pool, no locks, no slots; after a flush every page is free."""
        stats = self.stats()
        assert stats.num_free_tokens + stats.num_cached_tokens == stats.max_total_num_tokens, stats
        assert stats.num_locked_tokens == 0 and stats.num_slots_in_use == 0 and stats.num_queue_reqs == 0, (
            stats
        )
        assert self.control.is_idle
        self.control.check_idle()
        self.control._manager.cache.check_integrity()

    def save(self) -> SaveReply:
        """Saves the cache and returns the reply."""
        self.others.clear()
        self.send(SaveReq(999_998))
        self.run()
        (reply,) = self.others
        assert isinstance(reply, SaveReply)
        return reply

    def flush(self) -> FlushReply:
        """Flushes and returns the reply."""
        self.others.clear()
        self.send(FlushReq(999_999))
        self.run()
        (reply,) = self.others
        assert isinstance(reply, FlushReply)
        return reply
