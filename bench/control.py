"""`twinloop bench control`: what one pass of the control loop costs, by how many requests run and wait."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from bench.bounds import check_bounds
from bench.environment import Environment
from bench.outputs import add_outputs, check_outputs, publish
from bench.report import Distribution, Errors, Figure, Report
from bench.summary import Summary
from compute_loop.loop import ComputeLoop
from compute_loop.runner.simulated import DeviceModel, SimulatedRunner
from control_loop.collector import give_back_collection, take_over_collection
from control_loop.intake import Limits
from control_loop.loop import ControlLoop
from control_loop.parts import LoopLinks
from control_loop.policy import POLICIES
from srt.core.config import Config
from srt.core.messages import TokenizedReq, TokenOutput
from srt.core.port import LocalPort
from srt.core.sampling_params import SamplingParams

RUNNING = (16, 64, 256, 1024)
QUICK_RUNNING = (16, 64)
STEPS, QUICK_STEPS = 400, 60
NUM_SYSTEM_PROMPTS = 100
SYSTEM_TOKENS, OWN_TOKENS = 512, 64
OUTPUT_TOKENS = (50, 200)
CONTEXT_LENGTH = 1024
VOCAB_SIZE = 50_000
INSTANT = DeviceModel(
    name="instant",
    bandwidth=math.inf,
    flops=math.inf,
    fixed_seconds=0.0,
    launch_seconds=0.0,
    launch_gil_takes=0,
    vocab_size=VOCAB_SIZE,
)
"""A device whose steps take no time: what is left of a pass is the control loop's."""


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """What is measured: `num_waiting` requests stay in the queue while `running` ones of each size run."""

    running: tuple[int, ...]
    num_waiting: int
    policy: str
    page_size: int
    num_steps: int
    seed: int


