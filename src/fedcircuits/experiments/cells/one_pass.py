"""Table 3 of the paper: EM beside one pass on one architecture, and where independence fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.api.datasets import Split
from fedcircuits.experiments import data, ours, scores
from fedcircuits.experiments.experiment import Cell, Context, Experiment
from fedcircuits.learners.einet import EiNet

COUPLED = "coupled "  # the rest of the name is the share of rows whose clusters belong together


def run(cell: Cell, experiment: Experiment, context: Context) -> dict[str, Any]:
    """Return the log-likelihood of test rows; every client fits the same RAT-SPN."""
    if cell.data.startswith(COUPLED):
        split = coupled(float(cell.data.removeprefix(COUPLED)), cell.seed)
    else:
        split = data.load(cell.data, context.folder, cell.seed, experiment.most_rows)
    setting = experiment.settings[cell.setting]
    options = experiment.options
    learner = EiNet(
        structure="random-trees", depth=2, repetitions=4, width=int(options["width"]),
        leaf="gaussian", epochs=int(options["epochs"]), device=context.device,
    )  # fmt: skip
    made = ours.train(
        split,
        setting,
        cell.seed,
        context,
        learner,
        dict(options["rules"][cell.model]),
        ours.grid_of(split),
    )
    found = made.model.log_prob(split.test, unknown="missing")
    facts = {"rows": len(split.train), "columns": split.train.shape[1]}
    return {**facts, **made.facts, **scores.likelihood(found.to_numpy())}


def coupled(share: float, seed: int, n_rows: int = 2000) -> Split:
    """Return rows of two halves of columns with two clusters each, which a share of rows couples.

    Without coupling the clusters of the two halves are independent of each other, as Assumption 2
    of the paper has it; with a share of one they are the same.
    """
    rng = np.random.default_rng([seed, 3])
    first = rng.integers(2, size=2 * n_rows)
    second = np.where(rng.random(2 * n_rows) < share, first, rng.integers(2, size=2 * n_rows))
    centres = rng.normal(scale=1.5, size=(2, 2, 4))  # half, cluster, column
    values = [centres[h, own] for h, own in enumerate((first, second))]
    x = np.concatenate(values, axis=1) + rng.normal(size=(2 * n_rows, 8))
    frame = pd.DataFrame(x, columns=[f"x{at}" for at in range(8)])
    frame["label"] = np.where(rng.random(2 * n_rows) < 0.5, "a", "b")  # says nothing
    test = frame.iloc[n_rows:].reset_index(drop=True)
    return Split(frame.iloc[:n_rows], test, "label", "a")
