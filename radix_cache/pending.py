"""Insertions whose pages are not written yet."""

from __future__ import annotations

from collections import Counter

from radix_cache.errors import TreeStateError
from radix_cache.tree_node import TreeNode


class PendingInsertions:
    """Thread: control. The unsettled insertions by the command whose step writes them.

    An insertion is known by its lowest node. Splits put pending nodes of the same command above that one;
    whatever lies below a pending node is pending too, with the same command or a later one. While it is
    listed here, an insertion holds one lock on its path: pages that a step is going to write must not be given
    to anyone else.
    """

    __slots__ = ("_nodes", "num_pages")

    def __init__(self) -> None:
        self._nodes: dict[int, list[TreeNode]] = {}
        self.num_pages = 0

    def add(self, node: TreeNode, pending: int) -> None:
        self.num_pages += node.num_pages
        self._nodes.setdefault(pending, []).append(node)

    def settle(self, applied: int) -> list[TreeNode]:
        """Mark what commands up to `applied` wrote as settled; return the insertions whose lock ends now."""
        settled: list[TreeNode] = []
        for pending in [pending for pending in self._nodes if pending <= applied]:
            for node in self._nodes.pop(pending):
                settled.append(node)
                part: TreeNode | None = node
                while part is not None and part.pending == pending:
                    part.pending = None
                    self.num_pages -= part.num_pages
                    part = part.parent
        return settled

    def take_tops(self) -> Counter[TreeNode]:
        """Forget all insertions, because the steps that were to write them failed.

        Returns:
            The highest pending node of each path, with the number of insertions at or below it.

        Raises:
            TreeStateError: somebody else holds a lock there; nothing is changed.
        """
        tops = Counter(map(_top, self.nodes()))
        for top, insertions in tops.items():
            if top.lock_ref != insertions:
                raise TreeStateError(
                    f"remove_pending: {top.lock_ref - insertions} locks are still held on {top!r} or "
                    "below it; unlock the requests that lean on it first"
                )
        self._nodes.clear()
        self.num_pages = 0
        return tops

    def nodes(self) -> list[TreeNode]:
        """The lowest node of each insertion."""
        return [node for nodes in self._nodes.values() for node in nodes]

    def __repr__(self) -> str:
        return f"PendingInsertions({self.num_pages} pages of commands {sorted(self._nodes)})"


def _top(node: TreeNode) -> TreeNode:
    while node.parent is not None and node.parent.pending is not None:
        node = node.parent
    return node
