"""A client's half of federated k-means: own centres to start from, then sums around agreed ones."""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.federation.client.clustering import cluster_rows, features, nearest_centres
from fedcircuits.federation.wire import requests as m
from fedcircuits.schema import Table

LEAST_ROWS = 5  # of any sum that is sent, whatever the server asks for


def own_centres(
    table: Table, strata: IntArray, request: m.AskStart, rng: np.random.Generator
) -> m.Start:
    """Centres of own clusters: means of min_rows rows or more each, never below `LEAST_ROWS`.

    Args:
        table: the shared columns.
        strata: (n,) rows of different strata are never in one cluster.
        request: number of clusters and smallest size.
        rng: source of the starts.
    """
    index, stratum_of = cluster_rows(table, strata, request.n_clusters, rng)
    X = features(table)
    rows = np.bincount(index, minlength=stratum_of.size).astype(float)
    sums = np.zeros((stratum_of.size, X.shape[1]))
    np.add.at(sums, index, X)
    enough = rows >= max(request.min_rows, LEAST_ROWS)
    centres = np.column_stack([stratum_of[enough], sums[enough] / rows[enough, None]])
    return m.Start(centres, rows[enough])


def sums_around(
    table: Table, strata: IntArray, request: m.AskCentres, counted: BoolArray
) -> tuple[IntArray, m.CentreSums]:
    """The centre of each row (n,), -1 for none, and one round of sums over `LEAST_ROWS` or more.

    Args:
        table: the shared columns.
        strata: (n,) as in `own_centres`.
        request: the centres.
        counted: (n,) rows that no other client counts.
    """
    X = features(table)
    index, distance = _large_groups(X, strata, request.centres)
    k, found = request.centres.shape[0], index >= 0
    sums = np.zeros((k, X.shape[1]))
    np.add.at(sums, index[found], X[found])
    rows, once = (
        np.bincount(index[some], minlength=k).astype(float) for some in (found, found & counted)
    )
    return index, m.CentreSums(sums, rows, once, float(distance[found].sum()))


def _large_groups(
    X: FloatArray, strata: IntArray, centres: FloatArray
) -> tuple[IntArray, FloatArray]:
    """As `nearest_centres`, in groups of `LEAST_ROWS` rows or more.

    Rows of a smaller group go to the next centre of their stratum; where a whole stratum has fewer
    rows, they belong to no centre (-1), and the server learns nothing of them.
    """
    left = np.arange(len(centres))
    while True:
        near, distance = nearest_centres(X, strata, centres[left])
        rows = np.bincount(near, minlength=left.size)  # (left,)
        small = (rows > 0) & (rows < LEAST_ROWS)
        stratum = centres[left, 0]
        others = np.array([(stratum == own).sum() > 1 for own in stratum])
        if not (small & others).any():
            return np.where(small[near], -1, left[near]), distance
        smallest = np.argmin(np.where(small & others, rows, rows.sum() + 1))
        left = np.delete(left, smallest)
