"""Table learners on real data: Adult, Give Me Some Credit, Cancer, beside LightGBM.

Held-out test rows, choices on validation rows inside the training rows, three seeds. Log-mass is
the mass of (x, y) on the grid of the schema (nats per row), comparable between models on one grid.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

import fedcircuits as fc
import tables
from fedcircuits.api import datasets

DATA = Path(os.environ.get("FEDCIRCUITS_DATA", tables.ROOT.parent / "shared" / "data"))
MISSING_SHARE, MISSING_ROWS = 0.3, 10_000


def log_mass(model: fc.Density, rows: pd.DataFrame) -> float:
    """Mean log-mass of the rows' grid states."""
    table = model.schema.encode(rows)
    total = model.log_prob_table(table)
    for at, variable in enumerate(model.schema):
        if variable.grid is not None:
            seen = table.observed[:, at]
            total[seen] -= variable.grid.log_within(table.values[seen, at])
    return float(total.mean())


def masked(rows: pd.DataFrame, label: str, rng: np.random.Generator) -> pd.DataFrame:
    """Rows with a share of the cells missing at random, the label apart."""
    hidden = rng.random(rows.shape) < MISSING_SHARE
    hidden[:, rows.columns.get_loc(label)] = False
    return rows.mask(hidden)


def with_gaps(split: datasets.Split, seed: int) -> tuple[pd.DataFrame, Any]:
    """Test rows with a share of the cells missing, and which of them are positive."""
    rows = split.test.iloc[:MISSING_ROWS]
    hidden = masked(rows, split.label, np.random.default_rng(seed))
    return hidden, rows[split.label] == split.positive


def scores(truth: Any, proba: Any) -> dict[str, float]:
    return {
        "accuracy": accuracy_score(truth, proba > 0.5),
        "macro-F1": f1_score(truth, proba > 0.5, average="macro"),
        "AUC": roc_auc_score(truth, proba),
    }


# Rows of the table: learner and options. The last one is what a user who wants it all gets.
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "hclt": ("hclt", {}),
    "mixture": ("mixture", {}),
    "hclt, transitions and head asked for": ("hclt", {"class_transitions": True, "head": True}),
}


def ours(name: str, split: datasets.Split, seed: int) -> dict[str, float]:
    learner, options = OURS[name]
    start = time.process_time()
    model = fc.learn(split.train, label=split.label, learner=learner, seed=seed, **options)
    learned = time.process_time() - start
    truth = split.test[split.label] == split.positive
    start = time.process_time()
    proba = model.predict_proba(split.test, split.label)[split.positive]
    predicted = time.process_time() - start
    answer = scores(truth, proba)
    if not options:
        hidden, truth = with_gaps(split, seed)
        answer["AUC, 30 % missing"] = roc_auc_score(
            truth, model.predict_proba(hidden, split.label)[split.positive]
        )
    answer["log-mass"] = log_mass(model, split.test)
    answer["learn, CPU s"] = learned
    answer["predict, CPU s"] = predicted
    answer["parameters"] = model.n_parameters
    assert model.fit_report is not None
    for column, choice in (("transitions", "class transitions"), ("head", "head of trees")):
        answer[column] = model.fit_report.kept.get(f"{choice} kept", False)
    print(name, seed, answer, model.fit_report.kept, flush=True)
    return answer


def lightgbm_default(split: datasets.Split, seed: int, copies: bool) -> dict[str, float]:
    """LightGBM with default settings and declared categories; with masked copies on request."""

    def prepared(rows: pd.DataFrame) -> pd.DataFrame:
        rows = rows.drop(columns=split.label).copy()
        for name in rows.columns:
            if not pd.api.types.is_numeric_dtype(split.train[name]):
                rows[name] = pd.Categorical(rows[name], sorted(split.train[name].unique()))
        return rows

    rng = np.random.default_rng(seed)
    train = split.train
    if copies:
        train = pd.concat([train, *(masked(train, split.label, rng) for _ in range(3))])
    start = time.process_time()
    model = lightgbm.LGBMClassifier(random_state=seed, verbose=-1, n_jobs=1)
    model.fit(prepared(train), train[split.label] == split.positive)
    learned = time.process_time() - start
    truth = split.test[split.label] == split.positive
    answer = scores(truth, model.predict_proba(prepared(split.test))[:, 1])
    hidden, truth = with_gaps(split, seed)
    answer["AUC, 30 % missing"] = roc_auc_score(truth, model.predict_proba(prepared(hidden))[:, 1])
    answer["learn, CPU s"] = learned
    return answer


COLUMNS = (
    "accuracy", "macro-F1", "AUC", "AUC, 30 % missing", "log-mass", "learn, CPU s",
    "predict, CPU s", "parameters", "transitions", "head",
)  # fmt: skip


def row(data: str, model: str, runs: list[dict[str, float]]) -> list[Any]:
    cells: list[Any] = [data, model]
    for name in COLUMNS:
        found = [run[name] for run in runs if name in run]
        if not found:
            cells.append("-")
        elif name == "parameters":
            cells.append(int(np.mean(found)))
        elif name in ("transitions", "head"):
            cells.append(f"{int(sum(found))} of {len(found)}")
        else:
            digits = 4 if name not in ("learn, CPU s", "predict, CPU s") else 2
            cells.append(f"{np.mean(found):.{digits}f} ± {np.std(found):.{digits}f}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", nargs="*", default=["adult", "credit", "cancer"])
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    loaders: dict[str, Callable[[int], datasets.Split]] = {
        "adult": lambda _: datasets.adult(DATA),
        "credit": lambda seed: datasets.credit(DATA, seed),
        "cancer": datasets.cancer,
    }
    rows = []
    for data in arguments.data:
        if data != "cancer" and not DATA.is_dir():
            print(f"{data} left out: no folder {DATA}")
            continue
        splits = [(seed, loaders[data](seed)) for seed in range(arguments.seeds)]
        for name in OURS:
            rows.append(row(data, name, [ours(name, split, seed) for seed, split in splits]))
            print(rows[-1], flush=True)
        for copies in (False, True):
            name = "LightGBM on masked copies" if copies else "LightGBM"
            found = [lightgbm_default(split, seed, copies) for seed, split in splits]
            rows.append(row(data, name, found))
            print(rows[-1], flush=True)
    tables.write(
        "learners",
        "Table learners beside LightGBM",
        ["data", "model", *COLUMNS],
        rows,
        "python benchmarks/learners.py",
        [
            f"Mean ± standard deviation over {arguments.seeds} seeds (of the split where it is "
            "random, of the learner everywhere). Adult: UCI split.",
            "Log-mass: of (x, y) on the schema's grid, nats per row.",
            "Transitions, head: in how many of the runs they are part of the model; where nobody "
            "asks for them, validation rows decide.",
            f"30 % missing: cells hidden at random in the first {MISSING_ROWS:,} test rows; ours "
            "marginalise exactly.",
        ],
    )


if __name__ == "__main__":
    main()
