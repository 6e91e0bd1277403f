"""Coded rows with weights and labels, and their split into training and validation rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray, IntegerArray
from fedcircuits.learners.hclt.features import Values, joined

MIN_ROWS_FOR_VALIDATION = 40
_MAX_VALIDATION_ROWS = 20_000
# Fewer validation rows than this decide little by themselves: cross-validate, or ask for more.
FEW_VALIDATION_ROWS = 500
# So do they with fewer outside the commonest class than this; beyond so many rows folds are dear.
_FEW_OTHERS, _MAX_FEW_OTHERS_ROWS = 50, 3_000


@dataclass(frozen=True)
class Sample:
    """Coded rows.

    Attributes:
        codes: (n, D) states, -1 where not observed.
        weights: (n,) how often each row counts.
        labels: (n,) class of each row, None without a label.
        values: (n, D) values as boosted trees take them (NaN where missing, categories by code),
            where a head may be fitted.
        targets: (n,) the label as a number, where it is one.
    """

    codes: IntegerArray
    weights: FloatArray
    labels: IntegerArray | None
    values: Values | None = None
    targets: FloatArray | None = None

    @property
    def decides_little(self) -> bool:
        """Whether these rows, held out, say little of a choice: few rows, or all of one class."""
        n = len(self.codes)
        if n < FEW_VALIDATION_ROWS:
            return True
        if self.labels is None or self.targets is not None or n > _MAX_FEW_OTHERS_ROWS:
            return False
        return n - int(np.bincount(self.labels).max()) < _FEW_OTHERS

    def take(self, rows: npt.NDArray[np.int64]) -> Sample:
        """Return some of the rows."""
        labels = None if self.labels is None else self.labels[rows]
        values = None if self.values is None else self.values[rows]
        targets = None if self.targets is None else self.targets[rows]
        return Sample(self.codes[rows], self.weights[rows], labels, values, targets)

    def joined(self, other: Sample) -> Sample:
        """Return the rows of both samples."""
        labels, targets = None, None
        values: Values | None = None
        if self.labels is not None and other.labels is not None:
            labels = np.concatenate([self.labels, other.labels])
        if self.values is not None and other.values is not None:
            values = joined(self.values, other.values)
        if self.targets is not None and other.targets is not None:
            targets = np.concatenate([self.targets, other.targets])
        return Sample(
            np.concatenate([self.codes, other.codes]),
            np.concatenate([self.weights, other.weights]),
            labels,
            values,
            targets,
        )


def checked_sample(
    codes: IntegerArray,
    cards: tuple[int, ...],
    labels: IntegerArray | None,
    n_classes: int,
    weights: FloatArray | None,
    values: Values | None = None,
    targets: FloatArray | None = None,
) -> Sample:
    """Return the rows as a sample; shapes and ranges that do not fit are a ValueError."""
    if codes.ndim != 2 or codes.shape[1] != len(cards):
        raise ValueError(f"expected codes (n, {len(cards)}), found shape {codes.shape}")
    if len(codes) == 0 or len(cards) == 0:
        raise ValueError(f"expected at least one row and one column, found shape {codes.shape}")
    low, high = codes.min(axis=0), codes.max(axis=0)
    bad = np.flatnonzero((low < -1) | (high >= np.asarray(cards)))
    if len(bad):
        j = int(bad[0])
        raise ValueError(
            f"column {j}: expected codes -1 .. {cards[j] - 1}, found {low[j]} .. {high[j]}"
        )
    row_weights = np.ones(len(codes)) if weights is None else np.asarray(weights, dtype=np.float64)
    if row_weights.shape != (len(codes),) or not (row_weights >= 0).all() or row_weights.sum() <= 0:
        raise ValueError("expected one non-negative weight per row, not all zero")
    if labels is not None and (
        labels.shape != (len(codes),) or labels.min() < 0 or labels.max() >= n_classes
    ):
        raise ValueError(f"expected one label 0 .. {n_classes - 1} per row")
    return Sample(codes, row_weights, labels, values, targets)


def split_rows(
    sample: Sample, share: float, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return positions of training and validation rows, drawn class by class.

    Every class keeps its share, and at least one training row.
    """
    n = len(sample.codes)
    if n < MIN_ROWS_FOR_VALIDATION or share <= 0:
        return np.arange(n), np.zeros(0, dtype=np.int64)
    share = min(share, _MAX_VALIDATION_ROWS / n)
    labels = np.zeros(n, dtype=np.int64) if sample.labels is None else sample.labels
    held = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        held.append(rows[: int(share * len(rows))])
    held_out = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(n), held_out), held_out
