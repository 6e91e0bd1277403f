"""Decision trees and forests as client classifiers (FC[DT] of the paper).

scikit-learn grows the trees; what is kept is a value of plain arrays that NumPy evaluates and that
is stored without pickle. A `TreeClassifier` or `ForestClassifier` holds settings, its
`fit_classifier` returns `Trees`, which answer p(label | features) and nothing else: they are no
density.

Numbers enter as they are. A category has an indicator column of its own if it is among the 64 most
frequent. Missing cells take the branch scikit-learn learned for them, or that of most rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from fedcircuits import encoding
from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.errors import MALFORMED, LearningError, QueryError, SchemaError, StorageError
from fedcircuits.schema import Data, Schema, Table, Variable, read
from fedcircuits.schema.table import Unknown
from fedcircuits.schema.variable import Category

MAX_INDICATORS = 64
Float32Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """Maps the variables of a table to the input columns of trees.

    Attributes:
        schema: the variables that are looked at, the label not among them.
        variable: (F,) position of the variable behind each input column.
        category: (F,) code whose indicator the column is; -1 for the number itself.
    """

    schema: Schema
    variable: IntArray
    category: IntArray

    @staticmethod
    def of(table: Table, label: str) -> FeatureMap:
        """The columns made of a table without its label."""
        schema = Schema(tuple(v for v in table.schema if v.name != label))
        columns: list[tuple[int, int]] = []
        for at, variable in enumerate(schema):
            if not variable.is_coded or len(variable.categories) <= 2:
                columns.append((at, -1))
                continue
            here = table.schema.position(variable.name)
            codes = table.values[table.observed[:, here], here].astype(np.int64)
            counts = np.bincount(codes, minlength=variable.n_codes)[: len(variable.categories)]
            frequent = np.sort(np.argsort(-counts, kind="stable")[:MAX_INDICATORS])
            columns += [(at, int(code)) for code in frequent]
        made = np.array(columns, dtype=np.int64)
        return FeatureMap(schema, made[:, 0], made[:, 1])

    def inputs(self, table: Table) -> Float32Array:
        """(n, F) input of the trees; NaN where a cell is missing, or observed to be missing.

        float32, because scikit-learn compares numbers in that precision.
        """
        answer = np.full((len(table), self.variable.size), np.nan, dtype=np.float32)
        for at, variable in enumerate(self.schema):
            if variable.name not in table.schema:
                continue  # a column that is absent is missing
            here = table.schema.position(variable.name)
            _check_same(variable, table.schema.variables[here])
            x = table.values[:, here]
            seen = table.observed[:, here] & (x != variable.missing_code)
            for column in np.flatnonzero(self.variable == at):
                code = self.category[column]
                answer[seen, column] = x[seen] if code < 0 else x[seen] == code
        return answer


def _check_same(mine: Variable, other: Variable) -> None:
    if mine.categories != other.categories or mine.is_coded != other.is_coded:
        raise SchemaError(
            f"variable {mine.name!r}: the table codes other categories than the trees were grown on"
        )


@dataclass(frozen=True, eq=False)
class Trees:
    """One or more fitted trees; the posterior is the mean of theirs.

    Attributes:
        features: how a table becomes the trees' input.
        label: the variable that is predicted.
        first: (T,) number of the root of each tree.
        left, right: (N,) children of each node, itself at a leaf.
        feature: (N,) input column a node looks at.
        threshold: (N,) a row goes left if its input is at most that.
        missing_left: (N,) where a row goes whose input is missing.
        value: (N, k) class probabilities at each node.
    """

    features: FeatureMap
    label: Variable
    first: IntArray
    left: IntArray
    right: IntArray
    feature: IntArray
    threshold: FloatArray
    missing_left: BoolArray
    value: FloatArray

    def __post_init__(self) -> None:
        faults = self._faults()
        if faults:
            raise StorageError("not valid trees: " + "; ".join(faults))

    def _faults(self) -> list[str]:
        n = self.left.size
        per_node = (self.left, self.right, self.feature, self.threshold, self.missing_left)
        if n == 0 or any(a.shape != (n,) for a in per_node):
            return ["one entry a node is needed in every array"]
        if self.value.shape != (n, len(self.classes)):
            return [f"value must give {len(self.classes)} numbers a node"]
        faults = []
        if not (np.isfinite(self.value).all() and np.allclose(self.value.sum(axis=1), 1)):
            faults.append("class probabilities must sum to one")
        if (self.value < 0).any():
            faults.append("class probabilities must not be negative")
        if self.first.ndim != 1 or self.first.size == 0 or not _within(self.first, n):
            faults.append("a root is not a node")
        if self.features.variable.shape != self.features.category.shape:
            faults.append("input columns are ragged")
        if not _within(self.features.variable, len(self.features.schema)):
            faults.append("an input column is made from no variable")
        if not _within(self.feature, max(self.features.variable.size, 1)):
            faults.append("a node looks at no input column")
        # Children after their parent: every walk ends.
        at = np.arange(n)
        inner = (self.left != at) | (self.right != at)
        for child in (self.left, self.right):
            if not _within(child, n) or (child[inner] <= at[inner]).any():
                faults.append("a child does not come after its parent")
        return faults

    @property
    def classes(self) -> tuple[Category, ...]:
        """The label's categories, in the order of the posterior's columns."""
        return self.label.categories

    @property
    def n_trees(self) -> int:
        """Number of trees T."""
        return int(self.first.size)

    @property
    def n_parameters(self) -> int:
        """Numbers that are kept: feature and threshold of a split, probabilities of a leaf."""
        leaves = int((self.left == np.arange(self.left.size)).sum())
        return 2 * (self.left.size - leaves) + leaves * (len(self.classes) - 1)

    def posterior(self, table: Table) -> FloatArray:
        """(n, k) p(label | features) of every row; the label's own column is not looked at."""
        x = self.features.inputs(table)
        answer = np.zeros((len(table), len(self.classes)))
        for root in self.first:
            answer += self.value[self._leaves(x, int(root))]
        return answer / self.n_trees

    def _leaves(self, x: Float32Array, root: int) -> IntArray:
        """(n,) the leaf that every row of x (n, F) ends in."""
        node = np.full(len(x), root, dtype=np.int64)
        walking = np.arange(len(x))
        while True:
            at = node[walking]
            walking = walking[self.left[at] != at]
            if walking.size == 0:
                return node
            at = node[walking]
            here = x[walking, self.feature[at]]
            go_left = np.where(np.isnan(here), self.missing_left[at], here <= self.threshold[at])
            node[walking] = np.where(go_left, self.left[at], self.right[at])

    def predict_proba(self, data: Data, *, unknown: Unknown = "error") -> pd.DataFrame:
        """p(label | features): one column for each original category value.

        Args:
            data: rows; columns that are absent are missing.
            unknown: whether an unseen category is an error or a missing value.
        """
        frame = read(data).drop(columns=self.label.name, errors="ignore")
        table = self.features.schema.encode(frame, unknown=unknown)
        columns = pd.Index(self.classes, name=self.label.name)
        return pd.DataFrame(self.posterior(table), index=table.index, columns=columns)

    # --- storage ----------------------------------------------------------------------------------

    def to_record(self) -> encoding.Record:
        """Header and arrays for `save`."""
        header = {"schema": self.features.schema.to_json(), "label": self.label.to_json()}
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        own = {"variable": self.features.variable, "category": self.features.category}
        return encoding.Record("trees", header, {**arrays, **own})

    @staticmethod
    def from_record(record: encoding.Record) -> Trees:
        """Inverse of `to_record`; anything that is not as it should be is a `StorageError`."""
        try:
            arrays = {
                name: _typed(record.arrays, name, dtype)
                for name, dtype in {**_ARRAYS, "variable": np.int64, "category": np.int64}.items()
            }
            schema = Schema.from_json(record.header["schema"])
            label = Variable.from_json(record.header["label"])
        except StorageError:
            raise
        except MALFORMED as error:
            raise StorageError(f"the trees are not valid: {error!r}") from None
        features = FeatureMap(schema, arrays.pop("variable"), arrays.pop("category"))
        return Trees(features, label, **arrays)

    def save(self, path: str | Path) -> None:
        """Write the trees to one file."""
        encoding.write(Path(path), encoding.pack(self.to_record()))

    @staticmethod
    def load(path: str | Path) -> Trees:
        """Read trees that were saved with `save`."""
        data = encoding.read(Path(path))
        return Trees.from_record(encoding.unpack(data, "trees", str(path)))


