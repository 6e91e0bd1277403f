"""Likelihood and accuracy from one client to a hundred, with as many rows in all."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcircuits.experiments import data, ours, scores
from fedcircuits.experiments.cells.density import PIXELS, model_of
from fedcircuits.experiments.experiment import Cell, Context, Experiment


def run(cell: Cell, experiment: Experiment, context: Context) -> dict[str, Any]:
    """Return log-likelihood, classification scores, seconds and bytes of one federation."""
    split = data.load(cell.data, context.folder, cell.seed, experiment.most_rows)
    setting = experiment.settings[cell.setting]
    learner, federation, label = model_of(cell, experiment, setting, split.label)
    schema = None if cell.data in PIXELS else ours.grid_of(split)
    made = ours.train(split, setting, cell.seed, context, learner, federation, schema, label)
    facts = {"rows": len(split.train), "columns": split.train.shape[1]}
    rows = split.test[[name for name in split.test.columns if name in made.model.schema.names]]
    found = scores.likelihood(made.model.log_prob(rows, unknown="missing").to_numpy())
    if split.label in made.model.schema.names:
        answer = made.model.predict_proba(
            rows.drop(columns=split.label), split.label, unknown="missing"
        )
        proba = np.asarray(answer.to_numpy(), dtype=float)
        found |= scores.classification(proba, list(answer.columns), split)
    return {**facts, **made.facts, **found}
