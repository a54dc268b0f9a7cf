"""Saving and restoring the cache through both loops and the helper, in any order, under traffic and under faults."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from control_loop.cache_saver import STALL_SECONDS
from radix_cache.tree_node import TreeNode
from srt.core.messages import ContinueReq, FlushReply, FlushReq, PauseReq, SaveReply, SaveReq
from srt.server.cache_store.file_format import FILE_NAME
from tests.control_loop.corner import Witness, finish_all, prompt, until
from tests.control_loop.ownership import check_kv, tokens_of
from tests.rig import Rig
from tests.schedules import Poison, Traffic, play


def cached_paths(rig: Rig) -> set[tuple[object, ...]]:
    """Every cached prefix in whole pages, by its namespace's salt and its tokens."""
    size = rig.config.cache.page_size
    found: set[tuple[object, ...]] = set()
    stack: list[tuple[TreeNode, tuple[object, ...]]] = [
        (node, (node.edge[size * 4 :],)) for node in rig.control._manager.cache.root.child_nodes()
    ]
    while stack:
        node, before = stack.pop()
        ids = tokens_of(node)
        found.update((*before, *ids[:end]) for end in range(size, len(ids) + 1, size))
        stack.extend((child, (*before, *ids)) for child in node.child_nodes())
    return found


def filled(cache_dir: Path, **options: object) -> Rig:
    """Shared prefixes in two namespaces, all of it settled."""
    rig = Rig(**{"num_pages": 64, "cache_dir": str(cache_dir), **options})  # type: ignore[arg-type]
    for index in range(4):
        rig.submit([*prompt(13), *prompt(3 * index + 1, start=index)], 6, "a" if index % 2 else None)
    finish_all(rig)
    return rig


def again(rig: Rig, **options: object) -> Rig:
    """The same server, started again."""
    cache = rig.config.cache
    chosen = {"num_pages": 64, "page_size": cache.page_size, "cache_dir": cache.cache_dir, **options}
    restarted = Rig(**chosen)  # type: ignore[arg-type]
    check_kv(restarted)
    restarted.check_drained()
    return restarted


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_a_restarted_engine_has_the_same_prefixes_and_the_same_kv(
    tmp_path: Path, page_size: int, asynchronous: bool
) -> None:
    rig = filled(tmp_path, page_size=page_size, asynchronous=asynchronous)
    check_kv(rig)
    reply = rig.save()
    rig.check_drained()
    assert reply.error is None and reply.saved_tokens == rig.stats().num_cached_tokens > 0
    assert reply.num_bytes == (tmp_path / FILE_NAME).stat().st_size
    restarted = again(rig)
    assert restarted.restored == reply.saved_tokens
    assert cached_paths(restarted) == cached_paths(rig)
    answers = [
        (restarted.submit(answer.request.token_ids.tolist(), 6, answer.request.namespace), answer)
        for answer in list(rig.answers.values())
    ]
    finish_all(restarted)
    for new, old in answers:
        assert new.token_ids == old.token_ids
        assert new.cached_tokens == (len(old.request.token_ids) - 1) // page_size * page_size
    assert restarted.flush().error is None
    assert restarted.stats().num_free_tokens == restarted.stats().max_total_num_tokens


