"""From logits to token ids, for a whole batch at once.

Order of the filters, each on what the one before left: temperature, top-k, top-p, min-p. All of them keep a prefix of
the tokens in descending order of logit, equal logits in ascending order of id, so that a row's set is well defined.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from compute_loop.sampling_noise import TokenNoise, row_keys
from compute_loop.sampling_prefix import SHORTLIST, PrefixLimits, cut_to_prefix, shortlist
from srt.core.sampling_params import SamplingParams

RowArray = npt.NDArray[np.int64]

_ARGMAX_BLOCK = 128


@dataclass(frozen=True, slots=True, eq=False)
class SamplingPlan:
    """Rows of a batch by how they are sampled: disjoint sets of row numbers, ascending.

    Attributes:
        greedy: the largest logit.
        unsorted: a random choice among all tokens, or all above a share of the likeliest (min-p).
        sorted: a random choice that needs the order of the likeliest tokens (top-k, top-p).
        min_p: whether some row has a min-p.
    """

    greedy: RowArray
    unsorted: RowArray
    sorted: RowArray
    min_p: bool


class SlotSampling:
    """Thread: compute. Sampling parameters in columns indexed by slot.

    `temperature`, `top_p`, `min_p` (float32), `top_k` (int32) and `seed` (int64) are on the device. What planning needs
    to know of them is on the host, so that it never waits for the device.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self.noise = TokenNoise(vocab_size, device)
        self._greedy = np.ones(num_slots, np.bool_)
        self._sorts = np.zeros(num_slots, np.bool_)
        self._floors = np.zeros(num_slots, np.bool_)
        self.temperature = torch.ones(num_slots, dtype=torch.float32, device=device)
        self.top_k = torch.full((num_slots,), vocab_size, dtype=torch.int32, device=device)
        self.top_p = torch.ones(num_slots, dtype=torch.float32, device=device)
        self.min_p = torch.zeros(num_slots, dtype=torch.float32, device=device)
        self.seed = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def set(self, slot: int, params: SamplingParams) -> None:
        """From now on `slot` is sampled with `params`, which are valid (`SamplingParams.validate`)."""
        top_k = params.top_k if 0 < params.top_k < self.vocab_size else self.vocab_size
        self._greedy[slot] = params.is_greedy
        self._sorts[slot] = not params.is_greedy and (top_k < self.vocab_size or params.top_p < 1.0)
        self._floors[slot] = not params.is_greedy and params.min_p > 0.0
        # A greedy row is never divided by its temperature, which may be 0.
        self.temperature[slot] = 1.0 if params.is_greedy else params.temperature
        self.top_k[slot] = top_k
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.seed[slot] = params.seed

    def plan(self, slots: npt.NDArray[np.integer]) -> SamplingPlan:
        """How rows with these slots are to be sampled; on the host."""
        greedy, sorts = self._greedy[slots], self._sorts[slots]
        return SamplingPlan(
            greedy=np.flatnonzero(greedy),
            unsorted=np.flatnonzero(~greedy & ~sorts),
            sorted=np.flatnonzero(~greedy & sorts),
            min_p=bool(self._floors[slots].any()),
        )

    def __repr__(self) -> str:
        num_slots = len(self._greedy)
        return (
            f"SlotSampling({num_slots} slots: {int(self._greedy.sum())} greedy, {int(self._sorts.sum())} with top-k or "
            f"top-p, vocab {self.vocab_size}, {self.device})"
        )


def sample(
    logits: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    state: SlotSampling,
    plan: SamplingPlan | None = None,
) -> torch.Tensor:
    """One token id for each row.

    Args:
        logits: ``[rows, vocab]``, any float type; not changed. Tokens at -inf are never chosen while another is above.
        slots: int ``[rows]``, whose parameters to use.
        positions: int ``[rows]``, index of the token to be sampled in its sequence: with the row's seed it determines
            the random numbers, so that a row's choice is the same in any batch, slot and order.
        state: the parameters.
        plan: ``state.plan(slots)``, made by a caller that has `slots` on the host. Without it the slots are fetched,
            which waits for the device.

    Returns:
        int32 ``[rows]``.
    """
    plan = plan or state.plan(slots.numpy(force=True))
    num_rows = len(logits)
    if len(plan.greedy) == num_rows:
        return argmax(logits).to(torch.int32)
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if len(plan.greedy):
        rows = torch.from_numpy(plan.greedy).to(logits.device)
        token_ids[rows] = argmax(logits[rows])
    for chosen, choose in ((plan.unsorted, _choose_unsorted), (plan.sorted, _choose_sorted)):
        if len(chosen):
            rows = torch.from_numpy(chosen).to(logits.device)
            token_ids[rows] = choose(_RandomRows.gather(logits, slots, positions, state, rows), state, plan)
    return token_ids.to(torch.int32)


