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

from fedcircuits.arrays import FloatArray
from fedcircuits.federation.agreement._shared.aligned import aligned_indices, cluster_everywhere
from fedcircuits.federation.agreement._shared.class_models import Key, cell_of, class_jobs
from fedcircuits.federation.server.circuit_builder import Network
from fedcircuits.federation.server.fitted_parts import Ingredients, fit
from fedcircuits.federation.server.server import Server


@dataclass(frozen=True)
class Counts:
    """Joint counts of the clients' clusters.

    Attributes:
        n_clusters: K at each client.
        label_private: cluster without the label at its owner.
    """

    n_clusters: int = 32
    label_private: bool = False

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "counts"

    @property
    def leaves_client(self) -> tuple[str, ...]:
        """What leaves a client."""
        told = ("cluster index of each aligned row", "rows per cluster")
        if self.label_private:
            return told
        return (*told, "with the owner's indices its label of aligned rows, up to its names")

    def train(self, server: Server, take: Mapping[str, Any]) -> Ingredients:
        """Cluster, count, fit one model a cluster and subspace."""
        clustered = cluster_everywhere(server, self.n_clusters, not self.label_private)
        indices = aligned_indices(server, clustered)  # (rows, C)
        tuples, counts = np.unique(indices, axis=0, return_counts=True)
        sizes = {client: clustered[client].rows.size for client in server.clients}
        tables = {"tuples": tuples.astype(float), "counts": counts.astype(float)}
        return fit_clusters(server, take, sizes, tables, label_private=self.label_private)

    def glue(self, ingredients: Ingredients) -> tuple[Network, int]:
        """One product for every combination that occurred."""
        return glue_combinations(ingredients)


def fit_clusters(
    server: Server,
    take: Mapping[str, Any],
    sizes: Mapping[str, int],
    tables: dict[str, FloatArray],
    *,
    label_private: bool,
) -> Ingredients:
    """Models of every subspace, holder and cluster of the holder."""
    jobs = class_jobs(server, "K", lambda c: list(range(sizes[c])), label_private=label_private)
    # Which client each column of the tuples belongs to outlives a client that drops out.
    order = {f"column {client}": np.array([float(i)]) for i, client in enumerate(server.clients)}
    return fit(server, jobs, take, Ingredients(server.schema, server.label, tables=tables | order))


def glue_combinations(ingredients: Ingredients) -> tuple[Network, int]:
    """sum_k q(k_1..k_C) prod_S sum_{c in holders(S)} w(c | k_c, S) p_c(x_S | k_c)."""
    network, models = Network(), ingredients.models
    network.register([(models[k], k[0]) for k in sorted(models)])
    column = {c: int(ingredients.tables[f"column {c}"][0]) for c, _, _ in models}
    holders: dict[int, dict[str, dict[int, Key]]] = {}  # by subspace, client and cluster
    for key in sorted(models):
        cluster, space = cell_of(key)
        holders.setdefault(space, {}).setdefault(key[0], {})[cluster] = key
    products, rows = [], []
    for combination, count in zip(
        ingredients.tables["tuples"], ingredients.tables["counts"], strict=True
    ):
        factors = []
        for space in sorted(holders):
            wanted = ((own, int(combination[column[c]])) for c, own in holders[space].items())
            found = [own[k] for own, k in wanted if k in own]
            if not found:
                break  # nobody could fit a model of this subspace on this cluster
            parts = [network.part(models[k]) for k in found]
            factors.append(network.mixture(parts, [ingredients.rows[k] for k in found]))
        else:
            products.append(network.product(factors))
            rows.append(float(count))
    return network, network.mixture(products, rows)
