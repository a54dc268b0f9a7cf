"""`twinloop bench radix`: what the operations of the prefix cache cost, and for how long they hold its lock."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.bounds import check_bounds
from bench.environment import Environment
from bench.outputs import add_outputs, check_outputs, publish
from bench.radix_trace import LockTimer, Trace, TraceOptions
from bench.radix_workloads import BigTree, LongPrompt, TreeSizes, long_prompt, memory_left
from bench.report import Distribution, Errors, Figure, Report
from bench.summary import Summary
from control_loop.collector import give_back_collection, take_over_collection
from radix_cache.eviction import EVICTION_POLICIES

OPERATIONS = ("match", "lock", "unlock", "insert prompt", "insert finish", "evict")
NUM_REQUESTS, QUICK_REQUESTS = 50_000, 2000
NUM_SYSTEMS, QUICK_SYSTEMS = 1000, 100
CAPACITY, QUICK_CAPACITY = 2_000_000, 200_000


@dataclass(frozen=True, slots=True)
class RadixOptions:
    """What is measured."""

    sizes: TreeSizes
    trace: TraceOptions


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the exit code.

    Raises:
        ConfigError: an option is not right.
    """
    arguments = parser().parse_args(argv)
    check_outputs(arguments)
    return publish(measure(options_of(arguments), Environment.here()), arguments)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="twinloop bench radix",
        description="Measure the prefix cache alone: a long prompt against a warm tree, a tree of 100,000 nodes, and "
        "a trace of requests that share 1,000 system prompts in a cache too small for them, once with single requests "
        "and once with conversations. Times are those inside calls of the cache, in one thread.",
        allow_abbrev=False,
    )
    made.add_argument("--quick", action="store_true", help="small sizes: over within seconds")
    made.add_argument(
        "--page-size", type=int, default=1, metavar="TOKENS", help="1 makes the tree work most (default: 1)"
    )
    made.add_argument(
        "--eviction-policy", choices=tuple(EVICTION_POLICIES), default="lru", help="(default: lru)"
    )
    made.add_argument("--requests", type=int, metavar="N", help=f"of each trace (default: {NUM_REQUESTS:,})")
    made.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the same seed asks the same (default: 0)"
    )
    add_outputs(made)
    return made


def options_of(arguments: argparse.Namespace) -> RadixOptions:
    """Raises:
    ConfigError: names the option, its value and what is allowed.
    """
    quick, page_size, seed = arguments.quick, arguments.page_size, arguments.seed
    requests = arguments.requests
    if requests is None:
        requests = QUICK_REQUESTS if quick else NUM_REQUESTS
    for name, value, least, most in (
        ("page-size", page_size, 1, 64),
        ("requests", requests, 1, 10_000_000),
        ("seed", seed, 0, 2**63),
    ):
        check_bounds(name, value, least, most)
    policy = arguments.eviction_policy
    sizes = TreeSizes(100_000, 1000, 99, 500, page_size, policy, seed)
    systems, capacity = (QUICK_SYSTEMS, QUICK_CAPACITY) if quick else (NUM_SYSTEMS, CAPACITY)
    if quick:
        sizes = replace(sizes, num_prefixes=50, num_leaves=19, repeats=50)
    return RadixOptions(sizes, TraceOptions(requests, systems, capacity, page_size, policy, seed))


def measure(options: RadixOptions, environment: Environment) -> Report:
    """Everything, one after the other."""
    figures = _prompt_figures(long_prompt(options.sizes))
    tree_figures, distributions = _tree(options.sizes)
    figures += tree_figures
    for trace, name in ((options.trace, "trace"), (replace(options.trace, is_sessions=True), "sessions")):
        trace_figures, trace_distributions = _trace(trace, name)
        figures += trace_figures
        distributions += trace_distributions
    shown = {
        "page_size": options.sizes.page_size,
        "eviction_policy": options.sizes.policy,
        "nodes": options.sizes.num_prefixes * (options.sizes.num_leaves + 1),
        "requests": options.trace.num_requests,
        "capacity": options.trace.capacity,
        "seed": options.sizes.seed,
    }
    return Report("radix", environment, shown, {}, figures, distributions, Errors())


def _prompt_figures(found: LongPrompt) -> list[Figure]:
    tokens = found.num_tokens
    return [
        Figure("match, prompt in one node (tok/s)", "match_tok_s", tokens / found.one_node_us * 1e6),
        Figure("match, prompt in 200 nodes (tok/s)", "match_chain_tok_s", tokens / found.chain_us * 1e6),
        Figure(
            "  one node, by one comparison of bytes", "match_by_memcmp", found.one_node_us / found.memcmp_us
        ),
    ]


def _tree(sizes: TreeSizes) -> tuple[list[Figure], list[Distribution]]:
    tree = BigTree(sizes)
    pause, full = tree.collector_pauses()
    take_over_collection()
    inserted, matched = Summary.of(tree.insert()), Summary.of(tree.match())
    evicted, nodes_left = tree.evict()
    give_back_collection()
    figures = [
        Figure("nodes of the big tree", "tree_nodes", tree.num_nodes),
        Figure("memory per node beside ids (bytes)", "node_bytes", tree.bytes_per_node),
        Figure("evict, per node (us)", "evict_node_us", evicted),
        Figure("nodes left after eviction", "nodes_left", nodes_left),
        Figure("memory left after eviction (bytes)", "memory_left_bytes", memory_left(sizes)),
        Figure("longest pause of the collector (ms)", "gc_pause_max_ms", pause),
        Figure("  a full collection (ms)", "gc_full_ms", full),
    ]
    return figures, [
        Distribution("tree insert", "tree_insert", "us", inserted),
        Distribution("tree match", "tree_match", "us", matched),
    ]


def _trace(options: TraceOptions, name: str) -> tuple[list[Figure], list[Distribution]]:
    """Plays it twice: once timed call by call, once to see how long the lock is held."""
    played, timer = Trace(options), LockTimer()
    for trace in (played, Trace(options, timer)):
        take_over_collection()
        trace.play()
        give_back_collection()
    figures = [
        Figure(f"{name}: operations/s", f"{name}_ops_s", played.num_operations / played.seconds),
        Figure(f"{name}: requests/s", f"{name}_req_s", options.num_requests / played.seconds),
        Figure(f"{name}: matched tok/s", f"{name}_match_tok_s", _match_speed(played)),
        Figure(f"{name}: hit rate", f"{name}_hit_rate", played.matched_tokens / played.prompt_tokens),
    ]
    short = "" if name == "trace" else "s. "
    distributions = [
        Distribution(
            f"{short}{operation}",
            f"{name}_{operation.replace(' ', '_')}",
            "us",
            _micros(played.nanoseconds[operation]),
        )
        for operation in OPERATIONS
    ]
    held = "lock_held" if name == "trace" else f"{name}_lock_held"
    return figures, [
        *distributions,
        Distribution(f"{short}lock held", held, "us", _micros(timer.nanoseconds)),
    ]


def _match_speed(trace: Trace) -> float:
    return trace.matched_tokens / sum(trace.nanoseconds["match"]) * 1e9


def _micros(nanoseconds: list[int]) -> Summary | None:
    return Summary.of((np.asarray(nanoseconds, np.float64) / 1e3).tolist())
