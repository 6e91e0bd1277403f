"""Training rows with missing cells: hclt beside LightGBM tuned on the same rows.

Cells are missing at random, or more often where they are large, or more often in one class. Test
rows are complete, or have gaps of the same kind: for hclt as empty cells, which are summed out, and
marked as missing, which is evidence where the model has a state for it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss

import fedcircuits as fc
import rivals
import tables
from learners import LOADERS

MOST_ROWS, N_SETTINGS = 6_000, 8
KINDS = ("at random", "large values", "one class")
DATA = ("magic", "spambase", "adult", "credit", "cancer")
SCORES = ("AUC", "log-loss", "ECE")


def with_gaps(kind: str, rows: pd.DataFrame, label: str, seed: int) -> pd.DataFrame:
    """Rows with a fifth of the cells missing; by class, those of the first three numbers."""
    rng = np.random.default_rng(seed)
    if kind == "at random":
        return rivals.masked(rows, label, 0.2, rng)
    chance = np.zeros(rows.shape)
    numbers = [n for n in rows.columns if n != label and pd.api.types.is_numeric_dtype(rows[n])]
    first = rows[label] == sorted(rows[label].unique())[0]
    for name in numbers if kind == "large values" else numbers[:3]:
        large = rows[name].rank(pct=True) > 0.5
        found = np.where(large, 0.4, 0.0) if kind == "large values" else np.where(first, 0.35, 0.1)
        chance[:, rows.columns.get_loc(name)] = found
    return rows.mask(rng.random(rows.shape) < chance)


def scored(truth: Any, proba: Any) -> dict[str, Any]:
    proba = np.asarray(proba, dtype=float)
    return {
        "AUC": rivals.auc(truth, proba),
        "log-loss": log_loss(truth, proba, labels=range(proba.shape[1])),
        "confidence": rivals.confidence(truth, proba),
    }


def measure(data: str, kind: str, seed: int) -> dict[str, dict[str, Any]]:
    """Scores by model and test rows."""
    split = LOADERS[data](seed)
    train, test = (
        r.sample(min(len(r), MOST_ROWS), random_state=seed) for r in (split.train, split.test)
    )
    train, gaps = (with_gaps(kind, r, split.label, seed + i) for i, r in enumerate((train, test)))
    split = replace(split, train=train, test=test)
    prepared = rivals.Prepared(split)
    start = time.process_time()
    rival = rivals.tuned_lightgbm(prepared, train, seed, N_SETTINGS)
    of_rival = time.process_time() - start
    start = time.process_time()
    model = fc.learn(train, split.label, seed=seed)
    ours = time.process_time() - start

    def proba(rows: pd.DataFrame) -> Any:
        return model.predict_proba(rows, split.label, unknown="missing")[prepared.classes]

    answers: list[tuple[str, Callable[[pd.DataFrame], Any], Any, float]] = [
        ("hclt", proba, gaps, ours),
        ("hclt, gaps marked as missing", proba, model.schema.mark_missing(gaps), ours),
        (
            "LightGBM, tuned",
            lambda rows: rival.predict_proba(prepared.features(rows)),
            gaps,
            of_rival,
        ),
    ]
    truth = prepared.test_labels
    return {
        name: {
            "complete": scored(truth, ask(test)),
            "gaps": scored(truth, ask(rows)),
            "learn, CPU s": seconds,
        }
        for name, ask, rows, seconds in answers
    }


def row(found: list[dict[str, Any]]) -> list[str]:
    cells = []
    for rows in ("complete", "gaps"):
        for name in SCORES:
            if name == "ECE":
                pairs = [run[rows]["confidence"] for run in found]
                proba, hit = (np.concatenate([pair[i] for pair in pairs]) for i in (0, 1))
                cells.append(f"{rivals.calibration_error(proba, hit):.4f}")
                continue
            values = [run[rows][name] for run in found]
            spread = np.std(values, ddof=1) if len(values) > 1 else float("nan")
            cells.append(f"{np.mean(values):.4f} ± {spread:.4f}")
    return [*cells, f"{np.mean([run['learn, CPU s'] for run in found]):.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=30)
    parser.add_argument("--data", nargs="*", default=DATA)
    parser.add_argument("--records", type=Path, help="folder of runs done, to go on from")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as fresh:
        folder = arguments.records or Path(fresh)
        folder.mkdir(parents=True, exist_ok=True)
        write(arguments, folder)


def write(arguments: argparse.Namespace, folder: Path) -> None:
    """Run what is not recorded yet and write the page."""
    rows = []
    for data in arguments.data:
        for kind in KINDS:
            runs = []
            for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
                path = folder / f"{data}-{kind.replace(' ', '_')}-{seed}.json"
                if not path.exists():
                    found = measure(data, kind, seed)
                    path.write_text(json.dumps(found, default=np.ndarray.tolist))
                runs.append(json.loads(path.read_text()))
            rows += [[data, kind, name, *row([run[name] for run in runs])] for name in runs[0]]
    columns = [f"{name}, {which}" for which in ("complete", "gaps") for name in SCORES]
    tables.write(
        "gaps",
        "Training rows with missing cells",
        ["data", "gaps", "model", *columns, "learn, CPU s"],
        rows,
        f"python benchmarks/gaps.py --seeds {arguments.seeds} --first-seed {arguments.first_seed} "
        "--records FOLDER",
        [
            f"Mean ± standard deviation (n - 1) over {arguments.seeds} seeds of rows and gaps; at "
            f"most {MOST_ROWS:,} training and test rows; ECE as on the page about learners.",
            "Gaps: at random, a fifth of all cells; large values, 40 % of the numbers above the "
            "median of their column; one class, the first three numeric columns, 35 % in the first "
            "class and 10 % in the others. Test rows are complete, or have gaps of the same kind.",
            "hclt sums empty cells out. Marked by `model.schema.mark_missing(rows)`, that a cell "
            "is missing is evidence; the scikit-learn estimators mark columns whose gaps tell the "
            "label.",
            "Complete rows of a table whose gaps depend on the label are rows of another "
            "distribution than those learned from: no model is calibrated on them.",
            f"LightGBM, tuned: as on the page about learners, of {N_SETTINGS} settings; it reads "
            "an empty cell as it did in training.",
        ],
    )


if __name__ == "__main__":
    main()