@pytest.mark.parametrize("seed", range(24))
def test_saves_under_random_traffic_hold_right_pages_and_change_no_answer(tmp_path: Path, seed: int) -> None:
    """Tiny pools, aborts, evictions, and on every third seed steps that fail; the file is right whenever it is read."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    page_size = rng.choice((1, 2, 4))
    fault = Poison(22) if seed % 3 == 0 else None
    rig = Rig(
        num_pages=96 // page_size,
        page_size=page_size,
        chunk=8,
        asynchronous=seed % 2 == 0,
        fault=fault,
        cache_dir=str(tmp_path),
    )
    Witness(rig.runner)
    step, asked = rig.control.step, 0

    def step_and_save() -> bool:
        nonlocal asked
        if rng.random() < 0.03:
            asked += 1
            rig.send(SaveReq(5000 + asked))
        if rng.random() < 0.02:
            rig.send(FlushReq(9000))
        return step()

    rig.control.step = step_and_save  # type: ignore[method-assign]
    play(rig, rng, Traffic(num_requests=30))
    rig.control.step = step  # type: ignore[method-assign]
    finish_all(rig)
    replies = [reply for reply in rig.others if isinstance(reply, SaveReply)]
    assert sorted(reply.key for reply in replies) == [5000 + index + 1 for index in range(asked)]
    assert all(reply.error is None for reply in replies)
    assert asked, f"seed {seed} asked for no save"
    check_kv(rig)
    restarted = again(rig, num_pages=96 // page_size)
    assert restarted.restored == replies[-1].saved_tokens
    for answer in list(rig.answers.values()):
        restarted.submit(answer.request.token_ids.tolist(), 4, answer.request.namespace)
    finish_all(restarted)


def test_who_asks_during_a_save_gets_the_next_one_and_all_are_answered(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    rig.others.clear()
    rig.send(SaveReq(1))
    rig.send(SaveReq(2))
    rig.control.step()
    rig.control.step()
    late = rig.submit(prompt(9, start=12), 4)
    rig.send(SaveReq(3))
    finish_all(rig)
    replies = {reply.key: reply for reply in rig.others if isinstance(reply, SaveReply)}
    assert replies[1].saved_tokens == replies[2].saved_tokens
    assert replies[3].saved_tokens > replies[1].saved_tokens, "the late request is in it"
    assert late.ended


def test_nothing_is_locked_while_the_disk_is_waited_for(tmp_path: Path) -> None:
    """A request that needs the whole pool gets it, though the helper does nothing; then what is gone is not saved."""
    rig = filled(tmp_path, num_pages=16)
    rig.send(SaveReq(1))
    for _ in range(20):
        rig.control.step()
        rig.compute.step()
    rig.read()
    assert rig.stats().num_locked_tokens == 0
    greedy = rig.submit(prompt(40, start=5), 20, ignore_eos=True)
    for _ in range(200):
        rig.control.step()
        rig.compute.step()
    rig.read()
    assert greedy.ended, "it waited for the disk"
    assert not [reply for reply in rig.others if isinstance(reply, SaveReply)]
    finish_all(rig)
    (reply,) = [reply for reply in rig.others if isinstance(reply, SaveReply)]
    assert reply.error is None
    again(rig, num_pages=16)


def test_a_path_that_is_cut_between_two_slices_is_saved_as_far_as_it_was_copied(tmp_path: Path) -> None:
    rig = Rig(num_pages=24, page_size=1, cache_dir=str(tmp_path))
    first = rig.submit(prompt(20), 1)
    finish_all(rig)
    rig.send(SaveReq(1))
    for _ in range(20):  # both buffers are full, the helper has written none
        rig.control.step()
        rig.compute.step()
    rig.submit(prompt(12, start=9), 1)
    for _ in range(40):
        rig.control.step()
        rig.compute.step()
    assert rig.stats().evicted_tokens_total == 8, "the end of the first prompt has gone"
    finish_all(rig)
    restarted = again(rig, num_pages=24)
    assert restarted.restored == 10
    known = restarted.submit(first.request.token_ids.tolist(), 1)
    finish_all(restarted)
    assert known.cached_tokens == 10


@pytest.mark.parametrize("after", range(0, 30, 2))
def test_a_flush_in_the_middle_of_a_save_empties_the_tree_and_the_file_stays_right(
    tmp_path: Path, after: int
) -> None:
    rig = filled(tmp_path)
    expected = cached_paths(rig)
    rig.others.clear()
    rig.send(SaveReq(1))
    for _ in range(after):
        rig.both()
    rig.send(FlushReq(2, 10.0))
    finish_all(rig)
    flushed, saved = sorted(rig.others, key=lambda reply: type(reply).__name__)
    assert isinstance(flushed, FlushReply) and flushed.error is None and flushed.flushed_tokens > 0
    assert isinstance(saved, SaveReply) and saved.error is None
    assert rig.stats().num_cached_tokens == 0
    restarted = again(rig)
    assert restarted.restored == saved.saved_tokens
    assert cached_paths(restarted) <= expected


@pytest.mark.parametrize("mode", ["in_place", "retract", "abort"])
def test_a_paused_engine_can_be_saved(tmp_path: Path, mode: str) -> None:
    rig = filled(tmp_path)
    running = rig.submit(prompt(9, start=4), 30, ignore_eos=True)
    until(rig, lambda: len(running.token_ids) > 3)
    rig.send(PauseReq(1, mode))  # type: ignore[arg-type]
    until(rig, lambda: bool(rig.others))
    reply = rig.save()
    assert reply.error is None and reply.saved_tokens > 0
    rig.send(ContinueReq(2))
    finish_all(rig)
    again(rig)


def test_a_disk_that_fails_is_an_error_that_leaves_the_old_file_and_the_next_save_works(
    tmp_path: Path,
) -> None:
    rig = filled(tmp_path)
    assert rig.save().error is None
    before = (tmp_path / FILE_NAME).read_bytes()
    (tmp_path / (FILE_NAME + ".new")).mkdir()
    reply = rig.save()
    assert reply.error is not None and reply.error.label == "cache_file"
    assert "Is a directory" in reply.error.message and str(tmp_path) in reply.error.message
    rig.check_drained()
    assert (tmp_path / FILE_NAME).read_bytes() == before
    (tmp_path / (FILE_NAME + ".new")).rmdir()
    rig.submit(prompt(9, start=15), 3)
    finish_all(rig)
    assert rig.save().error is None
    assert again(rig).restored == rig.stats().num_cached_tokens


def test_a_disk_that_hangs_ends_the_save_and_not_the_server(tmp_path: Path) -> None:
    now = [0.0]
    rig = filled(tmp_path, clock=lambda: now[0])
    assert rig.store is not None
    helper_step = rig.store.helper.step
    rig.store.helper.step = lambda: False  # type: ignore[method-assign]
    rig.others.clear()
    rig.send(SaveReq(1))
    for _ in range(50):
        rig.both()
    assert not rig.others and not rig.control.is_idle
    now[0] += STALL_SECONDS
    rig.run()
    (reply,) = rig.others
    assert isinstance(reply, SaveReply) and reply.error is not None
    assert "the disk has taken nothing" in reply.error.message
    rig.check_drained()
    rig.submit(prompt(9), 4)
    finish_all(rig)
    rig.store.helper.step = helper_step  # type: ignore[method-assign]  # the disk is back
    rig.run()
    assert not (tmp_path / FILE_NAME).exists(), "nothing of the save that was given up"
    assert rig.save().error is None
    assert again(rig).restored == rig.stats().num_cached_tokens


def test_a_copy_under_way_when_the_save_fails_is_unlocked_and_its_buffer_used_again(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    (tmp_path / (FILE_NAME + ".new")).mkdir()
    rig.others.clear()
    rig.send(SaveReq(1))
    assert rig.store is not None
    while not rig.stats().num_locked_tokens:
        rig.control.step()
    rig.store.helper.step()
    rig.control.step()
    rig.read()
    (reply,) = rig.others
    assert isinstance(reply, SaveReply) and reply.error is not None
    assert rig.stats().num_locked_tokens > 0, "compute has not answered"
    assert not rig.control.is_idle
    finish_all(rig)
    (tmp_path / (FILE_NAME + ".new")).rmdir()
    for _ in range(3):
        assert rig.save().error is None


def test_a_save_of_an_empty_cache_is_an_empty_file(tmp_path: Path) -> None:
    rig = Rig(cache_dir=str(tmp_path))
    assert rig.save().saved_tokens == 0
    assert again(rig).restored == 0


def test_the_most_recently_used_prefixes_are_saved_where_not_all_fit(tmp_path: Path) -> None:
    rig = filled(tmp_path, page_size=1)
    recent = rig.submit(prompt(10, start=17), 1)
    finish_all(rig)
    limited = Rig(num_pages=64, page_size=1, cache_dir=str(tmp_path), cache_dir_gb=700e-9)
    for answer in [*list(rig.answers.values())[:-1], recent]:
        limited.submit(answer.request.token_ids.tolist(), 1, answer.request.namespace)
        finish_all(limited)
    reply = limited.save()
    assert reply.num_bytes <= 700
    assert 10 <= reply.saved_tokens < limited.stats().num_cached_tokens
    restarted = again(limited)
    known = restarted.submit(recent.request.token_ids.tolist(), 1)
    finish_all(restarted)
    assert known.cached_tokens == 9


@pytest.mark.parametrize("num_pages", [1, 3, 7, 20])
def test_a_smaller_pool_takes_what_fits(tmp_path: Path, num_pages: int) -> None:
    rig = filled(tmp_path, page_size=2)
    saved = rig.save().saved_tokens
    restarted = again(rig, num_pages=num_pages)
    assert restarted.restored == min(saved, 2 * num_pages)
    assert cached_paths(restarted) <= cached_paths(rig)
    assert restarted.stats().num_free_tokens == 2 * num_pages - restarted.restored


def test_what_was_used_last_is_evicted_last_behind_a_restart_too(tmp_path: Path) -> None:
    rig = Rig(num_pages=64, page_size=1, cache_dir=str(tmp_path))
    prompts = [prompt(8, start=start) for start in (0, 5, 10, 15)]
    for ids in (*prompts, prompts[0]):
        rig.submit(ids, 1)
        finish_all(rig)
    rig.save()
    restarted = again(rig)
    cache = restarted.control._manager.cache
    gone = cache.evict(8)
    restarted.control._manager.allocator.free(gone)
    left = {path[1:] for path in cached_paths(restarted)}
    assert tuple(prompts[1]) not in left, "the second one was the least recently used"
    assert tuple(prompts[0]) in left


def test_damage_behind_right_pages_gives_every_page_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = filled(tmp_path)
    rig.save()
    file = tmp_path / FILE_NAME
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    restarted = again(rig)
    assert restarted.restored == 0
    assert "damaged" in caplog.text and "starts empty" in caplog.text
    assert restarted.stats().num_free_tokens == restarted.stats().max_total_num_tokens
    np.testing.assert_array_equal(restarted.control._manager.allocator._is_free[1:], True)
