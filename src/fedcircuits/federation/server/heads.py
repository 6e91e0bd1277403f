"""The clients' heads as one: trees over all columns, and one pool with the tilt.

    q(y | x) = softmax(a log t(y | x) + sum_c b_c f_c(x) + shift)

Where rows are split, a, b_c f_c and shifts are means over clients, weighted as their tilts are and
re-based to the class shares of all rows; a client that leaves takes its trees with it. Clients with
different columns have one pool (`heads_across.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
        n_together: groups of clients with the same columns whose trees were pooled together, 0
            where each client has its own pool.
        group: the client that stands for those with the same columns.
        sees: groups whose codes follow the columns.
        said: what codes of its rows are made of; None where no trees see codes.
    """

    columns: tuple[str, ...]
    trees: BoostedTrees
    pool: m.PoolWeights
    n_together: int
    group: str = ""
    sees: tuple[str, ...] = ()
    said: SaidTrees | None = None

    @staticmethod
    def of(
        columns: Sequence[str],
        trees: Arrays,
        pool: m.PoolWeights,
        n_together: int,
        group: str = "",
        sees: Sequence[str] = (),
        said: tuple[Arrays, Arrays, float] | None = None,
    ) -> ClientHead:
        """Return the head of a client's reply or of a file, checked."""
        from fedcircuits.learners.hclt.head.boosted_trees import BoostedTrees

        n_classes, n_columns = pool.shift.size, len(columns)
        n_outputs = 1 if n_classes == 2 else n_classes
        made = BoostedTrees.from_arrays(trees, n_columns + len(sees) * n_classes, n_outputs)
        kept = None
        if said is not None:
            first = BoostedTrees.from_arrays(said[0], n_columns, n_outputs)
            kept = SaidTrees(first, BoostedTrees.from_arrays(said[1], n_columns, 1), said[2])
        return ClientHead(tuple(columns), made, pool, n_together, group, tuple(sees), kept)


@dataclass(frozen=True, eq=False)
class SaidTrees:
    """What codes of a client's rows are made of.

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

    pools = [heads[c].pool for c in sorted(heads)]
    n = np.array([pool.n_rows for pool in pools], dtype=float)
    gain, loss = (
        float(n @ [getattr(p, what) for p in pools] / n.sum()) for what in ("gain", "log_loss")
    )
    error = float(np.sqrt(np.square(n * [p.error for p in pools]).sum()) / n.sum())
    if not gains_for_certain(gain, error, loss):
        return None
    weights = shares_of(heads, tilts)
    joined: BoostedTrees | None = None
    width = max(head.trees.known_categories.shape[1] for head in heads.values())
    tilt, shift = 0.0, np.zeros(rows.size)
    log_q = np.log(rows / rows.sum())
    for client in sorted(heads):
        head, w = heads[client], weights[client]
        b = float(head.pool.trees[0])
        trees = over(scaled(head.trees, w * b), head.columns, names, width)
        joined = trees if joined is None else joined.plus(trees)
        tilt += w * head.pool.tilt
        # The trees have the class shares of their client's rows.
        counts = tilts[client].counts
        shift += w * head.pool.shift + w * b * (log_q - np.log(counts / counts.sum()))
    assert joined is not None
    limit = max(pool.limit for pool in pools)
    return joined, Pool(tilt, 1.0, shift, np.arange(rows.size), limit)


def gains_for_certain(gain: float, error: float, loss: float) -> bool:
    """Whether a head takes enough off the log-loss."""
    return gain > max(LEAST_ERRORS * error, LEAST_SHARE * loss)


def shares_of(clients: Iterable[str], tilts: Mapping[str, Tilt]) -> dict[str, float]:
    """Weights of clients that add up to one, by the harmonic mean of their class counts."""
    harmonic = {c: tilts[c].counts.size / (1.0 / tilts[c].counts).sum() for c in clients}
    return {c: float(w / sum(harmonic.values())) for c, w in harmonic.items()}


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
