"""CPU seconds of learning and microseconds a row of answers, beside an earlier state of the code.

    python benchmarks/speed.py --record now.json
    python benchmarks/speed.py --record before.json         (with the earlier code on the path)
    python benchmarks/speed.py --page before.json now.json  (writes the page)

Every figure is CPU time of one thread, the least of three for answers; imports are done before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import tables

DATA = tables.ROOT.parent / "shared" / "data"
ANSWER_ROWS = 10_000
# Name of the figure, unit, how many times faster is the floor, and the aim.
FIGURES = (
    ("learn Adult (32,561 x 15)", "CPU s", 3, 6),
    ("learn Credit (112,500 x 11)", "CPU s", 3, 6),
    ("predict_proba, complete rows (Adult)", "us a row", 4, 8),
    ("predict_proba, 30 % of cells missing", "us a row", 4, 8),
    ("log_prob", "us a row", 4, 8),
    ("sample", "us a row", 4, 8),
    ("conditional sample, every other column given", "us a row", 4, 8),
    ("expectation of one column", "us a row", 5, 10),
    ("mpe", "us a row", 8, 16),
    ("predict_proba of one row", "us", 3, 5),
    ("predict_proba of one row, 30 % of cells missing", "us", 3, 5),
    ("mpe of one row", "us", 3, 5),
    ("Adult over 5 clients, all CPU", "CPU s", 2, 3),
    ("80 clients of 100 rows: federate, a client", "CPU s", 1, 1),
    ("80 clients of 100 rows: log_prob", "us a row", 5, 10),
    ("80 clients of 100 rows: predict_proba", "us a row", 5, 10),
    ("LightGBM, Adult", "CPU s", 1, 1),
)


def least(ask: Callable[[], object], n: int, times: int = 3) -> float:
    """Microseconds a row, the least of a few runs; the first one prepares and is not counted."""
    ask()
    found = []
    for _ in range(times):
        start = time.process_time()
        ask()
        found.append(time.process_time() - start)
    return 1e6 * min(found) / n


def adult() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The UCI split."""
    rows = pd.read_parquet(DATA / "adult.parquet")
    train = rows[rows["split"] == "train"].drop(columns="split")
    return train, rows[rows["split"] != "train"].drop(columns="split")


def measure() -> dict[str, float]:
    """All figures but the largest table's."""
    import fedcircuits as fc

    found: dict[str, float] = {}
    train, test = adult()
    tiny = train.sample(800, random_state=0)
    fc.learn(tiny, "income", seed=0)  # imports

    def learn(rows: pd.DataFrame, label: str) -> tuple[Any, float]:
        start = time.process_time()
        model = fc.learn(rows, label, seed=0)
        return model, time.process_time() - start

    model, found["learn Adult (32,561 x 15)"] = learn(train, "income")
    credit = pd.read_parquet(DATA / "give_me_some_credit.parquet").drop(columns="id")
    credit = credit.sample(frac=0.75, random_state=0)
    found["learn Credit (112,500 x 11)"] = learn(credit, "SeriousDlqin2yrs")[1]
    found |= answers(model, test)
    found |= clients(train, test)
    found |= lightgbm_seconds(train)
    return found


def answers(model: Any, test: pd.DataFrame) -> dict[str, float]:
    """Microseconds a row of every question about Adult."""
    known = test[test["native-country"] != "Holand-Netherlands"]
    rows = known.sample(ANSWER_ROWS, random_state=1)
    rng = np.random.default_rng(0)
    gaps = rows.mask(rng.random(rows.shape) < 0.3)
    half = rows.copy()
    half[half.columns[::2]] = np.nan
    one, one_with_gaps, n = rows.iloc[:1], gaps.iloc[:1], ANSWER_ROWS

    def often(ask: Callable[[], object]) -> Callable[[], object]:
        return lambda: [ask() for _ in range(100)]

    return {
        "predict_proba, complete rows (Adult)": least(
            lambda: model.predict_proba(rows, "income"), n
        ),
        "predict_proba, 30 % of cells missing": least(
            lambda: model.predict_proba(gaps, "income"), n
        ),
        "log_prob": least(lambda: model.log_prob(rows), n),
        "sample": least(lambda: model.sample(n, seed=0), n),
        "conditional sample, every other column given": least(
            lambda: model.sample(given=half, seed=0), n
        ),
        "expectation of one column": least(lambda: model.expectation("age", given=half), n),
        "mpe": least(lambda: model.mpe(half), n),
        "predict_proba of one row": least(often(lambda: model.predict_proba(one, "income")), 100),
        "predict_proba of one row, 30 % of cells missing": least(
            often(lambda: model.predict_proba(one_with_gaps, "income")), 100
        ),
        "mpe of one row": least(often(lambda: model.mpe(one_with_gaps)), 100),
    }


