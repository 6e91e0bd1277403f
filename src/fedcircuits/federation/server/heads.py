"""The clients' heads as one: trees over all columns, and one pool with the tilt.

    q(y | x) = softmax(a log t(y | x) + sum_c b_c f_c(x) + shift)

Where rows are split, f is the mean over clients, weighted as their tilts are and re-based to the
class shares of all rows, in two parts (first and later trees); the weights follow from what clients
score on each other's rows (`cross_scores.py`), so a client that leaves takes its trees with it, and
the others are weighed as if it had never been there. Clients with different columns have one pool
(`heads_across.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import Arrays, FloatArray
from fedcircuits.density.tilt import Tilt
from fedcircuits.federation.plan.weights import comparisons, known_log_shares
from fedcircuits.federation.server.cross_scores import fitted_pool
from fedcircuits.federation.wire import requests as m

if TYPE_CHECKING:  # learners are imported where a head is made, not where a run is started
    from fedcircuits.learners.hclt.head.pool import Pool
    from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees

# A head stays if it takes this many paired standard errors, and this share, off the log-loss.
LEAST_ERRORS, LEAST_SHARE, LEAST_MIXED_SHARE = 2.0, 0.01, 0.005


@dataclass(frozen=True, eq=False)
class ClientHead:
    """The boosted trees of one client, and how they are pooled.

    Attributes:
        columns: they ask about, in order.
        trees: one output for two classes, else one a class.
        pool: its part of the pool of all; None where rows are split.
        n_together: groups of clients with the same columns whose trees were pooled together, 0
            where rows are split.
        group: the client that stands for those with the same columns.
        codes_of: groups whose codes are inputs after the columns.
        code_trees: that make codes of its rows; None where no trees take codes.
    """

    columns: tuple[str, ...]
    trees: BoostedTrees
    pool: m.PoolWeights | None
    n_together: int
    group: str = ""
    codes_of: tuple[str, ...] = ()
    code_trees: CodeTrees | None = None

    @staticmethod
    def of(
        columns: Sequence[str],
        trees: Arrays,
        pool: m.PoolWeights | None,
        n_classes: int,
        n_together: int = 0,
        group: str = "",
        codes_of: Sequence[str] = (),
        code_trees: tuple[Arrays, Arrays, float] | None = None,
    ) -> ClientHead:
        """Return the head of a client's reply or of a file, checked."""
        from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees

        n_columns = len(columns)
        n_outputs = 1 if n_classes == 2 else n_classes
        made = BoostedTrees.from_arrays(trees, n_columns + len(codes_of) * n_classes, n_outputs)
        kept = None
        if code_trees is not None:
            first = BoostedTrees.from_arrays(code_trees[0], n_columns, n_outputs)
            kept = CodeTrees(
                first, BoostedTrees.from_arrays(code_trees[1], n_columns, 1), code_trees[2]
            )
        return ClientHead(tuple(columns), made, pool, n_together, group, tuple(codes_of), kept)


@dataclass(frozen=True, eq=False)
class CodeTrees:
    """Trees that make the codes of a client's rows.

    Attributes:
        trees: of the scores.
        leaf: one tree whose output is the number of a leaf.
        width: of a level of the scores.
    """

    trees: BoostedTrees
    leaf: BoostedTrees
    width: float


def one_head(
    heads: Mapping[str, ClientHead],
    tilts: Mapping[str, Tilt],
    scores: Mapping[str, m.HeadScores],
    rows: FloatArray,
    names: Sequence[str],
) -> tuple[BoostedTrees, Pool] | None:
    """The mean of the clients' trees, and the pool; None where rows do not gain for certain.

    Args:
        heads: of the clients.
        tilts: of the clients.
        scores: of each other's models, by client.
        rows: (Y,) rows of each class.
        names: of the columns, in the order of the model.
    """
    from fedcircuits.learners.hclt.head.pool import Pool
    from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees, first_trees

    weights = shares_of(heads, tilts)
    log_q = np.log(rows / rows.sum())
    counts = {client: tilt.counts for client, tilt in tilts.items()}
    pool = fitted_pool(scores, weights, counts)
    if pool is None or not pool.trees.any():
        return None
    if not gains_for_certain(pool.gain, pool.error, pool.log_loss, LEAST_MIXED_SHARE):
        return None
    width = max(head.trees.known_categories.shape[1] for head in heads.values())
    # Tables and first trees bring their weights of the class shares along: the rest of them.
    shift = pool.shift + (1.0 - pool.tilt - float(pool.trees[0])) * np.where(rows > 0, log_q, 0.0)
    parts = []
    for client in sorted(heads):
        trees, own, w = heads[client].trees, tilts[client].counts, weights[client]
        number = np.searchsorted(trees.roots, np.arange(trees.value.size), side="right")
        by = w * np.where(number <= first_trees(trees), pool.trees[0], pool.trees[1])
        base = w * float(pool.trees[0])
        made = replace(trees, value=by * trees.value, baseline=base * trees.baseline)
        parts.append(over(made, heads[client].columns, names, width))
        # The trees have the class shares of their client's rows.
        shift += base * (log_q - known_log_shares(own))
    joined = reduce(BoostedTrees.plus, parts)
    return joined, Pool(pool.tilt, 1.0, shift, np.arange(rows.size), pool.limit)


def no_trees(n_columns: int, n_outputs: int) -> Arrays:
    """Trees as arrays that add nothing to any output."""
    one = np.zeros(1, dtype=np.int32)
    sides = np.zeros((0, 1), dtype=bool)
    return {
        "feature": one - 1,
        "threshold": np.zeros(1),
        "left": one - 1,
        "right": one - 1,
        "value": np.zeros(1),
        "missing_left": np.zeros(1, dtype=bool),
        "categories": one - 1,
        "left_categories": sides,
        "known_categories": np.zeros((n_columns, 1), dtype=bool),
        "roots": one,
        "output": one,
        "baseline": np.zeros(n_outputs),
    }


def gains_for_certain(gain: float, error: float, loss: float, share: float = LEAST_SHARE) -> bool:
    """Whether a head takes enough off the log-loss."""
    return gain > max(LEAST_ERRORS * error, share * loss)


def shares_of(clients: Iterable[str], tilts: Mapping[str, Tilt]) -> dict[str, float]:
    """Weights of clients that add up to one, by the rows with which they compare classes."""
    rows = {c: comparisons(tilts[c].counts).sum() for c in clients}
    return {c: float(w / sum(rows.values())) for c, w in rows.items()}


def scaled(trees: BoostedTrees, by: float) -> BoostedTrees:
    """The trees with outputs a number of times as large."""
    return replace(trees, value=by * trees.value, baseline=by * trees.baseline)


def over(
    trees: BoostedTrees, columns: Sequence[str], names: Sequence[str], width: int
) -> BoostedTrees:
    """The same trees over more columns, categories numbered up to a width."""
    place = np.array([list(names).index(column) for column in columns], dtype=np.int64)
    known = np.zeros((len(names), width), dtype=bool)
    known[place, : trees.known_categories.shape[1]] = trees.known_categories
    sets = np.zeros((len(trees.left_categories), width), dtype=bool)
    sets[:, : trees.left_categories.shape[1]] = trees.left_categories
    feature = np.where(trees.feature >= 0, place[np.maximum(trees.feature, 0)], -1)
    return replace(trees, feature=feature, known_categories=known, left_categories=sets)
