"""`counts`: clients tell the cluster of each aligned row; the server counts what occurs together.

    p(x) = sum_{k_1..k_C} q(k_1, ..., k_C) prod_c p_c(x_c | k_c)

The joint table is a sum over the combinations that occur; the label's owner clusters within class,
which is why the label can be read from its indices up to renaming.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcircuits.errors import FederationError
from fedcircuits.federation import messages as m
from fedcircuits.federation.agreement.product import common_rows
from fedcircuits.federation.glue import Network
from fedcircuits.federation.server import Server
from fedcircuits.federation.training import Ingredients, Job, fit
from fedcircuits.schema.grid import IntArray

PHASE = "agreement"


@dataclass(frozen=True)
class Counts:
    """Joint counts of the clients' clusters.

    Attributes:
        n_clusters: K at each client.
        label_private: cluster without the label at its owner.
    """

    n_clusters: int = 16
    label_private: bool = False

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "counts"

    @property
    def leaves_client(self) -> tuple[str, ...]:
        """What leaves a client."""
        return ("cluster index of each aligned row",)

    def train(self, server: Server, take: Mapping[str, Any]) -> Ingredients:
        """Cluster, count, fit one model a cluster."""
        clustered = cluster_everywhere(server, self.n_clusters, not self.label_private)
        indices = aligned_indices(server, clustered)  # (rows, C)
        tuples, counts = np.unique(indices, axis=0, return_counts=True)
        jobs = [
            Job(client, f"K{k}", tuple(server.held[client]), "K", k)
            for client in server.clients
            for k in range(clustered[client].rows.size)
        ]
        tables = {"tuples": tuples.astype(float), "counts": counts.astype(float)}
        return fit(server, jobs, take, Ingredients(server.schema, server.label, tables=tables))

    def glue(self, ingredients: Ingredients) -> tuple[Network, int]:
        """One product for every combination that occurred."""
        network = Network()
        keys = sorted(ingredients.models)
        network.register([(ingredients.models[k], k[0]) for k in keys])
        clients = sorted({client for client, _, _ in keys})
        products, rows = [], []
        for combination, count in zip(
            ingredients.tables["tuples"], ingredients.tables["counts"], strict=True
        ):
            wanted = [(c, f"K{int(k)}", -1) for c, k in zip(clients, combination, strict=True)]
            if all(key in ingredients.models for key in wanted):
                parts = [network.part(ingredients.models[key]) for key in wanted]
                products.append(network.product(parts))
                rows.append(float(count))
        return network, network.mixture(products, rows)


def cluster_everywhere(
    server: Server, n_clusters: int, within_label: bool
) -> dict[str, m.Clustered]:
    """Every client clusters its own columns and tells the index of its aligned rows."""
    requests = {
        client: m.Cluster("K", list(server.held[client]), n_clusters, within_label, True)
        for client in server.clients
    }
    return server.call(PHASE, "cluster", requests, m.Clustered)


def indices_of(told: m.Clustered) -> IntArray:
    """(m,) the cluster of each aligned row."""
    wide = told.rows.size > 256
    return told.indices.view(np.uint16 if wide else np.uint8).astype(np.int64)


def aligned_indices(server: Server, clustered: Mapping[str, m.Clustered]) -> IntArray:
    """(rows, C) clusters of the rows that every client holds."""
    common = common_rows(server)
    if common.size == 0:
        raise FederationError("no row is held by every client, so nothing can be counted")
    columns = []
    for client in server.clients:
        order = np.argsort(server.aligned[client])
        at = order[np.searchsorted(server.aligned[client][order], common)]
        columns.append(indices_of(clustered[client])[at])
    return np.stack(columns, axis=1)
