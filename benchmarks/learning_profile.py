"""Where the CPU time of learning goes, and what the same passes would need at measured rates.

    python benchmarks/learning_profile.py [CASE ...]

Every case runs in a process of its own, one thread. The profiler's clock is CPU time; it makes
Python's own part longer than it is. (`profile.py` would hide the module that cProfile needs.)
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

import fedcircuits as fc
import tables
from fedcircuits.learners.hclt.head.trees.tree_growing import TreeGrower
from fedcircuits.learners.hclt.tilt.compiled_tilt import CompiledObjective
from fedcircuits.learners.hclt.tilt.compiled_transitions import CompiledSteps
from fedcircuits.learners.hclt.tree.compiled_em import CompiledEm
from fedcircuits.learners.hclt.tree.tree_pass import TreePass
from growth import mixed_table

DATA = tables.ROOT.parent / "shared" / "data"
# Phases and the functions whose time, with all they call, is theirs.
PHASES = (
    ("schema and grids", ("infer", "prepare")),
    ("structure and EM", ("search_tree",)),
    ("prior of the tilt", ("choose_prior",)),
    ("class transitions", ("class_sweeps",)),
    ("trees of the head", ("_boosted",)),
    ("all", ("learn", "federate")),
)


def adult() -> Any:
    rows = pd.read_parquet(DATA / "adult.parquet")
    train = rows[rows["split"] == "train"].drop(columns="split")
    return lambda: fc.learn(train, "income", seed=0, n_jobs=1)


def credit() -> Any:
    rows = pd.read_parquet(DATA / "give_me_some_credit.parquet").drop(columns="id")
    rows = rows.sample(frac=0.75, random_state=0)
    return lambda: fc.learn(rows, "SeriousDlqin2yrs", seed=0, n_jobs=1)


def million() -> Any:
    rows = mixed_table(1_000_000)
    return lambda: fc.learn(rows, "label", seed=0, n_jobs=1)


def columns() -> Any:
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(1000, 10))
    values = 0.7 * hidden[:, np.arange(1000) % 10] + rng.normal(size=(1000, 1000))
    rows = pd.DataFrame(values, columns=[f"x{i}" for i in range(1000)])
    rows["label"] = np.where(hidden[:, 0] + rng.normal(size=1000) > 0, "yes", "no")
    return lambda: fc.learn(rows, "label", seed=0, n_jobs=1)


def categories() -> Any:
    rng = np.random.default_rng(0)
    code = np.minimum((5000 * rng.random(20_000) ** 2).astype(int), 4999)
    rows = pd.DataFrame({"town": [f"t{i}" for i in code]})
    rows["income"] = 0.001 * code + rng.normal(size=20_000)
    rows["label"] = np.where(rows["income"] + rng.normal(size=20_000) > 2, "yes", "no")
    return lambda: fc.learn(rows, "label", seed=0, n_jobs=1, kinds={"town": "categorical"})


def clients() -> Any:
    rows = mixed_table(10_000)
    parts = {f"client{i:03}": rows.iloc[100 * i : 100 * (i + 1)] for i in range(100)}
    return lambda: fc.federate(parts, label="label", seed=0)


CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "adult": ("Adult (32,561 x 15)", adult),
    "credit": ("Credit (112,500 x 11)", credit),
    "million": ("1,000,000 x 31", million),
    "columns": ("1,000 x 1,001", columns),
    "categories": ("20,000 rows, a column of 5,000 categories", categories),
    "clients": ("100 clients of 100 rows x 31", clients),
}


class Work:
    """Calls, CPU seconds, multiply-adds and bytes of compiled loops, by what they are for."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}
        self._depth = 0

    def watch(self, owner: Any, method: str, name: str, cost: Callable[..., Any]) -> None:
        """Book every call of a method; cost(self, *args) gives multiply-adds and bytes."""
        plain = getattr(owner, method)

        def booked(this: Any, *args: Any, **options: Any) -> Any:
            start = time.process_time()
            answer = plain(this, *args, **options)
            entry = self.found.setdefault(name, [0, 0.0, 0.0, 0.0])
            work = cost(this, *args)
            for at, more in enumerate((1, time.process_time() - start, *work)):
                entry[at] += more
            return answer

        setattr(owner, method, booked)

    def watch_all(self) -> None:
        """All loops of learning."""

        def passes(times: int) -> Callable[..., tuple[float, float]]:
            def cost(this: TreePass, patterns: Any, *_: Any) -> tuple[float, float]:
                t, h = patterns.n_patterns, this.tree.n_states
                return times * t * h * this.tree.block_size, 3 * times * t * h * this.dtype.itemsize

            return cost

        def em(this: Any, _native: Any, number: int, *_: Any) -> tuple[float, float]:
            tree, t = this._tree, float(this._batches[number][3][0].sum())
            h, edges = tree.n_states, tree.transitions.size
            return 3 * t * h * tree.block_size, 9 * t * h * 4 + 40 * edges

        def adam(this: Any, _native: Any, number: int, *_: Any) -> tuple[float, float]:
            tree, t = this._model.trees[0], float(this._batches[number][3][0].sum())
            y, h, edges = this._model.n_classes, tree.n_states, tree.transitions.size
            return 3 * y * t * h * tree.block_size, y * (9 * t * h * 4 + 72 * edges)

        def tilt(this: Any, *_: Any) -> tuple[float, float]:
            y, _, _, _, h = map(int, this._sizes[:5])
            n, codes = float(this._sizes[7]), this._kept[10]
            copies = y if this._sizes[8] else 1
            return 2 * y * (n * h + codes.size), copies * n * h * 4 + codes.nbytes

        def grow(this: Any, *_: Any) -> tuple[float, float]:
            return 0.0, float(this.bins.size + 16 * this.bins.shape[1])

        self.watch(TreePass, "upward", "passes of trees", passes(1))
        self.watch(TreePass, "flows", "passes of trees", passes(2))
        self.watch(CompiledEm, "step", "batches of EM", em)
        self.watch(CompiledSteps, "step", "batches of class transitions", adam)
        self.watch(CompiledObjective, "__call__", "objective of the tilt", tilt)
        self.watch(TreeGrower, "grow", "trees of a head", grow)


