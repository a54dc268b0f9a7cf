"""Shows the tree to people and routers."""

from __future__ import annotations

import numpy as np

from control_loop.parts import LoopParts
from radix_cache.key import TOKEN_BYTES
from radix_cache.view import TreeView
from srt.core.tree_messages import TreeViewReply, TreeViewReq


class TreeGuide:
    """Thread: control. Answers at once: a view is bounded, and costs control about a microsecond a node."""

    def __init__(self, parts: LoopParts) -> None:
        self._cache = parts.manager.cache
        self._port = parts.port

    def show(self, message: TreeViewReq) -> None:
        view = self._cache.snapshot(message.max_nodes, message.head_tokens, message.max_depth)
        self._port.send(make_reply(message.key, view))


def make_reply(key: int, view: TreeView) -> TreeViewReply:
    """A view in columns that can cross a process."""
    numbers = {namespace: number for number, namespace in enumerate(dict.fromkeys(view.namespaces))}
    ends = np.cumsum([0, *(len(head) // TOKEN_BYTES for head in view.heads)])
    return TreeViewReply(
        key=key,
        page_size=view.page_size,
        num_nodes=view.num_nodes,
        num_pages=view.num_pages,
        parents=np.array(view.parents, np.int32),
        depths=np.array(view.depths, np.int32),
        num_tokens=np.array(view.num_tokens, np.int32),
        lock_refs=np.array(view.lock_refs, np.int32),
        hits=np.array(view.hits, np.int64),
        ages=np.array(view.ages, np.int64),
        pending=np.array(view.pending, np.bool_),
        num_children=np.array(view.num_children, np.int32),
        namespace_ids=np.array([numbers[namespace] for namespace in view.namespaces], np.int32),
        namespaces=tuple(numbers),
        head_offsets=ends.astype(np.int32),
        head_ids=np.frombuffer(b"".join(view.heads), np.int32),
    )
