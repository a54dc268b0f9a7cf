"""What every test of the project gets."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import hypothesis
import pytest

# No deadline: a timed assertion fails on a busy machine. Derandomised where a failure must be the change's own.
hypothesis.settings.register_profile(
    "house", deadline=None, print_blob=True, derandomize=os.environ.get("CI") == "true"
)
hypothesis.settings.load_profile("house")

E2E = Path(__file__).parent / "e2e"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test under `tests/e2e` is marked so; all steps of this process compute on one thread."""
    for item in items:
        if E2E in item.path.parents:
            item.add_marker(pytest.mark.e2e)
    # Only where a test module has loaded torch: most rooms must not pay for it. One thread, because results must
    # not depend on the number of cores here.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
