"""CPU time of log-densities given events, as a multiple of that given values.

`python benchmarks/event_cost.py` prints the table.
"""

from __future__ import annotations

import sys
from time import process_time

import numpy as np
import pandas as pd

import fedcircuits as fc
from fedcircuits.schema import Table

N, REPEATS = 2000, 9


def seconds(model: fc.Density, rows: Table) -> float:
    """Return the least CPU seconds of several calls."""
    times = []
    for _ in range(REPEATS):
        start = process_time()
        model.log_prob_table(rows)
        times.append(process_time() - start)
    return min(times)


def main() -> None:
    """Print one row for each number of columns that are known by an event."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(1500, 1))
    x = pd.DataFrame(z + rng.normal(size=(1500, 6)), columns=list("abcdef"))
    model = fc.learn(x.assign(g=rng.choice(list("uvw"), 1500)), learner="hclt", seed=0)
    plain = pd.DataFrame(rng.normal(size=(N, 3)), columns=list("abc"))
    events = {"a": fc.above(0.3), "b": fc.between(-1, 1), "c": fc.below(0.5)}
    once = seconds(model, model.schema.encode(plain))
    lines = ["| events among three known columns | times a value |", "| ---: | ---: |"]
    for k in range(1, 4):
        rows = plain.assign(**dict(list(events.items())[:k]))
        lines.append(f"| {k} | {seconds(model, model.schema.encode(rows)) / once:.2f} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
