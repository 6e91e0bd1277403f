"""Membership and attribute inference against a released model.

    .venv/bin/python benchmarks/membership.py   # writes docs/benchmarks/membership.md, some minutes

Whoever holds the model tells rows it was trained on from rows it was not, by their log-density
(threshold) and by how far that lies above the density of the columns taken one by one (calibrated,
without shadow models); and guesses a column of a row from the others. AUC .5 is a coin.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

import fedcircuits as fc
from fedcircuits.api.datasets import cancer
from fedcircuits.federation.policy.policy import Policy
from tables import write

SEEDS, LABEL, ID = 3, "diagnosis", "row"
COLUMNS = 6  # every sixth of the 30: their values are guessed, too
Split = Callable[[pd.DataFrame], dict[str, pd.DataFrame]]


def rows_split(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Three clients with a third of the rows each."""
    return {f"c{at}": rows.iloc[at::3].reset_index(drop=True) for at in range(3)}


def columns_split(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Three clients with a third of the columns each, the label at the first."""
    features = [name for name in rows if name != LABEL]
    rows = rows.reset_index(drop=True).assign(**{ID: np.arange(len(rows)) + 10_000})
    held = [[ID, *features[at::3], *([LABEL] if at == 0 else [])] for at in range(3)]
    return {f"c{at}": rows[columns] for at, columns in enumerate(held)}


TABLE = {"agreement": "latent", "table": True}
CASES: dict[str, tuple[Split | None, dict[str, Any]]] = {
    "one table": (None, {}),
    "rows split, no policy": (rows_split, {}),
    "rows split, default policy (min_rows 5)": (rows_split, {"policies": Policy()}),
    "rows split, policy with min_rows 20": (rows_split, {"policies": Policy(min_rows=20)}),
    "rows split, `joint`, masked sums": (rows_split, {"agreement": "joint"}),
    "columns split, no policy (label sent)": (columns_split, {}),
    "columns split, default policy (label used, min_rows 5)": (
        columns_split, {"policies": Policy()},
    ),
    "columns split, table of counts": (columns_split, TABLE),
    "columns split, table with Laplace noise, epsilon 1": (
        columns_split, {**TABLE, "epsilon": 1.0},
    ),
    "columns split, table by randomised response, epsilon 1": (
        columns_split, {**TABLE, "epsilon": 1.0, "mechanism": "randomised-response"},
    ),
}  # fmt: skip


def released(how: str, rows: pd.DataFrame, seed: int) -> Any:
    """A model as a party would release it."""
    split, options = CASES[how]
    if split is None:
        return fc.learn(rows, label=LABEL, seed=seed)
    parts = split(rows)
    given = {"id": ID} if all(ID in part for part in parts.values()) else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fc.federate(parts, label=LABEL, seed=seed, **given, **options)


def attacked(model: Any, inside: pd.DataFrame, outside: pd.DataFrame) -> list[float]:
    """AUC of both attacks on membership; shares of labels and of columns guessed right."""
    truth = np.repeat([1, 0], [len(inside), len(outside)])
    every = pd.concat([inside, outside], ignore_index=True)
    own = model.log_prob(every, unknown="missing").to_numpy()
    # The model's own marginals: nothing is used here that whoever holds the model does not have.
    alone = [model.log_prob(every[[name]], unknown="missing").to_numpy() for name in every]
    apart = own - np.sum(alone, axis=0)
    found = [roc_auc_score(truth, own), roc_auc_score(truth, apart)]
    both = (inside, outside)
    chosen = [name for name in inside if name != LABEL][::COLUMNS]
    for rows in both:
        proba = model.predict_proba(rows.drop(columns=LABEL), LABEL, unknown="missing")
        found.append(float((proba.idxmax(axis=1) == rows[LABEL].to_numpy()).mean()))
    return [*found, *(np.mean([guessed(model, rows, c) for c in chosen]) for rows in both)]


def guessed(model: Any, rows: pd.DataFrame, column: str) -> float:
    """Share of rows of which it is guessed right whether a column lies above its median."""
    middle = float(model.quantile(column, 0.5))
    above = (rows[column] > middle).to_numpy()
    share = model.probability(
        {column: fc.above(middle)}, rows.drop(columns=column), unknown="missing"
    )
    return float(((share.to_numpy() > 0.5) == above).mean())


def main() -> None:
    """Attack models of several seeds and write the page."""
    lines = []
    for how in CASES:
        found = []
        for seed in range(SEEDS):
            split = cancer(seed)
            assert split.label == LABEL
            found.append(attacked(released(how, split.train, seed), split.train, split.test))
            print(how, seed, np.round(found[-1], 3), flush=True)
        mean, spread = np.mean(found, axis=0), np.std(found, axis=0, ddof=1)
        shown = [f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread, strict=True)]
        lines.append([how, *shown])
    sizes = f"{len(split.train)} and {len(split.test)} of them"
    heads = ["released", "threshold, AUC", "calibrated, AUC", "label of members", "of others"]
    heads += ["other columns of members", "columns of others"]
    write(
        "membership",
        "Telling who was in the table from a released model",
        heads,
        lines,
        "python benchmarks/membership.py",
        [
            f"Breast cancer data, {SEEDS} seeds, mean and standard deviation. Members are the "
            f"training rows, others the test rows, {sizes}. AUC .5 is a coin.",
            "Whatever the first two columns have above .5 is what a released model tells about "
            "single members: no differential privacy is claimed for models.",
            "A pair of lines differs in one protection. Masks and seals change no model, so they "
            "change nothing here.",
            "Then the share of rows whose label is guessed from the other columns, and of rows and "
            f"columns (every {COLUMNS}th) of which it is guessed right whether the value lies "
            "above the model's median, from all other columns and the label: what members lose "
            "beyond others is the difference.",
        ],
    )


if __name__ == "__main__":
    main()
