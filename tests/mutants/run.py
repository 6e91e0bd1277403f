"""Mutants: one small change of the code at a time; the tests of that code are to notice it.

    python tests/mutants/run.py            # `make mutants`: known ones, a sample of each module
    python tests/mutants/run.py --sample 5 wire/ids.py
    python tests/mutants/run.py --all

The package is copied to a folder of its own and changed there. A mutant is killed where the tests
fail or do not end. The known ones once survived every test: one of them alive is an error.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedcircuits"
SECONDS = 240.0
# Modules that protect rows or files, and the tests that are to notice a change of them.
MODULES: dict[str, tuple[str, ...]] = {
    "encoding.py": (
        "test_file_versions.py",
        "test_storage.py",
        "test_bad_files.py",
        "federation/wire/test_messages.py",
        "test_full_disk.py",
    ),
    "federation/client/memory.py": ("federation/attacks/test_restarted_silo.py",),
    "federation/client/rows/parts.py": (
        "federation/client/test_parts.py",
        "federation/attacks/test_restarted_silo.py",
    ),
    "federation/plan/weights.py": ("federation/plan/test_weights.py",),
    "federation/policy/audit.py": ("federation/policy/test_policy_guard.py", "test_full_disk.py"),
    "federation/policy/guard.py": (
        "federation/policy/test_policy.py",
        "federation/policy/test_policy_guard.py",
        "federation/policy/test_small_counts.py",
    ),
    "federation/policy/policy.py": (
        "federation/policy/test_policy.py",
        "federation/policy/test_policy_file.py",
    ),
    "federation/wire/codecs.py": (
        "federation/wire/test_codecs.py",
        "federation/wire/test_messages.py",
        "federation/wire/test_verbs.py",
    ),
    "federation/wire/envelope.py": (
        "federation/wire/test_codecs.py",
        "engines/test_replay.py",
    ),
    "federation/wire/ids.py": (
        "federation/wire/test_digests.py",
        "federation/policy/test_small_groups.py",
    ),
    "federation/wire/masking.py": ("federation/wire/test_masking.py",),
    "federation/wire/message.py": ("federation/wire/test_messages.py",),
    "federation/wire/noise.py": (
        "federation/wire/test_codecs.py",
        "federation/wire/test_randomised_response.py",
    ),
    "federation/wire/packing.py": ("federation/wire/test_packing.py",),
    "federation/wire/randomised_response.py": ("federation/wire/test_randomised_response.py",),
    "federation/wire/sealing.py": (
        "federation/wire/test_sealed_evidence.py",
        "federation/attacks/test_sealed_pieces.py",
    ),
    "federation/wire/verbs.py": (
        "federation/server/test_federation_bad_input.py",
        "federation/wire/test_verbs.py",
    ),
}


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        module: below the package.
        line: where.
        what: in words.
        text: the module as changed.
        tests: that are to fail.
    """

    module: str
    line: int
    what: str
    text: str
    tests: tuple[str, ...]


KNOWN: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("federation/wire/ids.py", "stretched(secret), group]", "group]", ("test_digests",)),
    (
        "federation/agreement/latent_table.py",
        "laplace(2.0 / epsilon",
        "laplace(0.2 / epsilon",
        ("test_randomised_response",),
    ),
    (
        "federation/wire/requests/branch.py",
        '            "rows of a class": lambda reply: reply.class_rows,\n',
        "",
        ("test_small_counts",),
    ),
    (
        "federation/wire/requests/kmeans.py",
        "lambda r: r.rows - r.once",
        "lambda r: r.rows",
        ("test_small_counts",),
    ),
    (
        "circuits/queries/covariance.py",
        "= p * (leaf_variance[group.nodes] + away**2)",
        "= leaf_variance[group.nodes] + p * away**2",
        ("test_missing_state_covariance",),
    ),
    (
        "learners/hclt/tree/tree_em.py",
        "spread + smoothing.of_column(j) * prior",
        "spread + smoothing.of_column(j) / prior.size",
        ("test_latent_tree_em",),
    ),
    (
        "learners/hclt/tree/tree_em.py",
        "counts.pairs + smoothing.transition / tree.block_size",
        "counts.pairs + smoothing.transition",
        ("test_latent_tree_em",),
    ),
]
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.And: ast.Or,
    ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def known_mutants() -> Iterator[Mutant]:
    """The changes that once went unnoticed; an error where the code has none of that text."""
    for module, old, new, tests in KNOWN:
        text = (SOURCE / module).read_text(encoding="utf-8") if (SOURCE / module).exists() else ""
        if text.count(old) != 1:
            sys.exit(f"{module} has no longer one {old!r}: bring KNOWN up to date")
        line = text[: text.index(old)].count("\n") + 1
        files = tuple(str(_file(name).relative_to(ROOT / "tests")) for name in tests)
        yield Mutant(module, line, f"{old.strip()} -> {new.strip()}", text.replace(old, new), files)


