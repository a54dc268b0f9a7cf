"""A request in the control loop, over all its lives."""

from __future__ import annotations

from enum import Enum

from radix_cache.cursor import MatchCursor
from radix_cache.key import RadixKey
from srt.core.messages import FinishReason, Int32Array, TokenizedReq


class Phase(Enum):
    """Where a request is. It holds a slot and a lease in all phases but `WAITING` and `GONE`."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    LEAVING = "leaving"
    """Finished, aborted or retracted; compute has not yet said that no launched step names it."""
    GONE = "gone"


class Req:
    """Thread: control. One request, from its arrival to its finish.

    A request may live several times in a slot: a retraction or a failed step ends a generation, and the request waits
    again with `token_ids` grown by what it has generated.

    ::

        token_ids:  [0 ....... prompt_len)[....... prompt_len + generated)
                     the client's prompt   output so far, all delivered
    """

    __slots__ = (
        "arrival",
        "cached_tokens",
        "cursor",
        "failures",
        "finish",
        "generation",
        "key",
        "keep_tokens",
        "max_new_tokens",
        "namespace",
        "num_retractions",
        "overtaken",
        "params",
        "phase",
        "priority",
        "prompt_len",
        "queued_at",
        "radix_key",
        "rid",
        "slot",
        "started_at",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self,
        message: TokenizedReq,
        max_new_tokens: int,
        eos_token_ids: frozenset[int],
        arrival: int,
        now: float,
    ) -> None:
        self.key = message.key
        self.rid = message.rid
        self.params = message.params
        self.namespace = message.namespace
        self.priority = message.priority
        self.token_ids: Int32Array = message.token_ids
        self.radix_key = RadixKey(message.token_ids, message.namespace)
        self.prompt_len = len(message.token_ids)
        self.max_new_tokens = max_new_tokens
        own_stops = frozenset(message.params.stop_token_ids)
        self.stop_token_ids = own_stops if message.params.ignore_eos else own_stops | eos_token_ids
        self.arrival = arrival
        self.phase = Phase.WAITING
        self.slot = 0
        self.generation = 0
        self.cached_tokens: int | None = None
        self.cursor: MatchCursor | None = None
        self.finish: FinishReason | None = None
        self.keep_tokens: int | None = None
        self.num_retractions = 0
        self.failures = 0
        self.overtaken = 0
        self.queued_at = now
        self.started_at: float | None = None

    @property
    def generated(self) -> int:
        """Output tokens in `token_ids`: those of earlier lives."""
        return len(self.token_ids) - self.prompt_len

    @property
    def is_new(self) -> bool:
        """It has never held memory."""
        return self.cached_tokens is None

    @property
    def runs_to_limit(self) -> bool:
        """Nothing but `max_new_tokens` ends it."""
        return self.params.ignore_eos and not self.stop_token_ids and not self.params.stop

    @property
    def max_kv(self) -> int:
        """KV tokens that it can ever need: the last output token's are never read."""
        return max(self.prompt_len + self.max_new_tokens - 1, self.prompt_len)

    def requeue(self, token_ids: Int32Array, now: float) -> None:
        """Ends a life: it waits again, with all tokens known so far as its prompt."""
        self.queued_at = now
        self.token_ids = token_ids
        self.radix_key = RadixKey(token_ids, self.namespace)
        self.cursor = None
        self.phase = Phase.WAITING
        self.slot = 0
        self.generation = 0

    def __repr__(self) -> str:
        where = f" slot {self.slot} generation {self.generation}" if self.slot else ""
        return (
            f"Req({self.rid}, {self.phase.value}{where}, {self.prompt_len} + {self.generated} tokens, "
            f"at most {self.max_new_tokens} new)"
        )
