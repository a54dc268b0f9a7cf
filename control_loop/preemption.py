"""Urgent requests take memory from those that are less so: enough of it, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from control_loop.aging import is_aged
from control_loop.cache_manager import CacheManager
from control_loop.req import Phase, Req
from radix_cache.radix_tree import TreeNode


def choose_preempted(
    urgent: Req,
    threshold: int,
    live: Iterable[Req],
    manager: CacheManager,
    suffices: Callable[[int, Sequence[Req]], bool],
) -> list[Req]:
    """Whom to retract so that `urgent` can be admitted: the least important first, of those the youngest.

    A row may be taken when `urgent` has more than `threshold` priority over it, unless it has been overtaken so often
    that nobody may go before it.

    Args:
        suffices: whether `urgent` fits when so many pages come back and those rows are gone.

    Returns:
        The shortest such row of requests; empty when all of them together would not do, or while rows are leaving:
        what they give back is waited for first.
    """
    reqs = list(live)
    if any(req.phase is Phase.LEAVING for req in reqs):
        return []
    weaker = [req for req in reqs if urgent.priority - req.priority > threshold and not is_aged(req)]
    weaker.sort(key=lambda req: (req.priority, -req.arrival))
    ransom = _Ransom(manager)
    for count, req in enumerate(weaker, 1):
        ransom.add(req.slot)
        if suffices(ransom.num_pages, weaker[:count]):
            return weaker[:count]
    return []


class _Ransom:
    """Thread: control. How many pages would become available if a growing set of rows left now.

    The pages of a row's own, and those of tree nodes that nobody but the set has locked.
    """

    def __init__(self, manager: CacheManager) -> None:
        self._manager = manager
        self._locks: Counter[TreeNode] = Counter()
        self.num_pages = 0

    def add(self, slot: int) -> None:
        self.num_pages += self._manager.num_owned(slot)
        for node in self._manager.locked_path(slot):
            self._locks[node] += 1
            if self._locks[node] == node.lock_ref:
                self.num_pages += node.num_pages
