"""Models of this package in an experiment: as published, by default, and by other rules."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedcircuits.api.datasets import Split
from fedcircuits.api.federate import federate
from fedcircuits.api.learn import learn
from fedcircuits.density import Density
from fedcircuits.errors import FedcircuitsWarning
from fedcircuits.experiments.clocked import ClockedEngine
from fedcircuits.experiments.experiment import Context
from fedcircuits.experiments.splits import id_of, shares
from fedcircuits.schema import Schema


@dataclass(frozen=True)
class Trained:
    """A trained model and what its training cost.

    Attributes:
        model: a density, or an ensemble of classifiers.
        facts: seconds, bytes, parameters, rule and learner, for the records.
    """

    model: Any
    facts: dict[str, Any]


def train(
    split: Split,
    setting: Mapping[str, Any],
    seed: int,
    context: Context,
    learner: Any,
    federation: Mapping[str, Any],
    schema: Schema | None = None,
    label: str | None = None,
) -> Trained:
    """Train on the whole table, or over the clients of a setting.

    Args:
        split: the data.
        setting: how rows and columns are split; "none" for one table, "alone" for the first
            client's.
        seed: of split and training.
        context: of the run.
        learner: a name or an object.
        federation: further arguments of `federate`.
        schema: one for all cells of a data set, where their likelihoods are compared.
        label: column to be predicted; None where the label is a column like any other.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedcircuitsWarning)
        start = time.process_time()
        if setting["split"] in ("none", "alone"):
            table = next(iter(shares(split, setting, seed).values()))
            start = time.process_time()
            model = learn(table, label=label, learner=learner, seed=seed, schema=schema)
            seconds = time.process_time() - start
            facts = {"seconds": seconds, "seconds_slowest": seconds, "bytes": 0}
            return Trained(model, facts | _about(model, "none"))
        tables = shares(split, setting, seed)
        clocked = context.engine == "local"
        fed: Any = federate(
            tables,
            id=id_of(setting),
            label=label,
            learner=learner,
            seed=seed,
            schema=schema,
            engine=ClockedEngine if clocked else context.engine,
            **federation,
        )
        seconds = time.process_time() - start
    # Clients of a real run work side by side: the slowest one and the server take the time.
    spent = ClockedEngine.seconds if clocked else {}
    slowest = max(spent.values(), default=seconds)
    server = max(seconds - sum(spent.values()), 0.0) if clocked else 0.0
    facts = {
        "seconds": seconds,
        "seconds_slowest": slowest + server,
        "bytes": int(fed.ledger.n_bytes),
        "bytes_alignment": int(fed.ledger.of_phase("alignment")),
    }
    rule = "average" if "operation" in federation else fed.rule.name
    return Trained(fed, facts | _about(fed, rule))


def _about(model: Any, rule: str) -> dict[str, Any]:
    size = int(model.n_parameters) if isinstance(model, Density) else None
    return {"rule": rule, "parameters": size}


def grid_of(split: Split) -> Schema:
    """Return one schema with one grid for a data set: its base measure for all models."""
    table = Schema.infer(split.train, {split.label: "categorical"}).encode(split.train)
    return table.schema.with_grids(table)
