"""A client's half of federated k-means: own centres to start from, then sums around agreed ones.

Sums of successive rounds must not single a row out, alone or by their differences. Rows are kept in
*cells*, those that were together in every sum so far; a row moves to another centre only with
enough others of its cell. Whatever is computed from all sums is then about cells, each of
`LEAST_ROWS` rows or more.
"""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import Arrays, IntArray
from fedcircuits.federation.client.clustering import cluster_rows, features, nearest_centres
from fedcircuits.federation.client.rows.parts import Parts
from fedcircuits.federation.wire import requests as m
from fedcircuits.schema import Table

LEAST_ROWS = 5  # of any sum that is sent, whatever the server asks for


class Cells:
    """Which rows were together in every sum that was sent, by columns and strata.

    Args:
        least: smallest cell, at least `LEAST_ROWS`.
        parts: of a client with a policy: centres follow from these columns alone.
    """

    def __init__(self, least: int = LEAST_ROWS, parts: Parts | None = None) -> None:
        self.least = max(least, LEAST_ROWS)
        self._parts = Parts() if parts is None else parts
        self._cells: dict[tuple[tuple[str, ...], bool], IntArray] = {}  # (n,), -1 in no sum

    def start(
        self, table: Table, strata: IntArray, request: m.AskStart, rng: np.random.Generator
    ) -> m.Start:
        """Centres of own clusters: means of enough rows each.

        Args:
            table: the shared columns.
            strata: (n,) rows of different strata are never in one cluster.
            request: number of clusters and smallest size.
            rng: source of the starts.
        """
        index, stratum_of = cluster_rows(table, strata, request.n_clusters, rng)
        index = self._move(_key(table, request), strata, index)
        X, found = features(table), index >= 0
        rows = np.bincount(index[found], minlength=stratum_of.size).astype(float)
        sums = np.zeros((stratum_of.size, X.shape[1]))
        np.add.at(sums, index[found], X[found])
        enough = rows >= max(request.min_rows, self.least)
        centres = np.column_stack([stratum_of[enough], sums[enough] / rows[enough, None]])
        return m.Start(centres, rows[enough])

    def sums_around(
        self, table: Table, strata: IntArray, request: m.AskCentres | m.AskAnchorRows
    ) -> tuple[IntArray, Arrays]:
        """The centre of each row (n,), -1 for none; of each centre the sum and number of rows.

        Args:
            table: the shared columns.
            strata: (n,) as in `start`.
            request: the centres.
        """
        X = features(table)
        nearest, _ = nearest_centres(X, strata, request.centres)
        index = self._move(_key(table, request), strata, nearest)
        k, found = request.centres.shape[0], index >= 0
        sums = np.zeros((k, X.shape[1]))
        np.add.at(sums, index[found], X[found])
        rows = np.bincount(index[found], minlength=k).astype(float)
        return index, {"sums": sums, "rows": rows}

    def _move(
        self, key: tuple[tuple[str, ...], bool], strata: IntArray, wanted: IntArray
    ) -> IntArray:
        """(n,) where rows go: as wanted with enough others of their cell, else with most of it."""
        cells = self._cells.get(key)
        if cells is None or cells.size != strata.size:
            cells = self._without_small(strata)
        moved = np.full(wanted.size, -1, dtype=np.int64)
        for cell in np.unique(cells[cells >= 0]):
            rows = np.flatnonzero(cells == cell)
            to, at, counts = np.unique(wanted[rows], return_inverse=True, return_counts=True)
            moved[rows] = np.where(counts[at] >= self.least, to[at], to[counts.argmax()])
        moved = self._parts.grouped(moved)
        pairs = np.stack([cells, moved], axis=1)
        refined = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
        self._cells[key] = np.where(cells >= 0, refined, -1)
        return moved

    def _without_small(self, groups: IntArray) -> IntArray:
        """The groups of rows (n,), -1 for those of too few."""
        counts = np.bincount(groups)
        return np.where(counts[groups] >= self.least, groups, -1)


def _key(
    table: Table, request: m.AskStart | m.AskCentres | m.AskAnchorRows
) -> tuple[tuple[str, ...], bool]:
    return table.schema.names, request.within_label
