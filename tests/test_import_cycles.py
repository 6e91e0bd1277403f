"""No module imports, even inside a function, one that imports it, but for what the docs explain."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"


@functools.cache
def imports_by_module(source: Path) -> dict[str, set[str]]:
    """Return the modules of the package that each imports at run time, lazily or not."""
    files = {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for path in source.rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []  # types alone: nothing is imported when the program runs
        named: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= (inner & files.keys()) or {node.module}
            elif isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
        found[module] = (named & files.keys()) - {module}
    return found


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of two or more modules that reach each other."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            fresh = graph[waiting.pop()] - seen
            seen |= fresh
            waiting += fresh
        reach[start] = seen
    together = {frozenset(b for b in reach[a] if a in reach[b]) for a in graph if a in reach[a]}
    return {group for group in together if len(group) > 1}


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert cycles(graph) == {frozenset("abc")}


def explained() -> set[frozenset[str]]:
    """Return the cycles that the design page lists, one line a cycle."""
    section = (ROOT / "docs/design.md").read_text().split("## Cycles of imports")[1]
    lines = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("- ")]
    names = [line.split(":")[0].removeprefix("- ").replace("`", "").split(", ") for line in lines]
    return {frozenset(f"fedcircuits.{name}" for name in group) for group in names}


def test_every_cycle_is_explained_in_the_design_page() -> None:
    assert cycles(imports_by_module(SOURCE)) == explained()


@pytest.mark.parametrize("module", ["fedcircuits.federation.model.federated_circuit"])
def test_imports_inside_functions_count(module: str) -> None:
    assert "fedcircuits.federation.model.storage" in imports_by_module(SOURCE)[module]
