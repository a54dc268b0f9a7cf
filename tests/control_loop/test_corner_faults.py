"""Corner cases by their number: steps that fail, and who pays for it."""

from __future__ import annotations

import pytest

from tests.control_loop.corner import finish_all, prompt, until
from tests.rig import Rig
from tests.schedules import Poison


@pytest.mark.parametrize("asynchronous", [True, False])
def test_corner_14_an_innocent_survives_any_number_of_guilty_ones(asynchronous: bool) -> None:
    """A long stream is in the company of seven requests, one after the other, each of which fails its step."""
    rig = Rig(num_pages=64, max_running=3, asynchronous=asynchronous, fault=Poison(token=22))
    stream = rig.submit(prompt(9), 90, ignore_eos=True)
    guilty = []
    for number in range(1, 8):
        until(rig, lambda number=number: len(stream.token_ids) >= 6 * number)
        guilty.append(rig.submit([22, *prompt(3 + number)], 4))
        until(rig, lambda: guilty[-1].ended)
    finish_all(rig)
    assert all(answer.finish is not None and answer.finish.kind == "error" for answer in guilty)
    assert stream.finish is not None and stream.finish.kind == "length"
    assert rig.stats().failed_steps_total == 2 * len(guilty)
