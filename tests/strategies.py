"""What hypothesis draws for the state machines: few different values, so that things meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

NAMESPACES: st.SearchStrategy[str | None] = st.sampled_from((None, None, None, "", "a"))


@dataclass(slots=True)
class StepCount:
    """Thread: the test's. Steps that machines have taken, and what happened in them; each adds its own."""

    total: int = 0
    happened: Counter[str] = field(default_factory=Counter)


def token_runs(page_size: int, max_length: int, num_forks: int = 5) -> st.SearchStrategy[tuple[int, ...]]:
    """Sequences of 1 to `max_length` tokens that part at `num_forks` places at most: within pages and between them.

    Two draws a sequence. There are ``2**num_forks`` different ones, apart from their lengths.
    """
    stretch = max(1, (page_size + 1) // 2)

    def run(forks: int, length: int) -> tuple[int, ...]:
        return tuple(1 + (forks >> min(place // stretch, num_forks) & 1) for place in range(length))

    return st.builds(run, st.integers(0, 2**num_forks - 1), st.integers(1, max_length))


def run_machines(make: Callable[[], RuleBasedStateMachine], num_machines: int, num_steps: int) -> None:
    """Runs `num_machines` machines of at most `num_steps` steps each; what fails is shrunk and printed."""
    run_state_machine_as_test(
        make,  # type: ignore[arg-type]  # any callable will do, its code says
        settings=hypothesis.settings(
            max_examples=num_machines,
            stateful_step_count=num_steps,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )
