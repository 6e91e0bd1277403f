"""Membership and attribute inference against a released model.

    .venv/bin/python benchmarks/membership.py   # writes docs/benchmarks/membership.md, two minutes

Whoever holds the model tells rows it was trained on from rows it was not, by their log-density
(threshold) and by how far that lies above the density of the columns taken one by one (calibrated,
without shadow models); and guesses a column of a row from the others. AUC .5 is a coin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

import fedcircuits as fc
from fedcircuits.api.datasets import cancer
from tables import write

SEEDS = 3


def released(how: str, rows: pd.DataFrame, label: str, seed: int) -> Any:
    """A model as a party would release it."""
    if how.startswith("one table"):
        return fc.learn(rows, label=label, seed=seed)
    parts = {f"client-{at}": rows.iloc[at::3].reset_index(drop=True) for at in range(3)}
    return fc.federate(parts, label=label, seed=seed)


def attacked(model: Any, inside: pd.DataFrame, outside: pd.DataFrame, label: str) -> list[float]:
    """AUC of both attacks on membership; share of guessed labels inside and outside."""
    truth = np.repeat([1, 0], [len(inside), len(outside)])
    every = pd.concat([inside, outside], ignore_index=True)
    own = model.log_prob(every, unknown="missing").to_numpy()
    # The model's own marginals: nothing is used here that whoever holds the model does not have.
    alone = [model.log_prob(every[[name]], unknown="missing").to_numpy() for name in every]
    apart = own - np.sum(alone, axis=0)
    found = [roc_auc_score(truth, own), roc_auc_score(truth, apart)]
    for rows in (inside, outside):
        proba = model.predict_proba(rows.drop(columns=label), label, unknown="missing")
        found.append(float((proba.idxmax(axis=1) == rows[label].to_numpy()).mean()))
    return found


def main() -> None:
    """Attack models of several seeds and write the page."""
    lines = []
    for how in ("one table", "federation of rows, three clients"):
        found = []
        for seed in range(SEEDS):
            split = cancer(seed)
            model = released(how, split.train, split.label, seed)
            found.append(attacked(model, split.train, split.test, split.label))
            print(how, seed, np.round(found[-1], 3), flush=True)
        mean, spread = np.mean(found, axis=0), np.std(found, axis=0, ddof=1)
        shown = [f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread, strict=True)]
        lines.append([how, *shown])
    sizes = f"{len(split.train)} and {len(split.test)} of them"
    heads = ["released", "threshold, AUC", "calibrated, AUC", "label of members", "of others"]
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
            "The last two columns are the share of rows whose label is guessed from the other "
            "columns: what members lose beyond others is their difference.",
        ],
    )


if __name__ == "__main__":
    main()
