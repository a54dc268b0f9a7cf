"""Which tokens top-k, top-p and min-p leave: a prefix of the tokens in descending order of score.

Two ways to the same set. `shortlist` sorts the likeliest few, which is quick and mostly enough. `cut_to_prefix` sorts
the scores of the whole vocabulary (not the ids: that is ten times cheaper on a CPU) to find the lowest one that is
kept: for rows whose prefix is longer, and where asking whether it is would wait for the device. Which way a row goes
depends on that row alone, so its result does not depend on its batch.

Scores are float32 ``[rows, vocab]``: log-probabilities up to a constant, the largest of each row 0. Masses are in units
of the likeliest token's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

SHORTLIST = 128
"""Tokens that `shortlist` sorts."""

_BLOCK = 32
"""Tokens of which only the largest is compared in the first stage of a selection."""

_SUM_BLOCK = 128

_DEEPEST = float(np.finfo(np.float32).max)
"""The depth of the lowest finite score: tokens at -inf are not kept by any limit."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefixLimits:
    """A row each: `top_k` int64 in [1, vocab], `top_p` float32 in (0, 1], `min_p` float32 in [0, 1]."""

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    def select(self, rows: torch.Tensor) -> PrefixLimits:
        return PrefixLimits(self.top_k[rows], self.top_p[rows], self.min_p[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Shortlist:
    """The likeliest tokens of each row, in descending order, equal ones by ascending id.

    `scores` ``[rows, SHORTLIST]`` are -inf for those that are not kept. Rows that are not `decided` may keep more, or
    others equal to the last one: they are to be cut from the whole vocabulary.
    """

    token_ids: torch.Tensor
    scores: torch.Tensor
    decided: torch.Tensor


def shortlist(scores: torch.Tensor, limits: PrefixLimits) -> Shortlist:
    """Applies `limits` to the likeliest tokens; the vocabulary must be larger than `SHORTLIST`."""
    vocab_size = scores.shape[1]
    best, token_ids = _likeliest(scores)
    mass = best.exp().cumsum(dim=1)
    total = mass.gather(1, limits.top_k.clamp(max=SHORTLIST).unsqueeze(1) - 1)
    unlimited = limits.top_k == vocab_size
    if bool(unlimited.any()):
        total = torch.where(unlimited.unsqueeze(1), _row_sums(scores.exp()), total)
    num_kept = _count_kept(-best, mass, total, limits)
    kept = torch.arange(SHORTLIST, device=best.device) < num_kept
    last_kept = best.gather(1, num_kept - 1).squeeze(1)
    # All tokens above -inf being listed, the total is known for any top-k.
    total_known = (limits.top_k <= SHORTLIST) | unlimited | (best[:, -1] == -torch.inf)
    decided = total_known & (last_kept > best[:, -1])
    return Shortlist(token_ids, best.masked_fill_(~kept, -torch.inf), decided)


def cut_to_prefix(scores: torch.Tensor, limits: PrefixLimits) -> torch.Tensor:
    """The scores with all tokens that are not kept at -inf, new memory.

    The picture of a row, tokens in descending order of score::

        [ above the threshold: kept )[ equal to it: the first by id are kept )[ below: gone ]
    """
    depths = _sorted_depths(scores)
    mass = depths.neg().exp_().cumsum(dim=1)
    total = mass.gather(1, limits.top_k.unsqueeze(1) - 1)
    num_kept = _count_kept(depths, mass, total, limits)
    deepest = depths.gather(1, num_kept - 1)
    threshold = -deepest
    cut = torch.where(scores < threshold, -torch.inf, scores)
    num_left = torch.searchsorted(depths, deepest, right=True)
    if scores.device.type != "cpu" or not torch.equal(num_left, num_kept):
        equal = scores == threshold
        num_equal = num_kept - torch.searchsorted(depths, deepest)
        cut.masked_fill_(equal & (equal.cumsum(dim=1) > num_equal), -torch.inf)
    return cut


def _count_kept(
    depths: torch.Tensor, mass: torch.Tensor, total: torch.Tensor, limits: PrefixLimits
) -> torch.Tensor:
    """How many of the likeliest n tokens of each row are kept, at least 1; int64 ``[rows, 1]``.

    Args:
        depths: ``[rows, n]``, how far their scores are below 0, ascending.
        mass: ``[rows, n]``, their cumulative mass.
        total: ``[rows, 1]``, mass of all tokens that top-k leaves.
    """
    top_p, max_depth = limits.top_p.unsqueeze(1), -limits.min_p.log().unsqueeze(1)
    wanted = torch.where(top_p < 1.0, top_p * total, torch.inf)
    # A token is kept if the mass before it is less than what is wanted: one more than have less in all.
    by_mass = torch.searchsorted(mass, wanted) + 1
    by_depth = torch.searchsorted(depths, max_depth.clamp_(max=_DEEPEST), right=True)
    return torch.minimum(torch.minimum(by_mass, by_depth), limits.top_k.unsqueeze(1)).clamp_(
        1, depths.shape[1]
    )


def _sorted_depths(scores: torch.Tensor) -> torch.Tensor:
    """The negated scores of each row in ascending order."""
    if scores.device.type == "cpu":
        # numpy sorts bare floats with vector instructions: 0.35 ms for 49k, torch takes 4.7 ms.
        return torch.from_numpy(np.sort(scores.neg().numpy(), axis=1))
    return scores.neg().sort(dim=1).values


def _row_sums(values: torch.Tensor) -> torch.Tensor:
    """Sums of rows ``[rows, 1]``.

    Block by block: a plain sum of a single row would be split among threads, and round differently then.
    """
    num_rows, width = values.shape
    num_blocks = width // _SUM_BLOCK
    blocks = values[:, : num_blocks * _SUM_BLOCK].view(num_rows, num_blocks, _SUM_BLOCK).sum(dim=2)
    rest = values[:, num_blocks * _SUM_BLOCK :]
    return blocks.sum(dim=1, keepdim=True) + rest.sum(dim=1, keepdim=True)


def _likeliest(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The `SHORTLIST` largest scores of each row and their ids, in descending order, equal ones by ascending id.

    Which of several tokens that equal the last one are among them is left open.
    """
    best, token_ids = _largest(scores)
    # One integer that orders like (score, -id): the bits of floats <= 0 ascend while the floats descend.
    order = ((best.view(torch.int32) & 0x7FFFFFFF).long() << 32 | token_ids).argsort(dim=1)
    return best.gather(1, order), token_ids.gather(1, order)


def _largest(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `_likeliest`, in any order.

    The n largest are all in the n blocks with the largest maxima (or in the incomplete block at the end), so that the
    selection proper sees a fraction of the vocabulary.
    """
    num_rows, vocab_size = scores.shape
    num_blocks = vocab_size // _BLOCK
    if num_blocks < 4 * SHORTLIST:
        best, token_ids = scores.topk(SHORTLIST, dim=1, sorted=False)
        return best, token_ids
    maxima = scores[:, : num_blocks * _BLOCK].view(num_rows, num_blocks, _BLOCK).amax(dim=2)
    blocks = maxima.topk(SHORTLIST, dim=1, sorted=False).indices
    ids = (blocks.unsqueeze(2) * _BLOCK + torch.arange(_BLOCK, device=scores.device)).flatten(1)
    rest = torch.arange(num_blocks * _BLOCK, vocab_size, device=scores.device)
    ids = torch.cat((ids, rest.expand(num_rows, -1)), dim=1)
    best, chosen = scores.gather(1, ids).topk(SHORTLIST, dim=1, sorted=False)
    return best, ids.gather(1, chosen)