def _file(name: str) -> Path:
    return next((ROOT / "tests").rglob(f"{name}.py"))


def mutants_of(module: str) -> Iterator[Mutant]:
    """Every change of one operator, condition, constant or raised error of a module."""
    text = (SOURCE / module).read_text(encoding="utf-8")
    for at in range(len(_nodes(ast.parse(text)))):
        tree = ast.parse(text)
        node = _nodes(tree)[at]
        what = _change(node)
        if what is not None:
            changed = ast.unparse(ast.fix_missing_locations(tree))
            yield Mutant(module, getattr(node, "lineno", 0), what, changed, MODULES[module])


def _nodes(tree: ast.AST) -> list[ast.AST]:
    """The nodes of a module without annotations of types, which nothing evaluates."""
    found = [tree]
    for name, value in ast.iter_fields(tree):
        if name not in ("annotation", "returns"):
            parts = value if isinstance(value, list) else [value]
            found += [node for part in parts if isinstance(part, ast.AST) for node in _nodes(part)]
    return found


def _change(node: ast.AST) -> str | None:
    """Change one node in place and return what was done; None where there is nothing to do."""
    before = ast.unparse(node) if isinstance(node, (ast.expr, ast.stmt)) else ""
    if isinstance(node, ast.Compare):
        swapped = SWAPPED.get(type(node.ops[0]))
        if swapped is None:
            return None
        node.ops[0] = swapped()  # type: ignore[call-overload]
    elif isinstance(node, (ast.BinOp, ast.BoolOp)):
        swapped = SWAPPED.get(type(node.op))
        if swapped is None or ("|" in before and "None" in before):  # a type
            return None
        node.op = swapped()  # type: ignore[assignment]
    elif isinstance(node, ast.If):
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return f"if not ({before.splitlines()[0][3:-1]})"
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        node.value = node.value + 1
    elif isinstance(node, ast.Return) and node.value is not None:
        if isinstance(node.value, ast.Constant) and node.value.value is None:
            return None
        node.value = ast.Constant(None)
    else:
        return None
    return f"{before[:60]} -> {ast.unparse(node)[:60]}"


def survives(mutant: Mutant, folder: Path) -> bool:
    """Whether the tests pass with the change."""
    target = folder / "fedcircuits" / mutant.module
    original = target.read_bytes()
    target.write_text(mutant.text, encoding="utf-8")
    tests = [str(ROOT / "tests" / name) for name in mutant.tests]
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*command, "-m", "not engine and not slow", *tests],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        target.write_bytes(original)
    return done.returncode == 0


def main() -> int:
    """Try mutants and print the score; 1 where a known one is alive."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", help="parts of their paths; all where none is given")
    parser.add_argument("--sample", type=int, default=12, help="mutants of each module")
    parser.add_argument("--all", action="store_true", help="every mutant")
    parser.add_argument("--known", action="store_true", help="the known ones alone")
    chosen = parser.parse_args()
    wanted = [m for m in MODULES if not chosen.modules or any(c in m for c in chosen.modules)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(SOURCE, folder / "fedcircuits")
        alive = [m for m in known_mutants() if survives(m, folder)] if not chosen.modules else []
        if not chosen.modules:
            print(f"known mutants: {len(KNOWN) - len(alive)} of {len(KNOWN)} killed", flush=True)  # noqa: T201
        killed = tried = 0
        for module in [] if chosen.known else wanted:
            every = list(mutants_of(module))
            n = len(every) if chosen.all else min(chosen.sample, len(every))
            found = random.Random(module).sample(every, n)
            start = time.monotonic()
            left = [mutant for mutant in found if survives(mutant, folder)]
            killed, tried = killed + n - len(left), tried + n
            words = f"{module}: {n - len(left)} of {n} killed ({len(every)} in all)"
            print(f"{words}, {time.monotonic() - start:.0f} s", flush=True)  # noqa: T201
            for mutant in left:
                print(f"  alive: line {mutant.line}: {mutant.what}", flush=True)  # noqa: T201
    if tried:
        print(f"score: {killed} of {tried} ({100 * killed / tried:.0f} %)")  # noqa: T201
    for mutant in alive:
        print(f"known and alive: {mutant.module} line {mutant.line}: {mutant.what}")  # noqa: T201
    return bool(alive)


if __name__ == "__main__":
    sys.exit(main())
