"""How well the label can be told from what a party receives: a measurement, not a promise.

Every part of a message that has one entry for each of some aligned rows is taken as a hint. From
indices the best renaming to labels is made; from numbers a shallow tree, judged on rows it was not
grown on. What is reported is the accuracy of the best hint, beside that of always saying the
majority.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcircuits import encoding
from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.errors import StorageError
from fedcircuits.federation.wire.packing import unpack_choice, unpack_codes

MOST_INDICES = 512
DEPTH = 4
LEAST_ROWS = 20
BoolArray = NDArray[np.bool_]
Hint = tuple[str, FloatArray | IntArray, IntArray]  # field, entries, positions of their rows


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


def recover_label(
    messages: Iterable[bytes], labels: IntArray, choices: Sequence[BoolArray] = ()
) -> Leak:
    """The best hint in some messages.

    Args:
        messages: as they travelled.
        labels: (m,) true label code of each aligned row, in the order of the federation.
        choices: (m,) which aligned rows other messages gave a name to (`named_choices`).
    """
    majority = float(np.bincount(labels).max() / labels.size)
    best = Leak(majority, majority, "")
    for data in messages:
        record = encoding.unpack(data)
        for field, entries, rows in _hints(record, labels.size, choices):
            if rows.size < LEAST_ROWS:
                continue
            found = _accuracy(entries, labels[rows])
            if found > best.accuracy:
                best = Leak(found, majority, f"{record.kind}.{field}")
    return best


def named_choices(messages: Iterable[bytes], n_rows: int) -> list[BoolArray]:
    """(m,) masks of the aligned rows that `NameRows` messages to a client with m of them mean."""
    records = [encoding.unpack(data) for data in messages]
    return [
        unpack_choice(record.arrays["choice"], n_rows)
        for record in records
        if record.kind == "NameRows"
    ]


def _hints(record: encoding.Record, n: int, choices: Sequence[BoolArray]) -> Iterator[Hint]:
    """Fields with one entry a row: packed ones by kind of message, others by their length."""
    arrays, every = record.arrays, np.arange(n)
    packed: dict[str, tuple[str, int]] = {}
    if record.kind == "Clustered":
        packed["indices"] = ("", arrays["rows"].size)
    elif record.kind == "Label":
        packed["codes"] = ("", len(record.header["categories"]) + 1)
    elif record.kind == "Assign":
        packed["classes"] = ("choice", arrays["table"].shape[1])
    elif record.kind == "Branch":
        packed["per_row"] = ("choice", record.header["n_classes"] + 1)
        yield from _responsibilities(record, n)
    for field, (choice, n_codes) in packed.items():
        rows = every[unpack_choice(arrays[choice], n)] if choice else every
        try:
            yield field, unpack_codes(arrays[field], rows.size, n_codes), rows
        except StorageError:
            continue  # it is about other rows
    for field, array in arrays.items():
        if field in packed or array.dtype == np.uint8:
            continue
        for chosen in [np.ones(n, dtype=bool), *choices]:
            if array.shape[:1] == (int(chosen.sum()),):
                yield field, array, every[chosen]


def _responsibilities(record: encoding.Record, n: int) -> Iterator[Hint]:
    """The likeliest class of each row in a message about rows that are in several."""
    arrays, n_classes = record.arrays, record.header["n_classes"]
    rows = np.flatnonzero(unpack_choice(arrays["choice"], n))
    per_row = unpack_codes(arrays["per_row"], rows.size, n_classes + 1)
    classes = unpack_codes(arrays["classes"], int(per_row.sum()), n_classes)
    share = np.zeros((rows.size, n_classes))
    share[np.repeat(np.arange(rows.size), per_row), classes] = arrays["weights"]
    yield "weights", share, rows


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
