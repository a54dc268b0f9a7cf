"""The plan of the house as a test: who may import whom, where torch may be, and how long a file may get."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("srt", "radix_cache", "control_loop", "compute_loop", "mem_pool", "lang_frontend", "bench")
FOLDERS = {*PACKAGES, "tests"}

FLOORS = {
    "srt.core": 0,
    "radix_cache": 1,
    "mem_pool": 1,
    "control_loop": 2,
    "compute_loop": 2,
    "srt.server": 3,
    "lang_frontend": 4,
    "bench": 4,
    "srt.cli": 5,
}
"""Room -> floor. A module imports from lower floors and from its own room."""

LANGUAGE_IMPORTS = ("srt.core", "srt.server.engine_client")
"""The language is a client like any other: of the lower floors it sees only these."""

TORCH_FREE = (
    "srt.core",
    "srt.cli",
    "radix_cache",
    "control_loop",
    "mem_pool.page_allocator",
    "mem_pool.sizing",
)
OPTIONAL_KERNELS = frozenset({"triton", "flashinfer"})
"""May be imported inside a function, in a backend's file."""

BACKENDS = ("compute_loop.attention", "compute_loop.kernels", "compute_loop.runner")
LAZY_TABLES = {
    "srt.cli": "a command is imported when it runs",
    "bench.command": "a bench is imported when it runs",
    "bench.outputs": "pictures are drawn with an extra, which is not always there",
    "srt.server.engine": "the engine in this process, which loads torch, or the supervisor of another, which does not",
}
"""The modules that import by name, and why: each from a table of its own."""

LONGEST_FILE = 300
LONGEST_FUNCTION = 50


@dataclass(frozen=True)
class Import:
    """`source` imports `target` at `line`; `nested` inside a function."""

    source: str
    target: str
    line: int
    nested: bool

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    source: str

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def module_at(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name, path, path.read_text(encoding="utf-8"))


HOUSE = {
    module.name: module
    for package in PACKAGES
    for module in map(module_at, sorted((ROOT / package).rglob("*.py")))
}


def imports_of(module: Module) -> Iterator[Import]:
    """Every import of a module: top level, in functions, under TYPE_CHECKING, and by name through importlib."""
    tree = ast.parse(module.source)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, functions)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        for target in targets_of(node, module.package):
            yield Import(module.name, target, getattr(node, "lineno", 0), id(node) in inside)