def argmax(values: torch.Tensor) -> torch.Tensor:
    """Index of the largest of each row, the lowest one among equals; int64 ``[rows]``.

    In two stages, of which the first is a plain maximum: that is vectorised on a CPU, torch.argmax is not (10x slower).
    """
    num_rows, width = values.shape
    num_blocks = width // _ARGMAX_BLOCK
    if num_blocks < 2:
        return values.argmax(dim=1)
    blocks = values[:, : num_blocks * _ARGMAX_BLOCK].view(num_rows, num_blocks, _ARGMAX_BLOCK)
    largest = blocks.amax(dim=2)
    rest = values[:, num_blocks * _ARGMAX_BLOCK :]
    if rest.shape[1]:
        largest = torch.cat((largest, rest.amax(dim=1, keepdim=True)), dim=1)
    # The last window may reach back into the block before it, where everything is smaller than in the chosen block.
    first = (largest.argmax(dim=1, keepdim=True) * _ARGMAX_BLOCK).clamp_(max=width - _ARGMAX_BLOCK)
    window = first + torch.arange(_ARGMAX_BLOCK, device=values.device)
    return first.squeeze(1) + values.gather(1, window).argmax(dim=1)


@dataclass(frozen=True, slots=True, eq=False)
class _RandomRows:
    """Rows that are sampled alike: `scores` are float32 ``(logits - largest) / temperature``, `keys` make the noise.

    Scores are 0 for the likeliest token and finite for any temperature.
    """

    scores: torch.Tensor
    keys: torch.Tensor
    limits: PrefixLimits

    @classmethod
    def gather(
        cls,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        state: SlotSampling,
        rows: torch.Tensor,
    ) -> _RandomRows:
        own = slots[rows].long()
        scores = (logits if len(rows) == len(logits) else logits[rows]).float()
        scores = (scores - scores.amax(dim=1, keepdim=True)).div_(state.temperature[own].unsqueeze(1))
        limits = PrefixLimits(state.top_k[own].long(), state.top_p[own], state.min_p[own])
        return cls(scores, row_keys(state.seed[own], positions[rows]), limits)


def _choose_unsorted(rows: _RandomRows, state: SlotSampling, plan: SamplingPlan) -> torch.Tensor:
    scores = rows.scores
    if plan.min_p:
        scores = torch.where(scores < rows.limits.min_p.log().unsqueeze(1), -torch.inf, scores)
    return _choose_any(scores, rows.keys, state)


def _choose_sorted(rows: _RandomRows, state: SlotSampling, plan: SamplingPlan) -> torch.Tensor:
    # Whether a shortlist is enough must be known on the host: on other devices that would wait for them.
    if rows.scores.device.type != "cpu" or state.vocab_size <= SHORTLIST:
        return _choose_any(cut_to_prefix(rows.scores, rows.limits), rows.keys, state)
    likeliest = shortlist(rows.scores, rows.limits)
    best = (likeliest.scores + state.noise.of(rows.keys, likeliest.token_ids)).argmax(dim=1, keepdim=True)
    token_ids = likeliest.token_ids.gather(1, best).squeeze(1)
    rest = (~likeliest.decided).nonzero().squeeze(1)
    if len(rest):
        cut = cut_to_prefix(rows.scores[rest], rows.limits.select(rest))
        token_ids[rest] = _choose_any(cut, rows.keys[rest], state)
    return token_ids


def _choose_any(scores: torch.Tensor, keys: torch.Tensor, state: SlotSampling) -> torch.Tensor:
    """A random choice among all tokens above -inf; `scores` are used up."""
    state.noise.add_to(scores, keys)
    return argmax(scores)
