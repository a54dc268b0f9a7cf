"""The view of the tree that control gives: what the tree is, whatever goes on meanwhile."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from srt.core.messages import PauseReq
from srt.core.tree_messages import TreeViewReply, TreeViewReq
from tests.rig import Rig


def view(rig: Rig, max_nodes: int = 100, max_depth: int | None = None, head_tokens: int = 4) -> TreeViewReply:
    rig.others.clear()
    rig.send(TreeViewReq(77, max_nodes, max_depth, head_tokens))
    rig.control.step()
    rig.read()
    (reply,) = (other for other in rig.others if isinstance(other, TreeViewReply))
    assert reply.key == 77
    return reply


def test_a_view_has_the_tree_in_columns() -> None:
    rig = Rig(page_size=2, chunk=16)
    for tail in ([7, 7], [8, 8]):
        rig.submit([1, 2, 3, 4, *tail, 5], max_new_tokens=1, namespace="tenant")
    rig.submit([9, 9, 9], max_new_tokens=1)
    rig.run()
    reply = view(rig)
    assert (reply.page_size, reply.num_nodes, reply.num_pages) == (2, 4, 5)
    assert reply.parents.tolist() in ([-1, -1, 0, 0], [-1, -1, 1, 1])
    assert sorted(reply.num_tokens.tolist()) == [2, 2, 2, 4]
    assert reply.depths.tolist() == [1, 1, 2, 2]
    names = [reply.namespaces[number] for number in reply.namespace_ids]
    offsets, ids = reply.head_offsets.tolist(), reply.head_ids.tolist()
    heads = [tuple(ids[start:end]) for start, end in pairwise(offsets)]
    assert set(zip(names, heads, strict=True)) == {
        ("tenant", (1, 2, 3, 4)),
        ("tenant", (7, 7)),
        ("tenant", (8, 8)),
        (None, (9, 9)),
    }
    assert not reply.pending.any() and not reply.lock_refs.any()
    assert view(rig, max_depth=1).depths.tolist() == [1, 1]
    assert view(rig, max_nodes=3, head_tokens=0).head_offsets.tolist() == [0, 0, 0, 0]


def test_a_view_of_an_empty_tree_is_empty() -> None:
    for reply in (view(Rig()), view(Rig(radix_cache=False))):
        assert (reply.num_nodes, reply.num_pages, len(reply.parents)) == (0, 0, 0)
        assert reply.head_offsets.tolist() == [0] and reply.namespaces == ()


def test_what_a_step_is_going_to_write_is_shown_as_pending() -> None:
    rig = Rig(page_size=4, chunk=8)
    rig.submit(range(1, 10), max_new_tokens=4)
    rig.control.step()
    reply = view(rig)
    assert reply.pending.tolist() == [True]
    assert reply.lock_refs.tolist() == [2], "of the row, and of the insertion"
    rig.run()
    assert not view(rig).pending.any()


@pytest.mark.parametrize("seed", range(4))
def test_views_disturb_nothing_and_never_contradict_themselves(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(num_pages=12, page_size=2, chunk=4)
    for _ in range(12):
        rig.submit(rng.choices(range(1, 4), k=rng.randint(1, 12)), max_new_tokens=rng.randint(1, 6))
    for _ in range(120):
        (rig.control if rng.random() < 0.5 else rig.compute).step()
        rig.read()
        reply = view(rig, max_nodes=1000)
        assert len(reply.parents) == reply.num_nodes, f"seed {seed}"
        assert int(reply.num_tokens.sum()) == reply.num_pages * 2
        inner = reply.parents[reply.parents >= 0]
        assert np.array_equal(np.bincount(inner, minlength=reply.num_nodes), reply.num_children)
        assert (reply.parents < np.arange(reply.num_nodes)).all(), "parents stand first"
        assert (reply.depths == np.where(reply.parents < 0, 1, reply.depths[reply.parents] + 1)).all()
    rig.run(rng)
    rig.check_answers()
    rig.check_drained()


def test_a_paused_engine_shows_its_tree() -> None:
    rig = Rig(page_size=2, chunk=8)
    rig.submit([1, 2, 3, 4, 5], max_new_tokens=3)
    rig.run()
    rig.send(PauseReq(5, "in_place"))
    rig.run()
    assert view(rig).num_pages == 3