def clients(train: pd.DataFrame, test: pd.DataFrame) -> dict[str, float]:
    """Federations in one process: all of Adult over five, and eighty of a hundred rows."""
    import fedcircuits as fc

    shuffled = train.sample(frac=1.0, random_state=0).reset_index(drop=True)

    def federate(n_clients: int, rows: int) -> tuple[Any, float]:
        parts = {
            f"client{i:03}": shuffled.iloc[i * rows : (i + 1) * rows] for i in range(n_clients)
        }
        start = time.process_time()
        model = fc.federate(parts, label="income", seed=0)
        return model, time.process_time() - start

    found = {"Adult over 5 clients, all CPU": federate(5, len(train) // 5)[1]}
    model, seconds = federate(80, 100)
    found["80 clients of 100 rows: federate, a client"] = seconds / 80
    rows = test.iloc[:2000]
    found["80 clients of 100 rows: log_prob"] = least(
        lambda: model.log_prob(rows, unknown="missing"), 2000, 2
    )
    found["80 clients of 100 rows: predict_proba"] = least(
        lambda: model.predict_proba(rows, "income", unknown="missing"), 2000, 2
    )
    return found


def lightgbm_seconds(train: pd.DataFrame) -> dict[str, float]:
    """LightGBM with default settings on one thread, in the same run."""
    try:
        import lightgbm
    except ImportError:
        print("LightGBM left out: it is not installed", file=sys.stderr)
        return {}
    x = train.drop(columns="income")
    x = x.astype({c: "category" for c in x.columns if not pd.api.types.is_numeric_dtype(x[c])})
    y = (train["income"] == train["income"].unique()[0]).to_numpy()
    start = time.process_time()
    lightgbm.LGBMClassifier(n_jobs=1, verbose=-1).fit(x, y)
    return {"LightGBM, Adult": time.process_time() - start}


def page(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Write docs/benchmarks/speed.md."""
    rows = []
    for name, unit, floor, aim in FIGURES:
        if name not in now["figures"]:
            continue
        new, old = now["figures"][name], before["figures"].get(name)
        ratio = None if old is None else old / new
        asked = f"{floor} / {aim}" if aim > 1 else ""
        reached = ""
        if ratio is not None and aim > 1:
            reached = "aim" if ratio >= aim else "floor" if ratio >= floor else "no"
        shown = "" if old is None else f"{old:.3g}"
        times = "" if ratio is None else f"{ratio:.1f}"
        rows.append([name, unit, shown, f"{new:.3g}", times, asked, reached])
    tables.write(
        "speed",
        "Learning and answering, before and after compiled passes",
        ["", "unit", "before", "now", "times faster", "floor / aim", "reached"],
        rows,
        "python benchmarks/speed.py",
        [
            f"Before: commit {before['commit']}, now: {now['commit']}; both on this machine, "
            "CPU time of one thread (the machine was shared, so that wall time says little, "
            "CPU time is some tens of percent above that of a quiet one and ratios are uncertain "
            "by a tenth or two).",
            "Answers are the least of three runs over 10,000 test rows of Adult, the first "
            "question, which prepares the model, not counted; of one row, the mean of 100 calls.",
            "Imports are done before the clock starts.",
            *(
                [f"Processes that wanted a core at the end of the run of now: {now['load']:.0f}."]
                if "load" in now
                else []
            ),
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", help="measure and write figures to this file")
    parser.add_argument("--page", nargs=2, metavar=("BEFORE", "NOW"), help="write the page")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    if arguments.page:
        page(*(json.loads(Path(name).read_text()) for name in arguments.page))
        return
    if not arguments.record:
        parser.error("--record FILE or --page BEFORE NOW")
    import fedcircuits

    where = Path(fedcircuits.__file__).parent
    asked = ["git", "-C", str(where), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    Path(arguments.record).write_text(
        json.dumps({"commit": commit, "figures": measure(), "load": os.getloadavg()[1]}, indent=1)
    )


if __name__ == "__main__":
    main()
