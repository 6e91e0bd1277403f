"""`independent`: the paper as published (Algorithm 1), one pass and no message about rows.

Every client clusters its private subspace alone; products glue clusters by chance, all of them, or
not at all (naive); sums over shared subspaces are children of every product; weights are rho.
There is no dependence between clients in it: that is what the other rules add.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fedcircuits.federation.agreement.base import Declared
from fedcircuits.federation.plan.indicator import feature_indicator
from fedcircuits.federation.plan.plan import Glueing, plan
from fedcircuits.federation.plan.subspaces import Subspace
from fedcircuits.federation.plan.weights import rho
from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import FittedParts, TakeModels, fit
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import CLUSTERS, Job, JobId, JobKind
from fedcircuits.federation.wire.steps import Facts, Step, step

T = TypeVar("T")


@dataclass(frozen=True)
class Independent(Declared):
    """Algorithm 1 of the paper: one pass, clients independent of each other.

    Attributes:
        n_clusters: K.
        n_products: P, for random glueing.
        glueing: naive, random or combinatorial.
        seed: of random glueing.
    """

    n_clusters: int = 2
    n_products: int | None = None
    glueing: Glueing = "combinatorial"
    seed: int = 0

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "independent"

    def steps(self, facts: Facts) -> tuple[Step, ...]:
        """Clusters of private columns, and fits."""
        del facts
        cluster = step(m.CLUSTER, n_clusters=self.n_clusters, within_label=False, send_rows=False)
        return (cluster, step(m.FIT))

    def train(self, server: Server, take: TakeModels) -> FittedParts:
        """Cluster private subspaces, then fit everything in one message.

        The label is a feature like any other here.
        """
        names = server.schema.names
        M = feature_indicator(server.held, server.clients, names)
        made = plan(M, self.n_clusters, self.n_products, self.seed, self.glueing)

        def columns(space: Subspace) -> tuple[str, ...]:
            return tuple(names[j] for j in space.features)

        requests = {
            server.clients[s.holders[0]]: m.Cluster(
                CLUSTERS, list(columns(s)), self.n_clusters, False, False
            )
            for s in made.private
        }
        clustered = server.call(m.CLUSTER, requests) if requests else {}
        jobs = [
            (server.clients[c], Job(JobId(JobKind.SUBSPACE, i), columns(s)))
            for i, s in enumerate(made.shared)
            for c in s.holders
        ]
        for i, s in enumerate(made.private):
            client = server.clients[s.holders[0]]
            for k in range(clustered[client].rows.size):
                job = JobId(JobKind.CLUSTER, i, k)
                jobs.append((client, Job(job, columns(s), CLUSTERS, k)))
        return fit(server, jobs, take, FittedParts(server.schema, server.label))

    def glue(self, fitted: FittedParts) -> tuple[CircuitBuilder, int]:
        """Products over shared sums and chosen clusters below a mixture, weights by rho."""
        builder = CircuitBuilder()
        keys = sorted(fitted.models)
        builder.register([(fitted.models[k], k.client) for k in keys])
        shared: dict[int, list[tuple[int, float]]] = {}
        private: dict[int, dict[int, tuple[int, float]]] = {}
        for key in keys:
            part, rows = builder.part(fitted.models[key]), fitted.rows[key]
            if key.job.kind is JobKind.SUBSPACE:
                shared.setdefault(key.job.space, []).append((part, rows))
            else:
                private.setdefault(key.job.space, {})[key.job.part] = (part, rows)
        sums = [
            (builder.mixture([p for p, _ in held], [n for _, n in held]), rho([n for _, n in held]))
            for held in _in_text_order(shared)
        ]
        spaces = _in_text_order(private)
        if not spaces:
            return builder, builder.product([s for s, _ in sums])
        if self.glueing == "naive":
            mixtures = [
                builder.mixture([p for p, _ in own.values()], [n for _, n in own.values()])
                for own in spaces
            ]
            return builder, builder.product([*(s for s, _ in sums), *mixtures])
        products, weights = [], []
        for chosen in self._choices([len(own) for own in spaces]):
            children = [own[k] for own, k in zip(spaces, chosen, strict=True)]
            products.append(builder.product([*(s for s, _ in sums), *(p for p, _ in children)]))
            weights.append(rho([*(n for _, n in sums), *(n for _, n in children)]))
        return builder, builder.mixture(products, weights)

    def _choices(self, sizes: list[int]) -> list[tuple[int, ...]]:
        """Combinations of clusters, from the same plan as Algorithm 1's."""
        made = plan(
            np.eye(len(sizes), dtype=bool), max(sizes), self.n_products, self.seed, self.glueing
        )
        return [
            chosen
            for chosen in made.products
            if all(k < size for k, size in zip(chosen, sizes, strict=True))
        ]


def _in_text_order(by_space: Mapping[int, T]) -> list[T]:
    """Values by the text of their key, the order of all parts of a circuit."""
    return [by_space[space] for space in sorted(by_space, key=str)]
