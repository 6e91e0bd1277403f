"""The clients' heads as one: trees over all columns, and one pool with the tilt.

    q(y | x) = softmax(a log t(y | x) + sum_c b_c f_c(x) + shift)

Where rows are split, a, b_c f_c and shifts are means over clients, weighted as their tilts are and
re-based to the class shares of all rows; a client that leaves takes its trees with it. Where
columns are split the pool is of all clients' trees, and goes when one of them does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import Arrays, FloatArray
from fedcircuits.density.tilt import Tilt
from fedcircuits.federation.wire import requests as m

if TYPE_CHECKING:  # learners are imported where a head is made, not where a run is started
    from fedcircuits.learners.hclt.head.boosted_trees import BoostedTrees
    from fedcircuits.learners.hclt.head.pool import Pool

# A head stays if it takes this many paired standard errors, and this share, off the log-loss.
LEAST_ERRORS, LEAST_SHARE = 2.0, 0.01


@dataclass(frozen=True, eq=False)
class ClientHead:
    """The boosted trees of one client, and how they are pooled.

    Attributes:
        columns: they ask about, in order.
        trees: one output for two classes, else one a class.
        pool: its own pool, or its part of the pool of all.
        n_together: clients whose trees were pooled together, 0 where each has its own pool.
    """

    columns: tuple[str, ...]
    trees: BoostedTrees
    pool: m.PoolWeights
    n_together: int

    @staticmethod
    def of(
        columns: Sequence[str], trees: Arrays, pool: m.PoolWeights, n_together: int
    ) -> ClientHead:
        """Return the head of a client's reply or of a file, checked."""
        from fedcircuits.learners.hclt.head.boosted_trees import BoostedTrees

        n_outputs = 1 if pool.shift.size == 2 else pool.shift.size
        made = BoostedTrees.from_arrays(trees, len(columns), n_outputs)
        return ClientHead(tuple(columns), made, pool, n_together)


def one_head(
    heads: Mapping[str, ClientHead],
    tilts: Mapping[str, Tilt],
    rows: FloatArray,
    names: Sequence[str],
) -> tuple[BoostedTrees, Pool] | None:
    """Trees over all columns and the pool; None where left-out rows do not gain for certain.

    Args:
        heads: of the clients.
        tilts: of the clients.
        rows: (Y,) rows of each class.
        names: of the columns, in the order of the model.
    """
    from fedcircuits.learners.hclt.head.pool import Pool

    if not heads or (rows == 0).any():
        return None
    together = max(head.n_together for head in heads.values())
    if together and len(heads) != together:
        return None
    pools = [heads[c].pool for c in sorted(heads)]
    if together:
        weights = dict.fromkeys(heads, 1.0)
        gain, error, loss = pools[0].gain, pools[0].error, pools[0].log_loss
    else:
        harmonic = {c: rows.size / (1.0 / tilts[c].counts).sum() for c in heads}
        weights = {c: w / sum(harmonic.values()) for c, w in harmonic.items()}
        n = np.array([pool.n_rows for pool in pools], dtype=float)
        gain, loss = (
            float(n @ [getattr(p, what) for p in pools] / n.sum()) for what in ("gain", "log_loss")
        )
        error = float(np.sqrt(np.square(n * [p.error for p in pools]).sum()) / n.sum())
    if gain <= max(LEAST_ERRORS * error, LEAST_SHARE * loss):
        return None
    joined: BoostedTrees | None = None
    width = max(head.trees.known_categories.shape[1] for head in heads.values())
    tilt, shift = 0.0, np.zeros(rows.size)
    log_q = np.log(rows / rows.sum())
    for client in sorted(heads):
        head, w = heads[client], weights[client]
        b = float(head.pool.trees[0])
        trees = _over(_scaled(head.trees, w * b), head.columns, names, width)
        joined = trees if joined is None else joined.plus(trees)
        tilt += (w if not together else 1.0 / together) * head.pool.tilt
        shift += (w if not together else 1.0 / together) * head.pool.shift
        if not together:  # the trees have the class shares of their client's rows
            counts = tilts[client].counts
            shift += w * b * (log_q - np.log(counts / counts.sum()))
    assert joined is not None
    limit = max(pool.limit for pool in pools)
    return joined, Pool(tilt, 1.0, shift, np.arange(rows.size), limit)


def _scaled(trees: BoostedTrees, by: float) -> BoostedTrees:
    return replace(trees, value=by * trees.value, baseline=by * trees.baseline)


def _over(
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
