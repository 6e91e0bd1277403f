"""`latent-table`: latent classes from a table of counts alone.

The table N(k_1..k_C) is an inner product across parties: a secure sum cannot make it where columns
are split. Two mechanisms are here, by name:

- "trusted" (the default): a trusted aggregator, which is the server of this run, sees the clusters'
  indices of aligned rows and hands on the table only. With `epsilon` the table gets Laplace noise
  of scale 2 / epsilon (one replaced row changes two cells) before anything is fitted to it.
- "randomised-response": clients randomise the index of every row themselves, and the server
  estimates the table. The epsilon is that of one index.

In both the epsilon covers indices or table, not the client circuits and not rows per cluster.

No row's class is sent. A client's rows belong to class l as far as r(l | k_c) says, which makes
p_c(x_S | l) the mixture of its own cluster models with weights r_c(k | l):

    p(x) = sum_l q(l) prod_S sum_{c in holders(S)} w(c | S) sum_k r_c(k | l) p_c(x_S | k)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product as combinations
from math import prod
from typing import Any

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement._shared.aligned import aligned_indices, cluster_everywhere
from fedcircuits.federation.agreement._shared.class_models import cell_of
from fedcircuits.federation.agreement._shared.latent_classes import fit_within_strata
from fedcircuits.federation.agreement.counts import fit_clusters
from fedcircuits.federation.server.circuit_builder import Network
from fedcircuits.federation.server.fitted_parts import Ingredients
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire.randomised_response import estimated_table
from fedcircuits.federation.wire.seeds import named_rng

MOST_CELLS = 200_000
MECHANISMS = ("trusted", "randomised-response")


@dataclass(frozen=True)
class LatentTable:
    """Latent classes agreed over a table of counts.

    Attributes:
        n_classes: R.
        n_clusters: K at each client.
        epsilon: of the Laplace noise on the table, None for no noise; of the randomised response,
            which needs one.
        label_private: cluster without the label at its owner.
        mechanism: who sees what: "trusted" or "randomised-response".
    """

    n_classes: int = 24
    n_clusters: int = 32
    epsilon: float | None = None
    label_private: bool = False
    mechanism: str = "trusted"

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "latent-table"

    @property
    def leaves_client(self) -> tuple[str, ...]:
        """What leaves a client."""
        if self.mechanism == "randomised-response":
            return (
                "cluster index of each aligned row by randomised response, epsilon "
                f"{self.epsilon or 0.0:g} an index",
                "rows per cluster",
            )
        noise = "" if self.epsilon is None else f", with Laplace noise of scale 2/{self.epsilon:g}"
        return (
            "to the trusted aggregator (the server of this run): cluster index of each aligned row",
            f"beyond it: the table of counts of index combinations{noise}",
            "rows per cluster",
        )

    def train(self, server: Server, take: Mapping[str, Any]) -> Ingredients:
        """Cluster, count, fit latent classes to the table, let clients map their rows."""
        if self.mechanism not in MECHANISMS:
            raise FederationError(
                f"the mechanism is {' or '.join(MECHANISMS)}, found {self.mechanism!r}"
            )
        randomised = self.mechanism == "randomised-response"
        if (self.epsilon is None and randomised) or (self.epsilon or 1.0) <= 0:
            raise FederationError(
                f"epsilon must be positive, found {self.epsilon} (mechanism {self.mechanism!r})"
            )
        epsilon = float(self.epsilon or 0.0) if randomised else 0.0
        clustered = cluster_everywhere(
            server, self.n_clusters, not self.label_private, epsilon=epsilon
        )
        sizes = [clustered[c].rows.size for c in server.clients]
        rng = named_rng(server.seed, "latent-table")
        indices = aligned_indices(server, clustered)
        if randomised:
            self._check_cells(sizes)
            shares = [clustered[c].rows / clustered[c].rows.sum() for c in server.clients]
            cells = estimated_table(indices, sizes, shares, epsilon)
            tuples, counts = np.argwhere(cells > 0), cells[cells > 0]
        else:
            tuples, counts = self._table(indices, sizes, rng)
        strata = np.zeros(len(tuples), dtype=np.int64)
        if server.label_holders and not self.label_private:
            owner = server.label_holders[0]
            strata = clustered[owner].strata[tuples[:, server.clients.index(owner)]]
        model = fit_within_strata(tuples, counts, sizes, strata, self.n_classes, rng)
        tables = {"q": np.exp(model.log_q)}
        tables |= {f"r {c}": np.exp(model.log_r[at]) for at, c in enumerate(server.clients)}
        by_client = dict(zip(server.clients, sizes, strict=True))
        return fit_clusters(server, take, by_client, tables, label_private=self.label_private)

    def _table(
        self, indices: IntArray, sizes: list[int], rng: np.random.Generator
    ) -> tuple[IntArray, FloatArray]:
        """Combinations (t, C) and their counts (t,): what the aggregator hands on."""
        tuples, found = np.unique(indices, axis=0, return_counts=True)
        counts = found.astype(float)
        if self.epsilon is None:
            return tuples, counts
        self._check_cells(sizes)
        # Noise on every cell, those without a row too: an absent cell would give its zero away.
        every = np.array(list(combinations(*map(range, sizes))), dtype=np.int64)
        cells = np.zeros(tuple(sizes))
        cells[tuple(tuples.T)] = counts
        noisy = cells.ravel() + rng.laplace(scale=2.0 / self.epsilon, size=cells.size)
        kept = noisy > 0
        return every[kept], noisy[kept]

    @staticmethod
    def _check_cells(sizes: list[int]) -> None:
        if prod(sizes) > MOST_CELLS:
            raise FederationError(
                f"a table of {prod(sizes)} cells cannot be given noise: use fewer clusters"
            )

    def glue(self, ingredients: Ingredients) -> tuple[Network, int]:
        """One product for every latent class, of mixtures of all clusters of all holders."""
        network, models = Network(), ingredients.models
        network.register([(models[k], k[0]) for k in sorted(models)])
        held: dict[int, list[tuple[str, int, int, float]]] = {}  # client, cluster, part, rows
        for key in sorted(models):
            k, space = cell_of(key)
            part = (key[0], k, network.part(models[key]), ingredients.rows[key])
            held.setdefault(space, []).append(part)
        products, weights = [], []
        for cls, q in enumerate(ingredients.tables["q"]):
            factors = []
            for space in sorted(held):
                by_client: dict[str, float] = {}
                for client, _, _, rows in held[space]:
                    by_client[client] = by_client.get(client, 0.0) + rows
                share = [
                    by_client[client] * ingredients.tables[f"r {client}"][cls, k]
                    for client, k, _, _ in held[space]
                ]
                factors.append(network.mixture([part for _, _, part, _ in held[space]], share))
            products.append(network.product(factors))
            weights.append(float(q))
        return network, network.mixture(products, weights)
