"""Table 1 of the paper: log-likelihood and run time, centralised and in three splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcircuits.experiments import data, ours, scores
from fedcircuits.experiments.experiment import Cell, Context, Experiment, published
from fedcircuits.learners.hclt.learner import Hclt
from fedcircuits.learners.learnspn import LearnSPN

PIXELS = ("mnist", "digits")


def run(cell: Cell, experiment: Experiment, context: Context) -> dict[str, Any]:
    """Return log-likelihood, seconds and bytes of one model.

    All models of a data set have one schema, made from its training rows: counting measure on the
    atoms of its grid, and on whole numbers and categories, length elsewhere, in the data's units.
    """
    split = data.load(cell.data, context.folder, cell.seed, experiment.most_rows)
    setting = setting_of(cell, experiment)
    learner, federation, label = model_of(cell, experiment, setting, split.label)
    schema = None if cell.data == "mnist" else ours.grid_of(split)
    made = ours.train(split, setting, cell.seed, context, learner, federation, schema, label)
    rows = split.test[[name for name in split.test.columns if name in made.model.schema.names]]
    found = made.model.log_prob(rows, unknown="missing")
    facts = {"rows": len(split.train), "columns": split.train.shape[1]}
    return {**facts, **made.facts, **scores.likelihood(found.to_numpy())}


def setting_of(cell: Cell, experiment: Experiment) -> Mapping[str, Any]:
    """Return how the data of a cell are split.

    Algorithm 1 splits columns into disjoint blocks. A label at all clients would be a block of its
    own, independent of all others, so for the published model one client alone holds it.
    """
    setting: Mapping[str, Any] = experiment.settings[cell.setting]
    if cell.model == "published" and setting["split"] == "columns":
        return {**setting, "label": "one"}
    return setting


def model_of(
    cell: Cell, experiment: Experiment, setting: Mapping[str, Any], label: str
) -> tuple[Any, dict[str, Any], str | None]:
    """Return learner, arguments of `federate`, and the label where the model knows of one."""
    if cell.data == "mnist":
        return _of_images(cell, experiment, setting)
    if cell.model == "published":
        learner = LearnSPN(**published(setting["split"], cell.data))
        return learner, {"agreement": "independent", "glueing": "combinatorial"}, None
    if cell.model == "one tree":
        return Hclt(n_trees=1), {}, label
    if cell.model == "joint":
        return "hclt", {"agreement": "joint"}, label
    return "hclt", {}, label


def _of_images(
    cell: Cell, experiment: Experiment, setting: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], str | None]:
    from fedcircuits.learners.einet import EiNet

    epochs = int(experiment.options["epochs"])
    if cell.model == "published":
        learner = EiNet(
            structure="poon-domingos", pieces=8, width=10, leaf="discretised-gaussian",
            epochs=epochs, batch=64, frequency=5, step=0.1, last_step=0.1, min_variance=1e-3,
            max_variance=0.25,
        )  # fmt: skip
        return learner, {"agreement": "independent", "glueing": "combinatorial"}, None
    # A mixture of one model a client; a client alone would be split into clusters.
    plain = {"agreement": "independent", "n_clusters": 1}
    return EiNet(epochs=epochs), plain if setting["split"] == "rows" else {}, None
