"""A client's half of federated k-means: own centres to start from, then sums around agreed ones."""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import BoolArray, IntArray
from fedcircuits.federation.client.clustering import cluster_rows, features, nearest_centres
from fedcircuits.federation.wire import requests as m
from fedcircuits.schema import Table


def own_centres(
    table: Table, strata: IntArray, request: m.AskStart, rng: np.random.Generator
) -> m.Start:
    """Centres of own clusters: means of at least min_rows rows each.

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
    enough = rows >= request.min_rows
    centres = np.column_stack([stratum_of[enough], sums[enough] / rows[enough, None]])
    return m.Start(centres, rows[enough])


def sums_around(
    table: Table, strata: IntArray, request: m.AskCentres, counted: BoolArray
) -> tuple[IntArray, m.CentreSums]:
    """The nearest centre of each row (n,), and one round of sums.

    Args:
        table: the shared columns.
        strata: (n,) as in `own_centres`.
        request: the centres.
        counted: (n,) rows that no other client counts.
    """
    X = features(table)
    index, distance = nearest_centres(X, strata, request.centres)
    k = request.centres.shape[0]
    sums = np.zeros((k, X.shape[1]))
    np.add.at(sums, index, X)
    rows, once = (np.bincount(i, minlength=k).astype(float) for i in (index, index[counted]))
    return index, m.CentreSums(sums, rows, once, float(distance.sum()))
