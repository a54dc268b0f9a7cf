"""What an operator asks of a running engine; every question has one reply."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from srt.core.errors import TwinloopError
from srt.core.messages import (
    ContinueReply,
    ContinueReq,
    EngineStats,
    FlushReply,
    FlushReq,
    PauseMode,
    PauseReply,
    PauseReq,
    SaveReply,
    SaveReq,
    StatsReply,
    StatsReq,
)
from srt.core.tree_messages import TreeViewReply, TreeViewReq
from srt.server.engine_client import EngineClient

log = logging.getLogger(__name__)


async def stats(client: EngineClient) -> EngineStats:
    """What the engine is doing now.

    Raises:
        Unavailable: there is no engine. So do all functions here.
    """
    reply: StatsReply = await client.ask(StatsReq)
    return reply.stats


async def flush(client: EngineClient, patience: float = 0.0) -> int:
    """Empties the prefix cache, when the work has ended within `patience` seconds; how many tokens it held.

    Raises:
        Busy: the engine still has work.
    """
    reply: FlushReply = await client.ask(partial(FlushReq, timeout=patience))
    if reply.error is not None:
        raise reply.error.to_exception()
    return reply.flushed_tokens


async def pause(client: EngineClient, mode: PauseMode) -> PauseReply:
    """Lets the engine stand still until `resume`, and waits until it does."""
    reply: PauseReply = await client.ask(partial(PauseReq, mode=mode))
    return reply


async def resume(client: EngineClient) -> bool:
    """Lets a paused engine go on; whether it was paused."""
    reply: ContinueReply = await client.ask(ContinueReq)
    return reply.was_paused


async def view_tree(
    client: EngineClient, max_nodes: int, max_depth: int | None, head_tokens: int
) -> TreeViewReply:
    """The top of the radix tree now."""
    question = partial(TreeViewReq, max_nodes=max_nodes, max_depth=max_depth, head_tokens=head_tokens)
    reply: TreeViewReply = await client.ask(question)
    return reply


async def save_cache(client: EngineClient) -> SaveReply:
    """Writes the prefix cache to --cache-dir, while requests run, and waits until it is on disk.

    Raises:
        InvalidRequest: the server has no --cache-dir.
        CacheFileError: it could not be written; the one saved before is still there.
    """
    reply: SaveReply = await client.ask(SaveReq)
    if reply.error is not None:
        raise reply.error.to_exception()
    return reply


async def save_before_end(client: EngineClient, seconds: float) -> None:
    """On a shutdown, when no request is live: saves what there is, or says in the log why not."""
    try:
        async with asyncio.timeout(seconds):
            while (last := await stats(client)).num_slots_in_use:
                pass  # the last pages reach the tree when their row is dropped, a step behind the client's last word
            if last.num_cached_tokens:
                await save_cache(client)
    except TimeoutError:
        log.warning("the prefix cache was not saved within --cache-save-timeout %g s", seconds)
    except TwinloopError as error:
        log.warning("the prefix cache was not saved: %s", error.message)
