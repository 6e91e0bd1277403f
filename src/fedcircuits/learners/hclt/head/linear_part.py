"""A ridge regression as trees: one step function of every column.

Few rows tell a straight line sooner than steps: boosting starts from what a line leaves over. As
trees of one column each, with at most 64 leaves, the line is stored and evaluated like all others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray, IntegerArray
from fedcircuits.learners.hclt.head.boosted_trees import BoostedTrees
from fedcircuits.learners.hclt.head.boosting import MOST_CATEGORIES

# Steps of a column, and categories that have a coefficient each.
_MOST_STEPS, _MOST_CODES = 60, 60
_PENALTIES = np.logspace(-2, 4, 13)


def linear_trees(
    rows: FloatArray, targets: FloatArray, weights: FloatArray, n_codes: IntegerArray
) -> BoostedTrees:
    """Return the ridge regression of numbers on rows as trees with one output.

    Args:
        rows: (n, D) values, NaN where missing, categories by code.
        targets: (n,) numbers.
        weights: (n,) row weights.
        n_codes: (D,) number of categories, 0 for numbers; columns with too many have no part.
    """
    effects: list[tuple[int, FloatArray]] = []  # column, (n, p) centred features
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
            features = np.where(seen[:, None], features - features[seen].mean(axis=0), 0.0)
        effects.append((column, features))
    made = _Nodes()
    baseline = float(np.average(targets, weights=weights))
    if effects:
        from sklearn.linear_model import (
            RidgeCV,  # takes longer to import than a small table to learn
        )

        design = np.concatenate([features for _, features in effects], axis=1)
        fitted = RidgeCV(alphas=_PENALTIES).fit(design, targets, sample_weight=weights)
        baseline = float(fitted.intercept_)
        start = 0
        for column, features in effects:
            part = fitted.coef_[start : start + features.shape[1]]
            start += features.shape[1]
            effect = features @ part  # (n,)
            if n_codes[column] == 0:
                made.add_number(column, rows[:, column], effect)
            else:
                made.add_category(column, rows[:, column], effect, known.shape[1])
    return made.trees(known, baseline)


@dataclass
class _Nodes:
    """Trees under construction: chains of nodes with a leaf on the left of each."""

    rows: list[tuple[int, float, int, int, float, int]] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    sets: list[IntArray] = field(default_factory=list)

    def add_number(self, column: int, values: FloatArray, effect: FloatArray) -> None:
        """A tree of steps over one column; a missing value adds nothing."""
        seen = np.isfinite(values)
        x, effect = values[seen], effect[seen]
        cuts = np.unique(np.quantile(x, np.linspace(0, 1, _MOST_STEPS + 1)[1:-1]))
        step = np.searchsorted(cuts, x, side="left")
        size = np.bincount(step, minlength=cuts.size + 1)
        total = np.bincount(step, effect, minlength=cuts.size + 1)
        ends = np.append(cuts, np.inf)[size > 0]
        self._chain(column, ends, (total / np.maximum(size, 1))[size > 0], None)

    def add_category(
        self, column: int, values: FloatArray, effect: FloatArray, n_codes: int
    ) -> None:
        """A tree with a leaf for every category; a missing value adds nothing."""
        codes, first = np.unique(values, return_index=True)
        seen = np.isfinite(codes)
        sets = (codes[seen, None] == np.arange(n_codes)).astype(np.int64)
        self._chain(column, np.zeros(int(seen.sum())), effect[first[seen]], sets)

    def _chain(
        self, column: int, ends: FloatArray, leaves: FloatArray, sets: IntArray | None
    ) -> None:
        self.roots.append(len(self.rows))
        for at, (end, leaf) in enumerate(zip(ends, leaves, strict=True)):
            here = len(self.rows)
            number = -1 if sets is None else len(self.sets)
            if sets is not None:
                self.sets.append(sets[at])
            self.rows.append((column, float(end), here + 1, here + 2, 0.0, number))
            self.rows.append((-1, 0.0, -1, -1, float(leaf), -1))
        self.rows.append((-1, 0.0, -1, -1, 0.0, -1))

    def trees(
        self, known: np.ndarray[tuple[int, int], np.dtype[np.bool_]], baseline: float
    ) -> BoostedTrees:
        """The trees with one output that starts at `baseline`."""
        if not self.rows:
            self.roots.append(0)
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
            output=np.zeros(len(self.roots), dtype=np.int64),
            baseline=np.array([baseline]),
        )
