"""What several rules need about aligned rows: who holds them, and in which cluster they are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcircuits.errors import FederationError
from fedcircuits.federation import messages as m
from fedcircuits.federation.indicator import feature_indicator
from fedcircuits.federation.server import Server
from fedcircuits.federation.subspaces import Subspace, subspaces
from fedcircuits.schema.grid import IntArray

PHASE = "agreement"


def common_rows(server: Server) -> IntArray:
    """Numbers of the rows that every client holds, sorted."""
    if not server.aligned:
        return np.zeros(0, dtype=np.int64)
    common = server.aligned[server.clients[0]]
    for client in server.clients[1:]:
        common = np.intersect1d(common, server.aligned[client])
    return np.sort(common)


def aligned_share(server: Server) -> float:
    """Share of the smallest client's rows that every client holds."""
    return common_rows(server).size / max(1, min(server.n_rows[c] for c in server.clients))


def spaces_with_label(server: Server) -> list[tuple[tuple[str, ...], list[str]]]:
    """Columns and holders of each subspace (Algorithm 1, line 3), the label a feature as others."""
    names = server.schema.names

    def named(space: Subspace) -> tuple[tuple[str, ...], list[str]]:
        columns = tuple(names[j] for j in space.features)
        return columns, [server.clients[c] for c in space.holders]

    M = feature_indicator(server.held, server.clients, names)
    return [named(space) for space in subspaces(M)]


def cluster_everywhere(
    server: Server, n_clusters: int, within_label: bool
) -> dict[str, m.Clustered]:
    """Every client clusters its own columns and tells the index of its aligned rows."""
    requests = {
        client: m.Cluster("K", list(server.held[client]), n_clusters, within_label, True)
        for client in server.clients
    }
    return server.call(PHASE, "cluster", requests, m.Clustered)


def aligned_indices(server: Server, clustered: Mapping[str, m.Clustered]) -> IntArray:
    """(rows, C) clusters of the rows that every client holds."""
    common = common_rows(server)
    if common.size == 0:
        raise FederationError(
            "no row is held by every client, so nothing can be counted: use "
            "agreement='independent', or 'product' where the label is shared"
        )
    columns = []
    for client in server.clients:
        order = np.argsort(server.aligned[client])
        at = order[np.searchsorted(server.aligned[client][order], common)]
        columns.append(_indices(clustered[client])[at])
    return np.stack(columns, axis=1)


def _indices(told: m.Clustered) -> IntArray:
    """(m,) the cluster of each aligned row."""
    wide = told.rows.size > 256
    return told.indices.view(np.uint16 if wide else np.uint8).astype(np.int64)


def strata_of_rows(
    server: Server, clustered: Mapping[str, m.Clustered], indices: IntArray, within_label: bool
) -> IntArray:
    """(n,) the stratum of each aligned row: the label owner's, where it clusters within class."""
    holders = server.label_holders
    if not holders or not within_label:
        return np.zeros(len(indices), dtype=np.int64)
    at = server.clients.index(holders[0])
    return np.asarray(clustered[holders[0]].strata[indices[:, at]])
