"""The top of the radix tree as people see it: token ids become text, columns become rows."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from srt.core.tree_messages import TreeViewReply
from srt.server import operations
from srt.server.admin_api import in_time
from srt.server.frontend import Frontend
from srt.server.protocol import TreeQuery
from srt.server.tokenizer import Tokenizer
from srt.server.tree_rows import ShownNode, ShownTree

CUT_CHARACTER = "\N{REPLACEMENT CHARACTER}"


async def show_tree(frontend: Frontend, query: TreeQuery) -> ShownTree:
    """Asks the engine, and decodes in a thread of its own.

    Raises:
        Unavailable: there is no engine, or it does not answer.
    """
    reply = await in_time(operations.view_tree(frontend.client, query.nodes, query.depth, query.head))
    return await asyncio.to_thread(shown, reply, frontend.tokenizer)


def shown(reply: TreeViewReply, tokenizer: Tokenizer) -> ShownTree:
    """The rows of a view. A character through which the edge of a head goes is left out."""
    parents, num_tokens = reply.parents.tolist(), reply.num_tokens.tolist()
    num_children = reply.num_children.tolist()
    hidden = list(num_children)
    starts: list[int] = []
    for parent in parents:
        starts.append(starts[parent] + num_tokens[parent] if parent >= 0 else 0)
        if parent >= 0:
            hidden[parent] -= 1
    ids = reply.head_ids.tolist()
    heads = [ids[start:end] for start, end in pairwise(reply.head_offsets.tolist())]
    columns = zip(
        *(range(len(parents)), (parent if parent >= 0 else None for parent in parents)),
        *(reply.depths.tolist(), starts, num_tokens, reply.lock_refs.tolist(), reply.hits.tolist()),
        *(reply.ages.tolist(), reply.pending.tolist(), num_children, hidden),
        (reply.namespaces[number] for number in reply.namespace_ids.tolist()),
        heads,
        (tokenizer.decode(head, skip_special_tokens=False).strip(CUT_CHARACTER) for head in heads),
        strict=True,
    )
    nodes = [ShownNode(*row) for row in columns]
    return ShownTree(reply.page_size, reply.num_nodes, reply.num_pages * reply.page_size, len(nodes), nodes)
