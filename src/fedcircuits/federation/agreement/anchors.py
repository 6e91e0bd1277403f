"""Hybrid: anchors on the shared columns tie each client's private columns to them.

    p(x) = sum_s q(s) [sum_c w(c | s) p_c(x_S | s)] prod_c [sum_k q_c(k | s) p_c(x_Pc | k)]

s is a cluster of the *shared* columns that all holders agree on (federated k-means: sums and counts
per centre, some rounds, so not one pass), k client c's own cluster of its private columns, and
q_c(k | s) is counted where both are seen. No aligned row is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.cluster import KMeans

from fedcircuits.errors import FederationError
from fedcircuits.federation import messages as m
from fedcircuits.federation.clusters import clusters_per_stratum
from fedcircuits.federation.glue import Network
from fedcircuits.federation.packing import pack_choice
from fedcircuits.federation.seeds import named_rng
from fedcircuits.federation.server import Server
from fedcircuits.federation.training import Ingredients, Job, fit, indicator_leaf
from fedcircuits.schema.grid import FloatArray

PHASE = "agreement"
MIN_ROWS = 5


@dataclass(frozen=True)
class Anchors:
    """Anchor clusters of the shared columns.

    Attributes:
        n_anchors: number of anchors.
        n_clusters: private clusters at each client.
        n_rounds: rounds of federated k-means.
    """

    n_anchors: int = 16
    n_clusters: int = 16
    n_rounds: int = 10

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "anchors"

    @property
    def leaves_client(self) -> tuple[str, ...]:
        """What leaves a client."""
        return (
            "sums of the shared columns around anchors, each over five rows or more",
            "how often private clusters meet anchors",
        )

    @staticmethod
    def applies(server: Server) -> bool:
        """Whether the clients share one set of columns beside others, and all of them do."""
        shared = [s for s in server.subspaces if s.is_shared]
        everyone = len(shared) == 1 and len(shared[0].holders) == len(server.clients)
        return everyone and server.setting == "hybrid"

    def train(self, server: Server, take: Mapping[str, Any]) -> Ingredients:
        """Anchors, private clusters, tables, then fit."""
        shared = [s for s in server.subspaces if s.is_shared]
        if not self.applies(server):
            raise FederationError(
                "anchors need one set of columns that all clients share; found "
                f"{len(shared)} shared subspace(s): use agreement='latent' with an id, or "
                "'independent'"
            )
        names = [server.features[j] for j in shared[0].features]
        within = server.label_is_shared
        centres = self._centres(server, names, within)
        private = {
            c: [n for n in server.held[c] if n not in names and (n != server.label or not within)]
            for c in server.clients
        }
        last = self._round(server, names, centres, within)
        counts = np.stack([last[c].rows for c in server.clients])  # (C, K)
        tables = {"strata": centres[:, 0]}
        tables |= {f"once {c}": last[c].once for c in server.clients}
        jobs = [
            Job(c, f"A{s}", tuple(names), "A", s)
            for i, c in enumerate(server.clients)
            for s in map(int, np.flatnonzero(counts[i]))
        ]
        owners = [c for c in server.clients if [n for n in private[c] if n != server.label]]
        request = {c: m.Cluster("P", private[c], self.n_clusters, True, False) for c in owners}
        clustered = server.call(PHASE, "cluster", request, m.Clustered) if request else {}
        for client in owners:
            size = clustered[client].rows.size
            ask = m.AskTable("P", "A", len(centres), size)
            tables[f"meets {client}"] = server.call(PHASE, "table_of", {client: ask}, m.JointTable)[
                client
            ].counts
            jobs += [Job(client, f"P{k}", tuple(private[client]), "P", k) for k in range(size)]
        ingredients = Ingredients(server.schema, server.label if within else None, tables=tables)
        return fit(server, jobs, take, ingredients)

    def _centres(self, server: Server, names: list[str], within: bool) -> FloatArray:
        """(K, 1 + F) agreed centres: start from the clients' own, then federated k-means."""
        ask = m.AskStart(names, self.n_anchors, within, MIN_ROWS)
        told = server.call(PHASE, "start", dict.fromkeys(server.clients, ask), m.Start)
        points = np.concatenate([t.centres for t in told.values()])
        rows = np.concatenate([t.rows for t in told.values()])
        rng = named_rng(server.seed, "anchors")
        strata = points[:, 0].astype(np.int64)
        per = clusters_per_stratum(np.bincount(strata, rows).astype(float), self.n_anchors)
        found = []
        for stratum, k in enumerate(per):
            mine = strata == stratum
            if not mine.any():
                continue
            k = min(int(k), int(mine.sum()))
            means = KMeans(k, n_init=4, random_state=int(rng.integers(2**31)))
            means.fit(points[mine, 1:], sample_weight=rows[mine])
            found.append(np.column_stack([np.full(k, stratum), means.cluster_centers_]))
        centres = np.concatenate(found)
        for _ in range(self.n_rounds):
            around = self._round(server, names, centres, within)
            total = np.sum([around[c].rows for c in server.clients], axis=0)  # (K,)
            sums = np.sum([around[c].sums for c in server.clients], axis=0)  # (K, F)
            means_ = sums / np.maximum(total, 1.0)[:, None]
            centres = np.column_stack(
                [centres[:, 0], np.where(total[:, None] > 0, means_, centres[:, 1:])]
            )
        return centres

    def _round(
        self, server: Server, names: list[str], centres: FloatArray, within: bool
    ) -> dict[str, m.CentreSums]:
        """Sums and rows around the centres, by client; a row of two clients counts at the first."""
        requests, seen = {}, np.zeros(0, dtype=np.int64)
        for client in server.clients:
            mine = server.aligned.get(client, seen[:0])
            elsewhere = pack_choice(np.isin(mine, seen))
            requests[client] = m.AskCentres("A", names, centres, within, elsewhere)
            seen = np.union1d(seen, mine)
        return server.call(PHASE, "centres", requests, m.CentreSums)

    def glue(self, ingredients: Ingredients) -> tuple[Network, int]:
        """Anchors above shared sums and private mixtures."""
        network = Network()
        label, strata = ingredients.label, ingredients.tables["strata"].astype(int)
        leaves = {}
        if label is not None:
            leaves = {
                int(y): indicator_leaf(ingredients.schema, label, int(y)) for y in set(strata)
            }
            network.register([(leaf, "server") for leaf in leaves.values()])
        keys = sorted(ingredients.models)
        network.register([(ingredients.models[k], k[0]) for k in keys])
        clients = sorted({client for client, _, _ in keys})
        products, rows = [], []
        for s in range(strata.size):
            held = [k for k in keys if k[1] == f"A{s}"]
            if not held:
                continue
            counts = [ingredients.rows[k] for k in held]
            factors = [network.mixture([network.part(ingredients.models[k]) for k in held], counts)]
            if label is not None:
                factors.append(network.part(leaves[int(strata[s])]))
            for client in clients:
                meets = ingredients.tables.get(f"meets {client}")
                if meets is None:
                    continue
                own = [k for k in keys if k[0] == client and k[1].startswith("P")]
                # A trace of the overall shares keeps an anchor the client never saw defined.
                table = meets[s] + 0.5 * meets.sum(axis=0) / max(meets.sum(), 1.0)
                parts = [network.part(ingredients.models[k]) for k in own]
                factors.append(network.mixture(parts, [table[int(k[1][1:])] for k in own]))
            products.append(network.product(factors))
            rows.append(float(sum(ingredients.tables[f"once {c}"][s] for c in clients)))
        return network, network.mixture(products, rows)