def targets_of(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        ancestors = package.split(".")
        base = ".".join(ancestors[: len(ancestors) - node.level + 1]) if node.level else ""
        origin = ".".join(part for part in (base, node.module) if part)
        # `from package import name` may name a module: that is then what is imported.
        return [f"{origin}.{a.name}" if f"{origin}.{a.name}" in HOUSE else origin for a in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
        return ["importlib"]
    return []


def room_of(name: str) -> str | None:
    """The room that a module belongs to; None for a module from outside and for the empty `srt`."""
    return next((room for room in FLOORS if name == room or name.startswith(room + ".")), None)


def broken_layers(module: Module) -> list[str]:
    here = room_of(module.name)
    found = []
    for edge in imports_of(module):
        there = room_of(edge.target)
        if here is None or there is None or there == here:
            continue
        if FLOORS[there] >= FLOORS[here]:
            found.append(f"{edge}: {there} is not below {here}")
        elif here == "lang_frontend" and not edge.target.startswith(LANGUAGE_IMPORTS):
            found.append(f"{edge}: the language imports only {' and '.join(LANGUAGE_IMPORTS)}")
    return found


def hidden_imports(module: Module) -> list[str]:
    allowed = OPTIONAL_KERNELS if module.name.startswith(BACKENDS) else frozenset()
    return [
        f"{edge} inside a function"
        for edge in imports_of(module)
        if edge.nested and edge.target.partition(".")[0] not in allowed and module.name not in LAZY_TABLES
    ]


def reaches_torch(name: str) -> list[str]:
    """The chain of imports from a house module to torch; empty if there is none."""
    chains, seen = [[name]], {name}
    while chains:
        chain = chains.pop()
        for edge in imports_of(HOUSE[chain[-1]]):
            if edge.target.partition(".")[0] in ("torch", *OPTIONAL_KERNELS):
                return [*chain, edge.target]
            if edge.target in HOUSE and edge.target not in seen:
                seen.add(edge.target)
                chains.append([*chain, edge.target])
    return []


def torch_free_modules() -> list[str]:
    return [name for name in HOUSE if any(name == room or name.startswith(room + ".") for room in TORCH_FREE)]


def test_every_module_belongs_to_a_room() -> None:
    homeless = [name for name in HOUSE if room_of(name) is None]
    assert homeless == ["srt"]


@pytest.mark.parametrize("name", sorted(HOUSE))
def test_imports_go_down(name: str) -> None:
    assert broken_layers(HOUSE[name]) == []


@pytest.mark.parametrize("name", sorted(HOUSE))
def test_no_import_inside_a_function(name: str) -> None:
    assert hidden_imports(HOUSE[name]) == []


@pytest.mark.parametrize("name", torch_free_modules())
def test_control_side_does_not_reach_torch(name: str) -> None:
    assert reaches_torch(name) == [], "a chain of imports leads to torch"


def test_control_side_runs_without_torch() -> None:
    """The same by trial, so that packages from outside are seen too."""
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print([name for name in ('torch', 'triton') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *torch_free_modules()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "[]"


def overlong_functions(module: Module) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(module.source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                found.append(f"{module.name}:{node.lineno} {node.name} has {lines} lines")
    return found


@pytest.mark.parametrize("name", sorted(HOUSE))
def test_files_and_functions_are_short(name: str) -> None:
    lines = HOUSE[name].source.count("\n")
    assert lines <= LONGEST_FILE, f"{name} has {lines} lines, {LONGEST_FILE} are the most: split it"
    assert overlong_functions(HOUSE[name]) == []


def test_ground_packages_are_empty() -> None:
    assert {name: HOUSE[name].source for name in ("srt", "srt.core")} == {"srt": "", "srt.core": ""}


def test_folders_are_the_planned_ones() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {line.partition("/")[0] for line in listed.splitlines() if "/" in line}
    assert {folder for folder in folders if not folder.startswith(".")} == FOLDERS


def sample(name: str, source: str) -> Module:
    return Module(name, Path(*name.split(".")).with_suffix(".py"), source)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("srt.core.sample", "import radix_cache"),
        ("radix_cache.sample", "from mem_pool import page_allocator"),
        ("control_loop.sample", "from compute_loop.loop import ComputeLoop"),
        (
            "compute_loop.sample",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import control_loop.loop",
        ),
        ("srt.server.sample", "from srt import cli"),
        ("bench.sample", "import lang_frontend"),
        ("lang_frontend.sample", "from srt.server import protocol"),
        ("compute_loop.runner.sample", "from ...control_loop import loop"),
    ],
)
def test_a_forbidden_import_is_seen(name: str, source: str) -> None:
    assert broken_layers(sample(name, source)) != []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("control_loop.sample", "def f():\n    import json"),
        ("srt.server.sample", "async def f():\n    from compute_loop import loop"),
        ("srt.server.sample", "def f():\n    import triton"),
        ("compute_loop.attention.sample", "def f():\n    import json"),
        ("bench.sample", "import importlib\ndef f():\n    importlib.import_module('json')"),
    ],
)
def test_a_hidden_import_is_seen(name: str, source: str) -> None:
    assert hidden_imports(sample(name, source)) != []


def test_an_overlong_function_is_seen() -> None:
    body = "    pass\n"
    assert overlong_functions(sample("bench.sample", "def f():\n" + body * (LONGEST_FUNCTION - 1))) == []
    assert overlong_functions(sample("bench.sample", "def f():\n" + body * LONGEST_FUNCTION)) != []


def test_a_backend_may_load_its_kernels_late() -> None:
    assert hidden_imports(sample("compute_loop.attention.sample", "def f():\n    import flashinfer")) == []
