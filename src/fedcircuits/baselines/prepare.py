"""A table as arrays for networks and trees, prepared from training rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from fedcircuits.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Features:
    """How the columns of a table become numbers, and the classes of its label become codes.

    Attributes:
        label: name of the label.
        classes: values of the label, in order.
        medians: of every numeric column; they fill missing cells.
        means: of every numeric column.
        spreads: standard deviation of every numeric column, 1 for a constant one.
        categories: values of every other column; code 0 is kept for unknown ones.
    """

    label: str
    classes: tuple[Any, ...]
    medians: dict[str, float]
    means: dict[str, float]
    spreads: dict[str, float]
    categories: dict[str, tuple[Any, ...]]

    @classmethod
    def fit(cls, train: pd.DataFrame, label: str, without: Sequence[str] = ()) -> Self:
        """Return the preparation that training rows give.

        Args:
            train: training rows of all clients together, as a handshake would agree on them.
            label: name of the label.
            without: columns to leave out, such as an id.
        """
        medians, means, spreads, categories = {}, {}, {}, {}
        for name in train.columns:
            if name == label or name in without:
                continue
            column = train[name]
            if pd.api.types.is_numeric_dtype(column):
                medians[name] = float(column.median())
                filled = column.fillna(medians[name]).astype(float)
                means[name] = float(filled.mean())
                spreads[name] = float(filled.std()) or 1.0
            else:
                categories[name] = tuple(sorted(column.dropna().unique(), key=str))
        classes = tuple(sorted(train[label].unique(), key=str))
        return cls(label, classes, medians, means, spreads, categories)

    @property
    def names(self) -> list[str]:
        """The columns: numbers first, then categories."""
        return [*self.medians, *self.categories]

    @property
    def sizes(self) -> list[int]:
        """Codes of every categorical column, the one for unknown values among them."""
        return [len(values) + 1 for values in self.categories.values()]

    def select(self, names: Sequence[str]) -> Features:
        """Return the preparation of some of the columns."""
        kept = set(names)

        def some(values: dict[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in values.items() if name in kept}

        return Features(
            self.label, self.classes, some(self.medians), some(self.means), some(self.spreads),
            some(self.categories),
        )  # fmt: skip

    def arrays(self, frame: pd.DataFrame) -> FloatArray:
        """Return rows as an array (n, d): standardised numbers, then codes of categories."""
        columns = [
            (frame[name].fillna(self.medians[name]).astype(float) - self.means[name])
            / self.spreads[name]
            for name in self.medians
        ]
        for name, values in self.categories.items():
            columns.append(pd.Series(pd.Index(values).get_indexer(frame[name]) + 1, dtype=float))
        return np.stack([np.asarray(column, dtype=np.float32) for column in columns], axis=1)

    def codes(self, frame: pd.DataFrame) -> IntArray:
        """Return the code of every row's class, (n,)."""
        return np.asarray(pd.Index(self.classes).get_indexer(frame[self.label]), dtype=np.int64)
