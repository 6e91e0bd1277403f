"""Messages about a head over clients with the same columns.

A client boosts trees on all its rows; clients then score each other's (`head_scores.py`).
`heads_across.py` has the messages of clients with different columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import Array, Arrays
from fedcircuits.errors import MALFORMED
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.verbs import Asked, Level, Reveals, Terms, Verb, declare


@dataclass(frozen=True)
class PoolWeights:
    """q = softmax(tilt log t + sum_s trees_s f_s + shift), and what it gains on left-out rows.

    Attributes:
        tilt: weight of the tilt.
        trees: (S,) weights of the trees' outputs.
        shift: (Y,) constants.
        limit: how far log-odds of q may be from those of t.
        log_loss: of the tilt alone, nats a row.
        gain: what the pool takes off it.
        error: paired standard error of the gain.
        n_rows: left-out rows.
    """

    tilt: float
    trees: Array
    shift: Array
    limit: float
    log_loss: float
    gain: float
    error: float
    n_rows: int

    def fault(self, n_trees: int, n_classes: int) -> str | None:
        """Return what is wrong with shapes and numbers, None where nothing is."""
        if self.trees.shape != (n_trees,) or self.shift.shape != (n_classes,):
            return f"weights of {self.trees.size} trees and {self.shift.size} classes"
        numbers = [*self.trees, *self.shift, self.tilt, self.limit, self.log_loss, self.gain]
        if not np.isfinite([*numbers, self.error]).all() or self.limit < 0:
            return "weights that are no numbers"
        return None


def outputs_of(n_classes: int) -> int:
    """Return how many outputs the trees of a label have."""
    return 1 if n_classes == 2 else n_classes


def fault_of_trees(trees: Arrays, n_columns: int, n_outputs: int) -> str | None:
    """Return what is wrong with boosted trees, None where nothing is or where there are none."""
    from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees

    try:
        if trees:
            BoostedTrees.from_arrays(trees, n_columns, n_outputs)
    except MALFORMED as error:
        return f"trees that cannot be used: {error}"
    return None


@dataclass(frozen=True)
class FitHead(Message):
    """Server: boost trees over these columns.

    Attributes:
        columns: of the client, without the label.
        n_classes: Y.
        min_rows: least rows behind a leaf.
    """

    columns: list[str]
    n_classes: int
    min_rows: int


@dataclass(frozen=True)
class HeadFitted(Message):
    """Client: trees, none where it has too few rows of a class."""

    trees: Arrays
    seconds: Array

    def fault(self, request: Message) -> str | None:
        """Trees over the columns asked for."""
        assert isinstance(request, FitHead)
        return fault_of_trees(self.trees, len(request.columns), outputs_of(request.n_classes))


def _fit_head(request: FitHead, terms: Terms, label: str | None) -> Asked:
    fault = terms.label_unused(label) or terms.trees_refused(request.min_rows)
    return Asked(tuple(request.columns), fault)


FIT_HEAD = declare(
    Verb(
        "fit_head",
        FitHead,
        HeadFitted,
        "training",
        (
            Reveals("server", Level.AGGREGATES, "boosted trees, `min_rows` rows behind a leaf"),
            Reveals("other clients", Level.AGGREGATES, "the trees"),
            Reveals("model", Level.AGGREGATES, "the trees"),
        ),
        costly=True,
        keeps_reply=False,
        asks=_fit_head,
    )
)
