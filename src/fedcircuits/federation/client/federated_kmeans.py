"""A client's half of federated k-means: own centres to start from, then sums around agreed ones.

Sums of successive rounds must not single a row out, alone or by their differences. Rows are kept in
*cells*, those that were together in every sum so far; a row moves to another centre only with
enough others of its cell. Whatever is computed from all sums is then about cells, each of
`LEAST_ROWS` rows or more.
"""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import Arrays, IntArray
from fedcircuits.errors import ClientError
from fedcircuits.federation.client.clustering import cluster_rows, features, nearest_centres
from fedcircuits.federation.client.dispatch import handles
from fedcircuits.federation.client.rows.parts import Parts
from fedcircuits.federation.client.state import ClientState
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.schema import Table

MOST_CELLS = 2**22  # of a table of counts
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


class KMeans(ClientState):
    """The part of a client that takes part in federated k-means and counts what it found."""

    _cells: Cells

    @handles(m.START)
    def _start(self, request: m.AskStart) -> m.Start:
        """Centres of this client's own clusters: means of at least min_rows rows each."""
        table = self._have().columns([c for c in request.columns if c != self._label])
        rng = named_rng(self._seed, self.name, "start")
        return self._cells.start(table, self._strata(request.within_label), request, rng)

    @handles(m.CENTRES)
    def _centres(self, request: m.AskCentres) -> m.CentreSums:
        """One round of federated k-means on the shared columns."""
        sums = self._near(request)[1]
        if request.masked_with:
            sums = self._mail.mask(sums, request, request.masked_with)
        return m.CentreSums(sums)

    @handles(m.ANCHOR_ROWS)
    def _anchor_rows(self, request: m.AskAnchorRows) -> m.AnchorRows:
        """How many rows are around the centres that were agreed on."""
        index, sums = self._near(request)
        counted = np.ones(index.size, dtype=bool)
        counted[self._aligned.chosen(request.elsewhere)] = False
        counted = self._parts.chosen(counted)
        rows = sums["rows"]
        once = np.bincount(index[(index >= 0) & counted], minlength=rows.size).astype(float)
        # Neither those counted here nor those counted elsewhere are a group that is too small.
        once = np.where(once < self._least, 0.0, once)
        return m.AnchorRows(rows, np.where(rows - once < self._least, rows, once))

    def _near(self, request: m.AskCentres | m.AskAnchorRows) -> tuple[IntArray, Arrays]:
        """The centre of every row (n,), kept as a grouping, and sums around the centres."""
        table = self._have().columns([c for c in request.columns if c != self._label])
        strata = self._strata(request.within_label)
        index, sums = self._cells.sums_around(table, strata, request)
        self._groups[request.group] = index
        return index, sums

    @handles(m.TABLE_OF)
    def _table_of(self, request: m.AskTable) -> m.JointTable:
        """How often parts of one grouping meet anchors."""
        a, k = self._groups[request.anchors], self._groups[request.group]
        if not 0 < request.n_anchors * request.n_clusters <= MOST_CELLS:
            shape = f"{request.n_anchors} x {request.n_clusters}"
            raise ClientError(self.name, f"counts at most {MOST_CELLS} cells, not {shape}")
        counts = np.zeros((request.n_anchors, request.n_clusters))
        known = (a >= 0) & (k >= 0)
        np.add.at(counts, (a[known], k[known]), 1.0)
        found: Arrays = {"counts": np.where(counts < self._least, 0.0, counts)}
        if request.masked_with:
            found = self._mail.mask({"counts": counts}, request, request.masked_with)
        return m.JointTable(found)


def _key(
    table: Table, request: m.AskStart | m.AskCentres | m.AskAnchorRows
) -> tuple[tuple[str, ...], bool]:
    return table.schema.names, request.within_label
