"""What clients and the control loop say to each other about the radix tree. The unions are in `srt.core.messages`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TreeViewReq:
    """Show the top of the tree: at most `max_nodes` nodes, breadth first, at most `max_depth` below the root (None: as
    deep as they go), with the first `head_tokens` token ids of each."""

    key: int
    max_nodes: int
    max_depth: int | None = None
    head_tokens: int = 16


@dataclass(frozen=True, slots=True, eq=False)
class TreeViewReply:
    """The top of the tree at one moment. Columns: element i speaks of node i; parents stand before their children.

    `num_nodes` and `num_pages` are of the whole tree. A node has `num_tokens` tokens, in whole pages; `lock_refs`
    requests or unsettled insertions hold it or something below it; `hits` matches passed through it, the last use was
    `ages` tree operations ago; `pending`: a step that writes it has not reported yet. Its first ids are
    ``head_ids[head_offsets[i]:head_offsets[i + 1]]``, its parent is node `parents[i]` (-1: the root), its namespace
    ``namespaces[namespace_ids[i]]``.
    """

    key: int
    page_size: int
    num_nodes: int
    num_pages: int
    parents: Int32Array
    depths: Int32Array
    num_tokens: Int32Array
    lock_refs: Int32Array
    hits: Int64Array
    ages: Int64Array
    pending: BoolArray
    num_children: Int32Array
    namespace_ids: Int32Array
    namespaces: tuple[str | None, ...]
    head_offsets: Int32Array
    head_ids: Int32Array


ChangeKind = Literal["stored", "removed", "cleared"]


@dataclass(frozen=True, slots=True, eq=False)
class TreeChange:
    """One change of the tree; a page is named by its id, which is unique as long as the page is in the tree.

    * stored: `pages` with `token_ids`, a page after the other, follow `parent_page` (-1: they begin a sequence)
    * removed: `pages` have left
    * cleared: all have left
    """

    kind: ChangeKind
    pages: Int32Array
    token_ids: Int32Array
    parent_page: int = -1
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class TreeChanges:
    """All changes of the tree since the last message of this kind, in their order."""

    changes: tuple[TreeChange, ...]