_ARRAYS: dict[str, Any] = {
    "first": np.int64,
    "left": np.int64,
    "right": np.int64,
    "feature": np.int64,
    "threshold": np.float64,
    "missing_left": np.bool_,
    "value": np.float64,
}


def _within(index: IntArray, n: int) -> bool:
    return bool(((index >= 0) & (index < n)).all())


def _typed(arrays: dict[str, Any], name: str, dtype: Any) -> Any:
    if arrays[name].dtype != dtype:
        raise StorageError(f"array {name} must hold {np.dtype(dtype)}, found {arrays[name].dtype}")
    return arrays[name]


@dataclass(frozen=True)
class TreeClassifier:
    """Learns a decision tree.

    Attributes:
        max_depth: most splits on a path; None for no limit.
        min_leaf: fewest rows at a leaf.
        smoothing: rows' worth of the overall class shares mixed into every leaf, so that no class
            is impossible; 0 gives scikit-learn's own probabilities.
    """

    max_depth: int | None = None
    min_leaf: int = 20
    smoothing: float = 1.0

    def fit_classifier(self, table: Table, label: str, rng: np.random.Generator) -> Trees:
        """Grow the tree on the rows in which the label is observed."""
        model = DecisionTreeClassifier(
            max_depth=self.max_depth,
            min_samples_leaf=self.min_leaf,
            random_state=int(rng.integers(2**31 - 1)),
        )
        return _grow(model, table, label, self.smoothing)


