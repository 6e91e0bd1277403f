"""How well the label can be told from what a party receives: a measurement, not a promise.

Every array of a message that has one entry for each of some aligned rows is taken as a hint. From
indices the best renaming to labels is made; from numbers a shallow tree, judged on rows it was not
grown on. What is reported is the accuracy of the best hint, beside that of always saying the
majority.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedcircuits import encoding
from fedcircuits.schema.grid import FloatArray, IntArray

MOST_INDICES = 512
DEPTH = 4


@dataclass(frozen=True)
class Leak:
    """The best hint at the label that a party has.

    Attributes:
        accuracy: of the label told from it.
        majority: accuracy without any hint.
        source: message and field it came from, "" where there is none.
    """

    accuracy: float
    majority: float
    source: str


def recover_label(messages: Iterable[bytes], labels: Mapping[int, int]) -> Leak:
    """The best hint in some messages.

    Args:
        messages: as they travelled.
        labels: true label code of each aligned row, by its number in the federation.
    """
    codes = np.array(list(labels.values()), dtype=np.int64)
    majority = float(np.bincount(codes).max() / codes.size)
    best = Leak(majority, majority, "")
    for data in messages:
        record = encoding.unpack(data)
        numbers = record.arrays.get("numbers")
        if numbers is None or not numbers.size:
            continue
        known = np.array([int(n) in labels for n in numbers])
        truth = np.array([labels[int(n)] for n, k in zip(numbers, known, strict=True) if k])
        for name, array in record.arrays.items():
            if name == "numbers" or len(array) != len(numbers) or truth.size < 20:
                continue
            found = _accuracy(array[known], truth)
            if found > best.accuracy:
                best = Leak(found, majority, f"{record.kind}.{name}")
    return best


def _accuracy(hint: FloatArray | IntArray, truth: IntArray) -> float:
    if hint.ndim == 1 and hint.dtype.kind in "iub":
        if np.unique(hint).size > min(MOST_INDICES, truth.size // 4):
            return 0.0  # positions in a table: every row has its own
        codes = np.unique(hint, return_inverse=True)[1]
        counts = np.zeros((codes.max() + 1, truth.max() + 1))
        np.add.at(counts, (codes, truth), 1.0)
        return float(counts.max(axis=1).sum() / truth.size)
    from sklearn.tree import DecisionTreeClassifier

    x = np.nan_to_num(np.asarray(hint, dtype=float).reshape(len(hint), -1), posinf=1e9, neginf=-1e9)
    half = np.arange(truth.size) % 2 == 0
    right = 0.0
    for grow in (half, ~half):
        tree = DecisionTreeClassifier(max_depth=DEPTH, random_state=0).fit(x[grow], truth[grow])
        right += float((tree.predict(x[~grow]) == truth[~grow]).sum())
    return right / truth.size
