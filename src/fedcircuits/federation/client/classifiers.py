"""Client models that only classify: trees, forests, any scikit-learn classifier, or a density.

A federated circuit need not be probabilistic (section 3.2): its leaves may be classifiers and its
inner nodes average or vote. Whatever a client's learner makes is given one face here,
`posterior(table) -> (n, k)` over the agreed categories of the label.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedcircuits import encoding
from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.density import Density, Learner, LearnsClassifier
from fedcircuits.encoding import Record
from fedcircuits.errors import LearningError
from fedcircuits.federation.client.dispatch import seconds_since
from fedcircuits.federation.wire import requests as m
from fedcircuits.schema import Schema, Table, Variable


@runtime_checkable
class ScikitEstimator(Protocol):
    """An estimator in the manner of scikit-learn, whose `fit` takes arrays."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name."""
        ...


@runtime_checkable
class GivesProbabilities(ScikitEstimator, Protocol):
    """A classifier in the manner of scikit-learn."""

    def predict_proba(self, x: Any) -> Any:
        """Return (n, k) class probabilities."""
        ...


class Classifier(Protocol):
    """A client model that only classifies: p(label | features)."""

    @property
    def schema(self) -> Schema:
        """The features that are looked at."""
        ...

    @property
    def n_parameters(self) -> int:
        """How many numbers it holds."""
        ...

    def posterior(self, table: Table) -> FloatArray:
        """(n, k) probabilities of the label's categories; table over `schema`."""
        ...

    def to_record(self) -> Record | None:
        """Header and arrays, None where the model cannot travel."""
        ...


@dataclass(frozen=True, eq=False)
class DensityClassifier:
    """A density asked for the label.

    Attributes:
        density: over features and label.
        label: its name.
    """

    density: Density
    label: str

    @property
    def schema(self) -> Schema:
        """All variables but the label."""
        return Schema(tuple(v for v in self.density.schema if v.name != self.label))

    @property
    def n_parameters(self) -> int:
        """Number of parameters of the density."""
        return self.density.n_parameters

    def posterior(self, table: Table) -> FloatArray:
        """The exact conditional; the shares of the classes where the evidence is impossible."""
        whole = Table.empty(self.density.schema, len(table))
        at = self.density.schema.position(self.label)
        others = np.delete(np.arange(len(self.density.schema)), at)
        whole.values[:, others], whole.observed[:, others] = table.values, table.observed
        answer = self.density.posterior_table(whole, at)
        lost = np.isnan(answer).any(axis=1)
        if lost.any():
            answer[lost] = self.density.posterior_table(Table.empty(whole.schema, 1), at)
        return answer

    def to_record(self) -> Record | None:
        """Return the record of the density."""
        return self.density.to_record()


@dataclass(frozen=True, eq=False)
class TreesClassifier:
    """A tree or forest of ours as a client classifier.

    Attributes:
        trees: with `posterior`, `features` and `to_record`.
    """

    trees: Any

    @property
    def schema(self) -> Schema:
        """What the trees look at."""
        found: Schema = self.trees.features.schema
        return found

    @property
    def n_parameters(self) -> int:
        """Number of parameters of the trees."""
        return int(self.trees.n_parameters)

    def posterior(self, table: Table) -> FloatArray:
        """(n, Y) class probabilities, the mean over the trees."""
        return np.asarray(self.trees.posterior(table))

    def to_record(self) -> Record | None:
        """Return the record of the trees."""
        record: Record = self.trees.to_record()
        return record