class Crowd:
    """Thread: the bench's. An endless supply of requests: zipf over system prompts, a tail of its own for each."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._systems = self._rng.integers(1, VOCAB_SIZE, (NUM_SYSTEM_PROMPTS, SYSTEM_TOKENS), np.int32)
        self._key = 0

    def next(self) -> TokenizedReq:
        self._key += 1
        system = self._systems[min(int(self._rng.zipf(1.5)), NUM_SYSTEM_PROMPTS) - 1]
        own = self._rng.integers(1, VOCAB_SIZE, OWN_TOKENS, np.int32)
        length = int(self._rng.integers(*OUTPUT_TOKENS))
        params = SamplingParams(max_new_tokens=length, temperature=0.0, ignore_eos=True)
        return TokenizedReq(self._key, f"r{self._key}", np.concatenate([system, own]), params)


class Stage:
    """Thread: the bench's. Both loops, stepped in turn; only the control loop's passes are timed."""

    def __init__(self, num_running: int, options: ControlOptions) -> None:
        page_size = options.page_size
        config = Config.from_flat(
            page_size=page_size,
            schedule_policy=options.policy,
            max_running_requests=num_running,
            max_queued_requests=2 * options.num_waiting + num_running,
            max_step_tokens=8192 + num_running,
            chunked_prefill_size=8192,
            schedule_conservativeness=0.0,
        )
        # Room for every row, and for what a cache would keep besides.
        num_pages = (2 * num_running * CONTEXT_LENGTH + NUM_SYSTEM_PROMPTS * SYSTEM_TOKENS) // page_size
        links = LoopLinks.create()
        self._port = LocalPort(links.doorbell)
        limits = Limits(VOCAB_SIZE, CONTEXT_LENGTH, num_pages * page_size, frozenset())
        self._control = ControlLoop(config, limits, num_pages, self._port, links)
        self._compute = ComputeLoop(
            SimulatedRunner(INSTANT, num_running), num_running, links.commands, links.results, links.doorbell
        )
        self._crowd = Crowd(options.seed)
        self._target = num_running + options.num_waiting
        self._live = 0
        self.num_running = num_running

    def fill(self) -> None:
        """Steps until every slot is taken and the queue is as long as asked."""
        while self._control.stats().num_running_reqs < self.num_running:
            self.step()

    def step(self) -> float:
        """One pass of each loop; the seconds of the control loop's."""
        for _ in range(self._target - self._live):
            self._port.submit(self._crowd.next())
            self._live += 1
        started = time.perf_counter()
        self._control.step()
        seconds = time.perf_counter() - started
        self._compute.step()
        for message in self._port.poll():
            if isinstance(message, TokenOutput):
                self._live -= len(message.finishes)
        return seconds


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the exit code.

    Raises:
        ConfigError: an option is not right.
    """
    arguments = parser().parse_args(argv)
    check_outputs(arguments)
    report = measure(options_of(arguments), Environment.here())
    return publish(report, arguments)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="twinloop bench control",
        description="Measure a pass of the control loop (results, tree, memory, policy, messages) against a device "
        "that takes no time. Each pass processes one step of all running requests, and admits as many as have ended.",
        allow_abbrev=False,
    )
    made.add_argument("--quick", action="store_true", help="small sizes: over within seconds")
    made.add_argument(
        "--running",
        type=int,
        nargs="+",
        metavar="N",
        help=f"how many requests run (default: {' '.join(map(str, RUNNING))})",
    )
    made.add_argument("--waiting", type=int, default=1000, metavar="N", help="how many wait (default: 1000)")
    made.add_argument(
        "--policy", choices=tuple(POLICIES), default="lpm", help="order of the queue (default: lpm)"
    )
    made.add_argument("--page-size", type=int, default=16, metavar="TOKENS", help="(default: 16)")
    made.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the same seed asks the same (default: 0)"
    )
    add_outputs(made)
    return made


def options_of(arguments: argparse.Namespace) -> ControlOptions:
    """Raises:
    ConfigError: names the option, its value and what is allowed.
    """
    running = tuple(arguments.running or (QUICK_RUNNING if arguments.quick else RUNNING))
    for name, values, least in (
        ("running", running, 1),
        ("waiting", (arguments.waiting,), 0),
        ("page-size", (arguments.page_size,), 1),
        ("seed", (arguments.seed,), 0),
    ):
        for value in values:
            check_bounds(name, value, least)
    steps = QUICK_STEPS if arguments.quick else STEPS
    return ControlOptions(
        running, arguments.waiting, arguments.policy, arguments.page_size, steps, arguments.seed
    )


def measure(options: ControlOptions, environment: Environment) -> Report:
    """Times `num_steps` passes for each number of running requests."""
    distributions: list[Distribution] = []
    medians: dict[int, float] = {}
    for num_running in tqdm(options.running, desc="control", unit="size", disable=None, leave=False):
        stage = Stage(num_running, options)
        stage.fill()
        take_over_collection()  # as an engine process does
        micros = [stage.step() * 1e6 for _ in range(options.num_steps)]
        give_back_collection()
        summary = Summary.of(micros)
        assert summary is not None
        medians[num_running] = summary.p50
        distributions.append(Distribution(f"{num_running} run", f"control_{num_running}", "us", summary))
    return Report(
        "control",
        environment,
        {"waiting": options.num_waiting, "policy": options.policy, "page_size": options.page_size}
        | {"seed": options.seed, "steps": options.num_steps},
        {},
        _growth(medians),
        distributions,
        Errors(),
    )


def _growth(medians: dict[int, float]) -> list[Figure]:
    """By which power of the number of running requests the median grows: 1 is linear."""
    least, most = min(medians), max(medians)
    if least == most:
        return []
    power = math.log(medians[most] / medians[least]) / math.log(most / least)
    return [
        Figure(f"power of growth from {least} to {most}", "growth_power", power),
        Figure("median per running request at most (us)", "control_per_request_us", medians[most] / most),
    ]