@dataclass(frozen=True)
class ForestClassifier:
    """Learns a random forest.

    Attributes:
        n_trees: how many.
        max_depth: most splits on a path; None for no limit.
        min_leaf: fewest rows at a leaf.
        smoothing: as of `TreeClassifier`.
    """

    n_trees: int = 100
    max_depth: int | None = None
    min_leaf: int = 5
    smoothing: float = 1.0

    def fit_classifier(self, table: Table, label: str, rng: np.random.Generator) -> Trees:
        """Grow the trees on bootstrap samples of the rows in which the label is observed."""
        model = RandomForestClassifier(
            self.n_trees,
            max_depth=self.max_depth,
            min_samples_leaf=self.min_leaf,
            random_state=int(rng.integers(2**31 - 1)),
        )
        return _grow(model, table, label, self.smoothing)


def _grow(model: Any, table: Table, label: str, smoothing: float) -> Trees:
    """Fit a scikit-learn model and keep its arrays."""
    at = table.schema.position(label)
    variable = table.schema.variables[at]
    if not variable.is_coded:
        raise QueryError(
            f"label {label!r} is {variable.kind}; a tree classifies a categorical or binary one "
            f"(declare kinds={{{label!r}: 'categorical'}})"
        )
    if len(table.schema) < 2:
        raise LearningError(f"there is no column besides the label {label!r}")
    known = table.observed[:, at] & (table.values[:, at] != variable.missing_code)
    if table.weights is not None:
        known &= table.weights > 0
    if not known.any():
        raise LearningError(f"label {label!r}: not one row has a value and weight > 0")
    rows = table.rows(known)
    features = FeatureMap.of(rows, label)
    y = rows.values[:, at].astype(np.int64)
    weights = rows.row_weights
    model.fit(features.inputs(rows), y, sample_weight=rows.weights)
    prior = np.bincount(y, weights, minlength=len(variable.categories)) / weights.sum()
    parts = [
        _arrays(tree.tree_, model.classes_, prior, smoothing)
        for tree in getattr(model, "estimators_", [model])
    ]
    sizes = np.array([part["left"].size for part in parts])
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    for part, start in zip(parts, first, strict=True):
        part["left"] += start
        part["right"] += start
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Trees(features, variable, first, **joined)


def _arrays(tree: Any, seen: IntArray, prior: FloatArray, smoothing: float) -> dict[str, Any]:
    """The arrays of one scikit-learn tree, a leaf being its own child."""
    own = np.arange(tree.node_count)
    is_leaf = tree.children_left < 0
    value = np.zeros((tree.node_count, prior.size))
    value[:, seen] = tree.value[:, 0, :]  # classes the training rows lack stay at zero
    value /= value.sum(axis=1, keepdims=True)
    rows = np.asarray(tree.weighted_n_node_samples)[:, None]
    value = (rows * value + smoothing * prior) / (rows + smoothing)
    return {
        "left": np.where(is_leaf, own, tree.children_left).astype(np.int64),
        "right": np.where(is_leaf, own, tree.children_right).astype(np.int64),
        "feature": np.maximum(tree.feature, 0).astype(np.int64),
        "threshold": np.where(is_leaf, 0.0, tree.threshold).astype(np.float64),
        "missing_left": np.asarray(tree.missing_go_to_left).astype(np.bool_),
        "value": value,
    }
