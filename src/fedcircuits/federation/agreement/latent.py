"""`latent`: a latent class for every row, fitted to the clients' cluster indices.

The server fits P(k_1..k_C) = sum_l q(l) prod_c r_c(k_c | l) to the index tuples by EM, tells each
aligned row's class back, and clients fit one circuit for each class:

    p(x) = sum_l q(l) prod_c p_c(x_c | l)

Rows that are not aligned are mapped through r(l | k_c). Where the label's owner clusters within
class, latent classes are fitted within its strata, so that a class never mixes labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcircuits.federation import messages as m
from fedcircuits.federation.agreement.counts import (
    PHASE,
    aligned_indices,
    cluster_everywhere,
)
from fedcircuits.federation.agreement.product import common_rows
from fedcircuits.federation.clusters import clusters_per_stratum
from fedcircuits.federation.glue import Network
from fedcircuits.federation.seeds import named_rng
from fedcircuits.federation.server import Server
from fedcircuits.federation.training import Ingredients, Job, fit
from fedcircuits.schema.grid import FloatArray, IntArray


@dataclass(frozen=True)
class LatentClasses:
    """A latent class model of index tuples.

    Attributes:
        log_q: (R,) log q(l).
        log_r: one (R, K_c) log r_c(k | l) for each client.
    """

    log_q: FloatArray
    log_r: list[FloatArray]

    def log_joint(self, indices: IntArray) -> FloatArray:
        """(n, R) log q(l) prod_c r_c(k_c | l) of index tuples (n, C)."""
        total = np.tile(self.log_q, (len(indices), 1))
        for c, table in enumerate(self.log_r):
            total += table[:, indices[:, c]].T
        return total

    def given_cluster(self, client: int) -> FloatArray:
        """(K_c, R) r(l | k_c), for rows that only one client holds."""
        joint = np.exp(self.log_q[:, None] + self.log_r[client]).T
        return np.asarray(joint / np.maximum(joint.sum(axis=1, keepdims=True), 1e-300))


def fit_latent_classes(
    indices: IntArray,
    sizes: list[int],
    n_classes: int,
    rng: np.random.Generator,
    n_starts: int = 4,
    n_steps: int = 100,
) -> LatentClasses:
    """EM on index tuples, the best of several starts; distinct tuples are counted once."""
    tuples, counts = np.unique(indices, axis=0, return_counts=True)
    weights = counts / counts.sum()
    best: tuple[float, LatentClasses] | None = None
    for _ in range(n_starts):
        share = rng.dirichlet(np.full(n_classes, 0.5), size=len(tuples))  # (t, R)
        score = -np.inf
        for _step in range(n_steps):
            mass = share * weights[:, None]
            q = mass.sum(axis=0) + 1e-9
            tables = []
            for c, size in enumerate(sizes):
                table = np.full((n_classes, size), 1e-4 / size)
                np.add.at(table.T, tuples[:, c], mass)
                tables.append(np.log(table / table.sum(axis=1, keepdims=True)))
            model = LatentClasses(np.log(q / q.sum()), tables)
            joint = model.log_joint(tuples)
            top = joint.max(axis=1, keepdims=True)
            log_total = top[:, 0] + np.log(np.exp(joint - top).sum(axis=1))
            share = np.exp(joint - log_total[:, None])
            new = float(weights @ log_total)
            if new - score < 1e-7:
                break
            score = new
        if best is None or score > best[0]:
            best = (score, model)
    assert best is not None
    return best[1]


@dataclass(frozen=True)
class Latent:
    """Latent classes agreed over cluster indices.

    Attributes:
        n_classes: R.
        n_clusters: K at each client.
        label_private: cluster without the label at its owner.
    """

    n_classes: int = 24
    n_clusters: int = 16
    label_private: bool = False

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "latent"

    @property
    def leaves_client(self) -> tuple[str, ...]:
        """What leaves a client."""
        return ("cluster index of each aligned row", "which clusters form a stratum")

    def train(self, server: Server, take: Mapping[str, Any]) -> Ingredients:
        """Cluster, fit latent classes within strata, assign, fit one model a class."""
        clustered = cluster_everywhere(server, self.n_clusters, not self.label_private)
        indices = aligned_indices(server, clustered)
        sizes = [clustered[c].rows.size for c in server.clients]
        strata = self._strata(server, clustered, indices)
        model = self._fit_within(indices, sizes, strata, named_rng(server.seed, "latent"))
        requests = {}
        for at, client in enumerate(server.clients):
            common = common_rows(server)
            classes = model.log_joint(indices).argmax(axis=1)
            requests[client] = m.Assign(
                "K/L",
                common.astype(np.int32),
                classes.astype(np.uint8 if len(model.log_q) <= 256 else np.uint16),
                model.given_cluster(at),
            )
        assigned = server.call(PHASE, "assign", requests, m.Ready)
        rows = np.bincount(
            model.log_joint(indices).argmax(axis=1), minlength=len(model.log_q)
        ).astype(float)
        jobs = [
            Job(client, f"L{cls}", tuple(server.held[client]), "K/L", cls)
            for client in server.clients
            for cls in range(len(model.log_q))
            if rows[cls] > 0 and assigned[client].label_counts[cls] > 0
        ]
        tables = {"rows": rows}
        return fit(server, jobs, take, Ingredients(server.schema, server.label, tables=tables))

    def _strata(
        self, server: Server, clustered: Mapping[str, m.Clustered], indices: IntArray
    ) -> IntArray:
        """(n,) the stratum of each aligned row: the owner's, where it clusters within the label."""
        holders = server.label_holders
        if not holders or self.label_private:
            return np.zeros(len(indices), dtype=np.int64)
        at = server.clients.index(holders[0])
        return clustered[holders[0]].strata[indices[:, at]]

    def _fit_within(
        self, indices: IntArray, sizes: list[int], strata: IntArray, rng: np.random.Generator
    ) -> LatentClasses:
        """Latent classes of each stratum side by side."""
        rows = np.bincount(strata).astype(float)
        log_q: list[FloatArray] = []
        log_r: list[list[FloatArray]] = [[] for _ in sizes]
        for stratum, n_classes in enumerate(clusters_per_stratum(rows, self.n_classes)):
            mine = indices[strata == stratum]
            if not len(mine):
                continue
            part = fit_latent_classes(mine, sizes, int(n_classes), rng)
            log_q.append(part.log_q + np.log(rows[stratum] / rows.sum()))
            for c, table in enumerate(part.log_r):
                log_r[c].append(table)
        return LatentClasses(np.concatenate(log_q), [np.concatenate(t) for t in log_r])

    def glue(self, ingredients: Ingredients) -> tuple[Network, int]:
        """One product for every latent class that all clients could fit."""
        network = Network()
        keys = sorted(ingredients.models)
        network.register([(ingredients.models[k], k[0]) for k in keys])
        clients = sorted({client for client, _, _ in keys})
        products, counts = [], []
        for cls, rows in enumerate(ingredients.tables["rows"]):
            wanted = [(client, f"L{cls}", -1) for client in clients]
            if rows > 0 and all(key in ingredients.models for key in wanted):
                parts = [network.part(ingredients.models[key]) for key in wanted]
                products.append(network.product(parts))
                counts.append(float(rows))
        return network, network.mixture(products, counts)
