"""A ridge or logistic regression as trees: one step function of every column.

Few rows tell a straight line sooner than steps: boosting starts from what a line leaves over. As
trees of one column each, with at most 64 leaves, the line is stored and evaluated like all others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import optimize

from fedcircuits.arrays import BoolArray, FloatArray, IntArray, IntegerArray
from fedcircuits.learners.hclt.features import Values
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees
from fedcircuits.learners.hclt.head.trees.boosting import MOST_CATEGORIES

# Steps of a column, and categories that have a coefficient each.
_MOST_STEPS, _MOST_CODES = 60, 60
_PENALTIES = np.logspace(-2, 4, 13)
_MOST_ROUNDS = 200  # of the search for a logistic regression


def linear_trees(
    rows: Values,
    targets: FloatArray,
    weights: FloatArray,
    n_codes: IntegerArray,
    min_rows: int = 1,
) -> BoostedTrees:
    """Return the ridge regression of numbers on rows as trees with one output.

    Args:
        rows: (n, D) values, NaN where missing, categories by code.
        targets: (n,) numbers.
        weights: (n,) row weights.
        n_codes: (D,) number of categories, 0 for numbers; columns with too many have no part.
        min_rows: least rows behind a step.
    """
    design = _Design.of(rows, n_codes, min_rows)
    if not design.effects:
        return design.trees(
            rows, np.zeros((0, 1)), np.array([np.average(targets, weights=weights)])
        )
    from sklearn.linear_model import RidgeCV  # takes longer to import than a small table to learn

    fitted = RidgeCV(alphas=_PENALTIES).fit(design.matrix, targets, sample_weight=weights)
    return design.trees(rows, fitted.coef_[:, None], np.array([float(fitted.intercept_)]))


def linear_class_trees(
    rows: Values,
    labels: IntegerArray,
    weights: FloatArray,
    n_codes: IntegerArray,
    penalty: float,
    min_rows: int = 1,
) -> BoostedTrees:
    """Return a logistic regression on rows as trees: one output for two classes, else one a class.

    Args:
        rows: (n, D) values, NaN where missing, categories by code.
        labels: (n,) classes; every class occurs.
        weights: (n,) row weights.
        n_codes: (D,) number of categories, 0 for numbers; columns with too many have no part.
        penalty: on half the squared coefficients of numbers in units of their spread, in rows.
        min_rows: least rows behind a step.
    """
    design = _Design.of(rows, n_codes, min_rows)
    n, p = len(labels), design.matrix.shape[1]
    n_classes = int(labels.max()) + 1
    k = 1 if n_classes == 2 else n_classes
    share = weights / weights.sum()
    every = np.arange(n)

    def loss(theta: FloatArray) -> tuple[float, FloatArray]:
        w, b = theta[: p * k].reshape(p, k), theta[p * k :]
        logits = design.matrix @ w + b  # (n, k)
        if k == 1:
            logits = np.pad(logits, ((0, 0), (1, 0)))
        logs = logits - np.logaddexp.reduce(logits, axis=1)[:, None]
        away = np.exp(logs)
        away[every, labels] -= 1.0
        away = (away * share[:, None])[:, -k:]
        ridge = penalty / weights.sum()
        value = -float(share @ logs[every, labels]) + 0.5 * ridge * float((w * w).sum())
        slope = design.matrix.T @ away + ridge * w
        return value, np.concatenate([slope.ravel(), away.sum(axis=0)])

    found = optimize.minimize(
        loss, np.zeros(p * k + k), jac=True, method="L-BFGS-B", options={"maxiter": _MOST_ROUNDS}
    )
    return design.trees(rows, found.x[: p * k].reshape(p, k), np.asarray(found.x[p * k :]))


@dataclass(frozen=True)
class _Design:
    """Columns as centred features.

    Attributes:
        n_codes: (D,) number of categories, 0 for numbers.
        effects: of every column that has a part, its position and (n, p) features.
        known: (D, C) categories that occur.
        matrix: (n, P) features of all columns.
        min_rows: least rows behind a step of a tree.
    """

    n_codes: IntegerArray
    effects: list[tuple[int, FloatArray]]
    known: BoolArray
    matrix: FloatArray
    min_rows: int

    @staticmethod
    def of(rows: Values, n_codes: IntegerArray, min_rows: int) -> _Design:
        effects: list[tuple[int, FloatArray]] = []
        is_category = (n_codes > 0) & (n_codes <= MOST_CATEGORIES)
        width = int(n_codes.max()) if is_category.any() else 0
        known = np.zeros((rows.shape[1], width), dtype=bool)
        for column, count in enumerate(n_codes):
            x = rows[:, column]
            seen = np.isfinite(x)
            if count > _MOST_CODES or not seen.any():
                continue
            if count == 0:
                unit = float(x[seen].std()) or 1.0
                features = np.where(seen, (x - x[seen].mean()) / unit, 0.0)[:, None]
            else:
                known[column, np.unique(x[seen]).astype(np.int64)] = True
                features = (x[:, None] == np.arange(count)).astype(float)
                features[:, features.sum(axis=0) < min_rows] = 0.0
                features = np.where(seen[:, None], features - features[seen].mean(axis=0), 0.0)
            effects.append((column, features))
        parts = [features for _, features in effects] or [np.zeros((len(rows), 0))]
        return _Design(n_codes, effects, known, np.concatenate(parts, axis=1), min_rows)

    def trees(self, rows: Values, weights: FloatArray, baseline: FloatArray) -> BoostedTrees:
        """The line with weights (P, K) and values (K,) at the means as trees."""
        made = _Nodes(self.min_rows)
        start = 0
        for column, features in self.effects:
            part = weights[start : start + features.shape[1]]
            start += features.shape[1]
            for output, effect in enumerate((features @ part).T):  # (n,)
                if self.n_codes[column] == 0:
                    made.add_number(column, rows[:, column], effect, output)
                else:
                    made.add_category(column, rows[:, column], effect, self.known.shape[1], output)
        return made.trees(self.known, baseline)


@dataclass
class _Nodes:
    """Trees under construction: chains of nodes with a leaf on the left of each.

    A leaf has at least `min_rows` rows behind it; what adds nothing needs none.
    """

    min_rows: int
    rows: list[tuple[int, float, int, int, float, int]] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    sets: list[IntArray] = field(default_factory=list)

    def add_number(self, column: int, values: FloatArray, effect: FloatArray, output: int) -> None:
        """A tree of steps over one column; a missing value adds nothing."""
        seen = np.isfinite(values)
        x, effect = values[seen], effect[seen]
        n_steps = int(np.clip(x.size // self.min_rows, 1, _MOST_STEPS))
        cuts = np.unique(np.quantile(x, np.linspace(0, 1, n_steps + 1)[1:-1]))
        if self.min_rows > 1:
            cuts = _with_rows(cuts, x, self.min_rows)
        step = np.searchsorted(cuts, x, side="left")
        size = np.bincount(step, minlength=cuts.size + 1)
        total = np.bincount(step, effect, minlength=cuts.size + 1)
        ends = np.append(cuts, np.inf)[size > 0]
        self._chain(column, ends, (total / np.maximum(size, 1))[size > 0], None, output)

    def add_category(
        self, column: int, values: FloatArray, effect: FloatArray, n_codes: int, output: int
    ) -> None:
        """A tree with a leaf for every category; a missing value adds nothing."""
        codes, first, size = np.unique(values, return_index=True, return_counts=True)
        seen = np.isfinite(codes) & (size >= self.min_rows)
        sets = (codes[seen, None] == np.arange(n_codes)).astype(np.int64)
        self._chain(column, np.zeros(int(seen.sum())), effect[first[seen]], sets, output)

    def _chain(
        self,
        column: int,
        ends: FloatArray,
        leaves: FloatArray,
        sets: IntArray | None,
        output: int,
    ) -> None:
        self.roots.append(len(self.rows))
        self.outputs.append(output)
        for at, (end, leaf) in enumerate(zip(ends, leaves, strict=True)):
            here = len(self.rows)
            number = -1 if sets is None else len(self.sets)
            if sets is not None:
                self.sets.append(sets[at])
            self.rows.append((column, float(end), here + 1, here + 2, 0.0, number))
            self.rows.append((-1, 0.0, -1, -1, float(leaf), -1))
        self.rows.append((-1, 0.0, -1, -1, 0.0, -1))

    def trees(self, known: BoolArray, baseline: FloatArray) -> BoostedTrees:
        """The trees, with outputs that start at `baseline` (K,)."""
        if not self.rows:
            self.roots.append(0)
            self.outputs.append(0)
            self.rows.append((-1, 0.0, -1, -1, 0.0, -1))
        feature, threshold, left, right, value, sets = map(np.array, zip(*self.rows, strict=True))
        return BoostedTrees(
            feature=feature.astype(np.int64),
            threshold=threshold.astype(float),
            left=left.astype(np.int64),
            right=right.astype(np.int64),
            value=value.astype(float),
            missing_left=np.zeros(feature.size, dtype=bool),
            categories=sets.astype(np.int64),
            left_categories=np.array(self.sets, dtype=bool).reshape(len(self.sets), known.shape[1]),
            known_categories=known,
            roots=np.array(self.roots, dtype=np.int64),
            output=np.array(self.outputs, dtype=np.int64),
            baseline=baseline,
        )


def _with_rows(cuts: FloatArray, values: FloatArray, least: int) -> FloatArray:
    """Some of rising cuts, such that between neighbours there are at least so many values (n,)."""
    below = np.searchsorted(np.sort(values), cuts, side="right")
    kept: list[float] = []
    last = 0
    for cut, count in zip(cuts, below, strict=True):
        if count - last >= least and values.size - count >= least:
            kept.append(float(cut))
            last = int(count)
    return np.array(kept)
