"""Where the CPU time of learning goes, and what the same passes would need at measured rates.

The profiler's clock is CPU time; it makes Python's own part about a third longer than it is.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
import warnings

import numpy as np
import pandas as pd

import fedcircuits as fc
import tables

DATA = tables.ROOT.parent / "shared" / "data"
# Phases and the functions whose time, with all they call, is theirs.
PHASES = (
    ("schema and grids", ("infer", "prepare")),
    ("structure and EM", ("search_tree", "_fit_tree")),
    ("prior of the tilt", ("choose_prior",)),
    ("class transitions and tilt", ("class_sweeps",)),
    ("trees of the head", ("boost",)),
    ("fits of the tilt, also within the others", ("fit_tilt",)),
    ("all", ("learn",)),
)


def multiply_adds_a_second() -> float:
    """Of matrices as small as a latent tree's, in double precision."""
    a, b = np.random.default_rng(0).random((2, 256, 64)), np.eye(64)
    start = time.process_time()
    for _ in range(2000):
        a[0] @ b
    return 2000 * 256 * 64 * 64 / (time.process_time() - start)


def phases(name: str, rows: pd.DataFrame, label: str, rate: float) -> list[list[object]]:
    """CPU seconds and calls by phase, then the floor of one pass of answers."""
    fc.learn(rows.iloc[:800], label, seed=0)  # imports
    clock = cProfile.Profile(time.process_time, builtins=False)
    clock.enable()
    model = fc.learn(rows, label, seed=0, n_jobs=1)
    clock.disable()
    stats = pstats.Stats(clock)
    found: list[list[object]] = []
    for phase, functions in PHASES:
        mine = [
            (calls, total)
            for (path, _, function), (_, calls, _, total, _) in stats.stats.items()  # type: ignore[attr-defined]
            if function in functions and "fedcircuits" in path
        ]
        if mine:
            total = max(seconds for _, seconds in mine)
            found.append([name, phase, f"{total:.2f}", max(calls for calls, _ in mine), ""])
    compiled = [
        (calls, own)
        for (path, _, function), (_, calls, own, _, _) in stats.stats.items()  # type: ignore[attr-defined]
        if function == "call" and "native" in path
    ]
    found.append([name, "of all: compiled loops", f"{compiled[0][1]:.2f}", compiled[0][0], ""])
    circuit = model.exact_part
    edges = circuit.n_edges
    table = rows.iloc[:5000]
    circuit.log_prob(table)
    start = time.process_time()
    circuit.log_prob(table)
    took = 1e6 * (time.process_time() - start) / len(table)
    floor = 1e6 * edges / rate
    found.append([name, "log_prob, us a row", f"{took:.2f}", 1, f"{floor:.2f} for {edges:,} edges"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=["Adult", "Credit"])
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    rate = multiply_adds_a_second()
    rows: list[list[object]] = []
    for name in arguments.tables:
        if name == "Adult":
            data = pd.read_parquet(DATA / "adult.parquet")
            data, label = data[data["split"] == "train"].drop(columns="split"), "income"
        else:
            data = pd.read_parquet(DATA / "give_me_some_credit.parquet").drop(columns="id")
            data, label = data.sample(frac=0.75, random_state=0), "SeriousDlqin2yrs"
        rows += phases(name, data, label, rate)
    tables.write(
        "learning_profile",
        "Where the time of learning goes",
        ["table", "phase", "CPU s under the profiler", "calls", "floor"],
        rows,
        "python benchmarks/learning_profile.py",
        [
            "Phases hold what they call: fits of the tilt are part of others as well, so "
            "that they do not add up.",
            f"Floor: a multiply-add for every edge at {rate / 1e9:.0f} thousand million a second, "
            "measured here on products of 256 x 64 with 64 x 64. A pass may stay below it, because "
            "sums over the leaves of one column are looked up.",
        ],
    )


if __name__ == "__main__":
    main()
