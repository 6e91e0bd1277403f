"""The F1 figure and the appendix table of the paper: classification beside trained rivals."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcircuits.experiments import data, ours, rivals, scores
from fedcircuits.experiments.cells.density import model_of, setting_of
from fedcircuits.experiments.experiment import Cell, Context, Experiment


def run(cell: Cell, experiment: Experiment, context: Context) -> dict[str, Any]:
    """Return accuracy, macro-F1, AUC, log-loss, bytes and seconds of one model."""
    split = data.load(cell.data, context.folder, cell.seed, experiment.most_rows)
    setting = setting_of(cell, experiment)
    facts: dict[str, Any] = {"rows": len(split.train), "columns": split.train.shape[1]}
    if cell.model in rivals.RIVALS:
        proba, classes, found = rivals.train(
            cell.model, split, setting, cell.seed, experiment.options["rivals"]
        )
        return {**facts, **found, **scores.classification(proba, classes, split)}
    learner, federation, label = model_of(cell, experiment, setting, split.label)
    if cell.model == "FC [DT]":
        learner, federation = "forest", {"operation": "average"}
    # No schema is handed over: clients agree on one, as users' clients do.
    made = ours.train(split, setting, cell.seed, context, learner, federation, None, label)
    rows = split.test.drop(columns=split.label)
    answer = made.model.predict_proba(rows, split.label, unknown="missing")
    proba = np.asarray(answer.to_numpy(), dtype=float)
    return {**facts, **made.facts, **scores.classification(proba, list(answer.columns), split)}
