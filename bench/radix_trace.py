"""A mixed trace over the radix cache: requests that share system prompts, in a cache too small for all of them."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import numpy as np
from tqdm import tqdm

from mem_pool.page_allocator import PageAllocator
from radix_cache.key import RadixKey
from radix_cache.radix_cache import RadixCache
from radix_cache.tree_node import TreeNode
from srt.core.messages import Int32Array

VOCAB_SIZE = 128_000
ZIPF = 1.1
SYSTEM_TOKENS, OWN_TOKENS, OUTPUT_TOKENS = (200, 2000), (50, 300), (50, 200)
NUM_RUNNING = 32
FOLLOW_UPS = 0.5
"""Of the requests of sessions, so many continue a conversation."""
OPEN_CONVERSATIONS = 500
MAX_TURNS = 8

Answer = TypeVar("Answer")


def random_tokens(rng: np.random.Generator, count: int) -> Int32Array:
    return rng.integers(1, VOCAB_SIZE, count, np.int32)


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """`capacity` in tokens; with `is_sessions`, half of the requests follow up on one that has ended."""

    num_requests: int
    num_systems: int
    capacity: int
    page_size: int
    policy: str
    seed: int
    is_sessions: bool = False


class LockTimer(AbstractContextManager[None]):
    """Stands in for the cache's lock and notes how long it is held. Nobody else runs, so it excludes nobody.

    Thread: the bench's.
    """

    def __init__(self) -> None:
        self.nanoseconds: list[int] = []
        self._since = 0

    def __enter__(self) -> None:
        self._since = time.perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.nanoseconds.append(time.perf_counter_ns() - self._since)


class Requests:
    """Thread: the bench's. Prompts and answers: zipf over system prompts, a tail of its own for each."""

    def __init__(self, options: TraceOptions) -> None:
        self._rng = np.random.default_rng(options.seed)
        lengths = self._rng.integers(*SYSTEM_TOKENS, options.num_systems, endpoint=True)
        self._systems = [random_tokens(self._rng, int(length)) for length in lengths]
        weights = np.arange(1, options.num_systems + 1) ** -ZIPF
        self._chosen = self._rng.choice(
            options.num_systems, options.num_requests, p=weights / weights.sum()
        ).tolist()
        self._is_sessions = options.is_sessions
        self._conversations: deque[tuple[Int32Array, int]] = deque(maxlen=OPEN_CONVERSATIONS)

    def __iter__(self) -> Iterator[tuple[Int32Array, int]]:
        """Each prompt, and which turn of its conversation it is."""
        for chosen in self._chosen:
            before, turn = self._systems[chosen], 1
            if self._is_sessions and self._conversations and self._rng.random() < FOLLOW_UPS:
                index = int(self._rng.integers(len(self._conversations)))
                before, turn = self._conversations[index]
                del self._conversations[index]
            own = random_tokens(self._rng, int(self._rng.integers(*OWN_TOKENS, endpoint=True)))
            yield np.concatenate([before, own]), turn

    def answer(self, prompt: Int32Array, turn: int) -> Int32Array:
        """The whole sequence of a request that has ended."""
        whole = np.concatenate(
            [prompt, random_tokens(self._rng, int(self._rng.integers(*OUTPUT_TOKENS, endpoint=True)))]
        )
        if self._is_sessions and turn < MAX_TURNS:
            self._conversations.append((whole, turn + 1))
        return whole


@dataclass(slots=True)
class _Running:
    prompt: Int32Array
    turn: int
    pages: Int32Array
    node: TreeNode


class Trace:
    """Thread: the bench's. Plays requests as a server would, and times every call of the cache, and nothing else.

    A request is matched and locked; its prompt is inserted and the lock moves to the end of it; `NUM_RUNNING` requests
    later the prompt with its answer is inserted, and the lock is given back. Where the pool has too few free pages, one
    `evict` brings what is missing. Tokens, keys and page ids are made between the calls.
    """

    def __init__(self, options: TraceOptions, lock: LockTimer | None = None) -> None:
        self._options = options
        self._requests = Requests(options)
        self._page_size = options.page_size
        self.cache = RadixCache(options.page_size, options.policy, lock=lock)
        self._pool = PageAllocator(options.capacity // options.page_size)
        self._running: deque[_Running] = deque()
        self.nanoseconds: dict[str, list[int]] = defaultdict(list)
        self.prompt_tokens = 0
        self.matched_tokens = 0

    def play(self) -> None:
        """Every request, from its match to its end.

        Raises:
            MemoryError: what runs at once does not fit into the capacity.
        """
        label = "sessions" if self._options.is_sessions else "trace"
        total = self._options.num_requests
        for prompt, turn in tqdm(
            self._requests, desc=label, total=total, unit="req", disable=None, leave=False
        ):
            if len(self._running) == NUM_RUNNING:
                self._finish(self._running.popleft())
            self._start(prompt, turn)
        while self._running:
            self._finish(self._running.popleft())

    @property
    def num_operations(self) -> int:
        return sum(map(len, self.nanoseconds.values()))

    @property
    def seconds(self) -> float:
        """Inside calls of the cache."""
        return sum(map(sum, self.nanoseconds.values())) / 1e9

    def _start(self, prompt: Int32Array, turn: int) -> None:
        cache, key = self.cache, RadixKey(prompt)
        match = self._timed("match", lambda: cache.match_prefix(key))
        self._timed("lock", lambda: cache.lock(match.node))
        pages = self._extended(match.pages, len(prompt))
        inserted = self._timed("insert prompt", lambda: cache.insert(key, pages))
        assert inserted.num_taken == (len(pages) - len(match.pages)) * self._page_size
        self._timed("lock", lambda: cache.lock(inserted.node))
        self._timed("unlock", lambda: cache.unlock(match.node))
        self._running.append(_Running(prompt, turn, pages, inserted.node))
        self.prompt_tokens += len(prompt)
        self.matched_tokens += match.num_tokens

    def _finish(self, running: _Running) -> None:
        cache = self.cache
        whole = self._requests.answer(running.prompt, running.turn)
        pages = self._extended(running.pages, len(whole))
        key = RadixKey(whole)
        self._timed("insert finish", lambda: cache.insert(key, pages))
        self._timed("unlock", lambda: cache.unlock(running.node))

    def _extended(self, pages: Int32Array, num_tokens: int) -> Int32Array:
        """`pages`, and as many new ones as the whole pages of so many tokens need."""
        count = num_tokens // self._page_size - len(pages)
        short = count - self._pool.num_free
        if short > 0:
            self._pool.free(self._timed("evict", lambda: self.cache.evict(short)))
        fresh = self._pool.alloc(count)
        if fresh is None:
            raise MemoryError(
                f"{NUM_RUNNING} running requests do not fit into {self._options.capacity} tokens"
            )
        return np.concatenate([pages, fresh])

    def _timed(self, name: str, call: Callable[[], Answer]) -> Answer:
        started = time.perf_counter_ns()
        answer = call()
        self.nanoseconds[name].append(time.perf_counter_ns() - started)
        return answer
