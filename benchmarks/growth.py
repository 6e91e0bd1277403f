"""Cost of `fc.learn` as the table grows: CPU seconds and peak memory, 30 mixed columns and a label.

Every size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

import fedcircuits as fc
import tables

TEST_ROWS = 20_000


def mixed_table(n: int, seed: int = 0) -> pd.DataFrame:
    """15 numbers, 8 counts and 7 categories driven by three hidden numbers, and a yes or no."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n, 3))
    columns: dict[str, object] = {}
    for j in range(15):
        noise = rng.normal(size=n)
        x = hidden[:, j % 3] * (0.3 + 0.1 * j) + noise
        columns[f"number{j}"] = np.exp(x) if j % 5 == 0 else x
    for j in range(8):
        columns[f"count{j}"] = rng.poisson(np.exp(0.5 * hidden[:, j % 3] + 0.2 * j))
    for j in range(7):
        n_kinds = 3 + 4 * j
        shifted = hidden[:, j % 3] + 0.8 * rng.normal(size=n)
        kind = np.clip((shifted + 3) / 6 * n_kinds, 0, n_kinds - 1).astype(int)
        columns[f"kind{j}"] = pd.Categorical.from_codes(
            kind, [f"k{i}" for i in range(n_kinds)]
        ).astype(str)
    logit = hidden[:, 0] + 0.5 * hidden[:, 1] * hidden[:, 2]
    columns["label"] = np.where(rng.random(n) < 1 / (1 + np.exp(-logit)), "yes", "no")
    return pd.DataFrame(columns)


def one_size(n: int) -> dict[str, float]:
    """Learn from n rows; the table is made before the clock starts."""
    rows = mixed_table(n + TEST_ROWS)
    train, test = rows.iloc[:n], rows.iloc[n:]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, start = time.perf_counter(), time.process_time()
    model = fc.learn(train, label="label", seed=0)
    learned = time.process_time() - start
    wall = time.perf_counter() - wall
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    proba = model.predict_proba(test, "label")["yes"]
    assert model.fit_report is not None
    return {
        "cpu": learned,
        "wall": wall,
        "peak": peak / 2**20,
        "before": before / 2**20,
        "auc": float(roc_auc_score(test["label"] == "yes", proba)),
        "log_prob": model.mean_log_prob(test.iloc[:5000]),
        "states": float(model.fit_report.sizes["states"]),
        "parameters": float(model.n_parameters),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--one", type=int, help="one size in this process, as JSON")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    if arguments.one is not None:
        print(json.dumps(one_size(arguments.one)))
        return
    rows = []
    for n in arguments.rows:
        command = [sys.executable, __file__, "--one", str(n)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{n} rows failed:\n{done.stderr}")
        found = json.loads(done.stdout.strip().splitlines()[-1])
        rows.append(
            [f"{n:,}", f"{found['cpu']:.1f}", f"{found['wall']:.1f}",
             f"{1e6 * found['cpu'] / n:.0f}", f"{found['peak']:.2f}", f"{found['before']:.2f}",
             f"{found['auc']:.4f}", f"{found['log_prob']:.3f}", int(found["states"]),
             int(found["parameters"])]
        )  # fmt: skip
        print(rows[-1], flush=True)
    tables.write(
        "growth",
        "Cost of learning as the table grows: `hclt` with a label, 30 mixed columns",
        ["rows", "CPU s", "wall s", "CPU µs a row", "peak GiB", "of it before learning, GiB",
         "AUC", "log-density", "states", "parameters"],
        rows,
        "python benchmarks/growth.py",
        [
            "15 numbers, 8 counts, 7 categories and a label, all driven by three hidden numbers; "
            "default settings; a process of its own for every size.",
            f"AUC and mean log-density on {TEST_ROWS:,} and 5,000 rows not learned from.",
            "Peak memory includes Python, its libraries and the table itself.",
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
