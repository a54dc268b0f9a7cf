"""Which pages of the tree are saved, in which order: a walk that goes on in pieces while the tree changes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radix_cache.key import TOKEN_BYTES
from radix_cache.tree_node import PAGE_ID_BYTES, TreeNode
from srt.core.messages import Int32Array
from srt.core.save_messages import NO_RECORD, SavedRun

GATHER_NODES = 1000
"""Nodes noted down in one pass of control: about 0.3 ms."""


@dataclass(frozen=True, slots=True, eq=False)
class SaveSlice:
    """Pages to copy in one go. `nodes` hold them: locked until they are copied."""

    runs: tuple[SavedRun, ...]
    pages: Int32Array
    nodes: tuple[TreeNode, ...]


@dataclass(slots=True, eq=False)
class _Part:
    """A node as it was when its path was looked at: `done` of its pages have been put into slices."""

    node: TreeNode
    salt: bytes
    tokens: bytes
    pages: bytes
    done: int = 0

    @property
    def num_left(self) -> int:
        return len(self.pages) // PAGE_ID_BYTES - self.done


class SaveWalk:
    """Thread: control. Every settled page below `root`, most recently used first, parents before children.

    The tree goes on living between two calls, and no lock is held then::

        path    [0 ............ known)[known ..... done)[done ........ end)
                 records of other      records of this   the next slices, if
                 paths, or none        path              `node` still ends there

    A node is known by its end, which it keeps for life unless it is a leaf that is cut. So as long as the lowest node
    of a path is linked and its path is as long as it was, the pages noted down are still the tree's. Otherwise what is
    left of the path is given up: its record of the first pages stays right. What is inserted meanwhile is not saved,
    unless it becomes an ancestor of what is.
    """

    def __init__(self, root: TreeNode, page_size: int, max_pages: int) -> None:
        self._root = root
        self._stride = page_size * TOKEN_BYTES
        self._max_pages = max_pages
        self._to_visit = deque([root])
        self._found: list[TreeNode] = []
        self._used: list[int] = []
        self._order: npt.NDArray[np.intp] = np.empty(0, np.intp)
        self._next = 0
        self._path: deque[_Part] = deque()
        self._path_bytes = 0
        self._last_record: dict[TreeNode, int] = {root: NO_RECORD}
        self._previous = NO_RECORD
        self.num_pages = 0

    def gather(self, budget: int = GATHER_NODES) -> bool:
        """Notes down what there is to save, `budget` nodes at most; False when nothing is left to note down."""
        while self._to_visit and budget:
            budget -= 1
            node = self._to_visit.popleft()
            if not self._is_linked(node):
                continue
            if node is not self._root:
                self._found.append(node)
                self._used.append(-node.last_access)
            self._to_visit.extend(node.child_nodes())
        if self._to_visit:
            return True
        if self._used:
            self._order, self._used = np.argsort(np.array(self._used, np.int64)), []
        return False

    def next_slice(self, max_pages: int) -> SaveSlice | None:
        """The next `max_pages` pages or fewer; None when all that can be saved has been."""
        if self._path and not self._still_ends(self._path[-1].node):
            self._path.clear()
        runs: list[SavedRun] = []
        pages: list[bytes] = []
        nodes: list[TreeNode] = []
        room = min(max_pages, self._max_pages - self.num_pages)
        while room > 0 and (self._path or self._open_path()):
            part = self._path[0]
            count = min(room, part.num_left)
            room -= count
            runs.append(self._run(part, count))
            pages.append(part.pages[part.done * PAGE_ID_BYTES : (part.done + count) * PAGE_ID_BYTES])
            nodes.append(part.node)
            part.done += count
            self.num_pages += count
            self._previous = self.num_pages - 1
            if part.num_left == 0:
                self._last_record[part.node] = self._previous
                self._path.popleft()
        if not runs:
            return None
        return SaveSlice(tuple(runs), np.frombuffer(b"".join(pages), np.int32), tuple(nodes))

    def _run(self, part: _Part, count: int) -> SavedRun:
        tokens = part.tokens[part.done * self._stride : (part.done + count) * self._stride]
        salt = part.salt if self._previous == NO_RECORD else b""
        return SavedRun(self._previous, salt, tokens, count)

    def _open_path(self) -> bool:
        """Takes the next node that has not been saved, and what of its path has not; False when there is none."""
        while self._next < len(self._order):
            node = self._found[self._order[self._next]]
            self._next += 1
            if node in self._last_record or not self._is_linked(node) or node.pending is not None:
                continue
            part = node
            while part not in self._last_record:
                # Only under the root an edge is longer than a page: the rest of it is the salt.
                self._path.appendleft(_Part(part, part.edge[self._stride :], part.tokens, part.pages))
                assert part.parent is not None
                part = part.parent
            self._previous = self._last_record[part]
            self._path_bytes = self._length_of(node)
            return True
        return False

    def _is_linked(self, node: TreeNode) -> bool:
        """The node is in the tree: all above it are then, too."""
        return node.parent is not None or node is self._root

    def _still_ends(self, node: TreeNode) -> bool:
        return self._is_linked(node) and self._length_of(node) == self._path_bytes

    def _length_of(self, node: TreeNode) -> int:
        length = 0
        while node.parent is not None:
            length += len(node.tokens)
            node = node.parent
        return length

    def __repr__(self) -> str:
        return f"SaveWalk({self.num_pages} pages so far, {len(self._found) - self._next} nodes left)"