def rates() -> tuple[float, float]:
    """Multiply-adds a second of small products in single precision, bytes a second of a copy."""
    a, b = np.ones((512, 64), dtype=np.float32), np.ones((64, 64), dtype=np.float32)
    big, copy = np.ones(2**23), np.empty(2**23)
    best = [0.0, 0.0]
    for _ in range(5):
        start = time.process_time()
        for _ in range(500):
            a @ b
        best[0] = max(best[0], 500 * 512 * 64 * 64 / (time.process_time() - start))
        start = time.process_time()
        np.copyto(copy, big)
        best[1] = max(best[1], 2 * big.nbytes / (time.process_time() - start))
    return best[0], best[1]


def one_case(case: str) -> list[list[object]]:
    """The rows of the page about one case."""
    name, make = CASES[case]
    adds, moved = rates()
    learn = make()
    tiny = mixed_table(600)
    fc.learn(tiny, "label", seed=0, n_jobs=1)  # imports
    plain = np.inf
    for _ in range(1 if case in ("million", "clients", "columns") else 3):
        start = time.process_time()
        learn()
        plain = min(plain, time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    work = Work()
    work.watch_all()
    clock = cProfile.Profile(time.process_time, builtins=False)
    clock.enable()
    learn()
    clock.disable()
    found: list[list[object]] = [
        [name, "all, without a profiler", f"{plain:.2f}", 1, "", f"peak {peak:.2f} GiB", ""]
    ]
    stats = pstats.Stats(clock).stats  # type: ignore[attr-defined]
    for phase, functions in PHASES:
        mine = [
            (calls, total)
            for (path, _, function), (_, calls, _, total, _) in stats.items()
            if function in functions and "fedcircuits" in path
        ]
        if mine:
            calls, total = max(mine, key=lambda pair: pair[1])
            found.append([name, phase, f"{total:.2f}", calls, "", "", ""])
    for kind, (calls, seconds, multiply_adds, n_bytes) in sorted(work.found.items()):
        floor = max(multiply_adds / adds, n_bytes / moved)
        found.append(
            [name, f"compiled: {kind}", f"{seconds:.2f}", int(calls), f"{multiply_adds / 1e9:.1f}",
             f"{n_bytes / 1e9:.1f}", f"{floor:.2f}"]
        )  # fmt: skip
    found.append([adds, moved])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--one", choices=list(CASES), help="one case in this process, as JSON")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    if arguments.one:
        print(json.dumps(one_case(arguments.one)))
        return
    rows: list[list[object]] = []
    measured: list[tuple[float, float]] = []
    for case in arguments.cases or CASES:
        command = [sys.executable, __file__, "--one", case]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{case} failed:\n{done.stderr}", file=sys.stderr)
            rows.append([CASES[case][0], "failed", "", "", "", "", ""])
            continue
        *found, rate = json.loads(done.stdout.strip().splitlines()[-1])
        rows += found
        measured.append(tuple(rate))
        write(rows, measured, arguments.cases)


def write(rows: list[list[object]], measured: list[tuple[float, float]], cases: list[str]) -> None:
    """Write the page about the cases run so far."""
    adds, moved = np.max(measured, axis=0)
    tables.write(
        "learning_profile",
        "Where the time of learning goes",
        ["table", "phase", "CPU s", "calls", "10^9 multiply-adds", "10^9 bytes", "floor, CPU s"],
        rows,
        " ".join(["python benchmarks/learning_profile.py", *cases]),
        [
            "One thread; the first line of a table is the least of three runs without the profiler "
            "(one of the three largest), the others are of one run under it.",
            "Phases hold what they call, compiled loops as well; the last lines are those loops "
            "alone, with the multiply-adds and bytes their passes need.",
            "Floor: the larger of multiply-adds and bytes at the rates measured here, "
            f"{adds / 1e9:.0f} thousand million multiply-adds a second (512 x 64 by 64 x 64 in "
            f"single precision) and {moved / 1e9:.0f} thousand million bytes a second (a copy of "
            "64 MiB, read and written).",
        ],
    )


if __name__ == "__main__":
    main()