@dataclass(frozen=True, eq=False)
class ScikitClassifier:
    """A fitted scikit-learn classifier; it has no encoding of ours, so it stays where it is.

    Attributes:
        estimator: fitted.
        features: how a table becomes its input.
        fill: (F,) what stands for a missing number.
        n_classes: k, of the agreed label.
    """

    estimator: Any
    features: Any
    fill: FloatArray
    n_classes: int

    @property
    def schema(self) -> Schema:
        """The variables that the classifier looks at."""
        found: Schema = self.features.schema
        return found

    @property
    def n_parameters(self) -> int:
        """0: a scikit-learn estimator has no count of its parameters."""
        return 0

    def posterior(self, table: Table) -> FloatArray:
        """Classes the client never saw have probability 0."""
        x = np.asarray(self.features.inputs(table), dtype=float)
        x = np.where(np.isnan(x), self.fill, x)
        answer = np.zeros((len(table), self.n_classes))
        answer[:, np.asarray(self.estimator.classes_, dtype=int)] = self.estimator.predict_proba(x)
        return answer

    def to_record(self) -> Record | None:
        """Return None: a foreign classifier has no record without pickle, so it stays."""
        return None


def classifier_from_record(
    record: Record, label: str, decode: Callable[[Record], Density]
) -> Classifier:
    """The classifier that was encoded; `decode` rebuilds a density."""
    if record.kind == "trees":
        from fedcircuits.learners.trees import Trees  # with scikit-learn, on demand

        return TreesClassifier(Trees.from_record(record))
    return DensityClassifier(decode(record), label)


def fit_classifier(
    learner: Learner | LearnsClassifier,
    table: Table,
    label: str,
    rng: np.random.Generator,
) -> tuple[Classifier, IntArray]:
    """What a learner of any sort makes of the rows with a label, and rows of each class (k,)."""
    at = table.schema.position(label)
    variable = table.schema.variables[at]
    known = table.observed[:, at] & (table.values[:, at] != variable.missing_code)
    rows = table.rows(known)
    if not len(rows):
        raise LearningError(f"not one row has a value of the label {label!r}")
    if len(rows.schema) < 2:
        raise LearningError(f"there is no column besides the label {label!r}")
    k = len(variable.categories)
    counts = np.bincount(rows.values[:, at].astype(np.int64), minlength=k)
    if isinstance(learner, LearnsClassifier):
        return TreesClassifier(learner.fit_classifier(rows, label, rng)), counts
    if isinstance(learner, ScikitEstimator):
        return _scikit(learner, rows, variable, rng), counts
    return DensityClassifier(learner.fit(rows, rng), label), counts


def train_classifier(
    learner: Any, table: Table, label: str, rng: np.random.Generator, keep: bool
) -> tuple[Classifier, m.ClassifierFitted]:
    """Return a classifier, and the reply about it."""
    start = time.process_time()
    made, counts = fit_classifier(learner, table, label, rng)
    record = None if keep else made.to_record()
    nothing = np.zeros(0, dtype=np.uint8)
    reply = m.ClassifierFitted(
        [float(n) for n in counts],
        list(made.schema.names),
        made.n_parameters,
        seconds_since(start),
        record is None,
        nothing if record is None else m.model_array(encoding.pack(record)),
    )
    return made, reply


def _scikit(learner: Any, rows: Table, label: Variable, rng: np.random.Generator) -> Classifier:
    from sklearn.base import clone
    from sklearn.dummy import DummyClassifier

    from fedcircuits.learners.trees import FeatureMap

    if not isinstance(learner, GivesProbabilities):
        raise LearningError(
            f"{type(learner).__name__} has no predict_proba: pass a scikit-learn classifier that "
            "gives probabilities"
        )
    at = rows.schema.position(label.name)
    y = rows.values[:, at].astype(np.int64)
    features = FeatureMap.of(rows, label.name)
    x = np.asarray(features.inputs(rows), dtype=float)
    seen = ~np.isnan(x)
    fill = np.where(seen, x, 0.0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
    made = clone(learner) if np.unique(y).size > 1 else DummyClassifier(strategy="prior")
    if "random_state" in made.get_params() and made.get_params()["random_state"] is None:
        made.set_params(random_state=int(rng.integers(2**31 - 1)))
    made.fit(np.where(seen, x, fill), y)
    return ScikitClassifier(made, features, fill, len(label.categories))


def part_of(schema: Schema, table: Table) -> Table:
    """The columns of a table that a classifier looks at."""
    return replace(table.columns(list(schema.names)), schema=schema)
