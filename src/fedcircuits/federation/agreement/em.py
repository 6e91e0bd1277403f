"""`em`: joint weights of the clients' clusters, fitted by EM on log-likelihoods of aligned rows.

    p(x) = sum_{k_1..k_C} q(k_1, ..., k_C) prod_c p_c(x_c | k_c)

Clients send K log-likelihoods for each aligned row, the server runs EM on q. It costs two hundred
bytes a row and is kept for the comparison of the paper's Table 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product as combinations
from math import prod

import numpy as np
from scipy.special import logsumexp

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement._shared.aligned import (
    cluster_everywhere,
    common_rows,
)
from fedcircuits.federation.agreement._shared.class_models import cell_of, fit_clusters
from fedcircuits.federation.agreement._shared.validation import ask_by_number
from fedcircuits.federation.agreement.base import Declared
from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import FittedParts, TakeModels
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import ModelKey
from fedcircuits.federation.wire.steps import MANY, Facts, Step, step

MOST_COMBINATIONS = 1024
ROWS_PER_STEP = 4096


@dataclass(frozen=True)
class Em(Declared):
    """Joint weights of the clients' clusters by EM.

    Attributes:
        n_clusters: K at each client.
        n_steps: most EM steps.
        label_private: cluster without the label at its owner, and leave it out of likelihoods.
    """

    n_clusters: int = 16
    n_steps: int = 50
    label_private: bool = False

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "em"

    def steps(self, facts: Facts) -> tuple[Step, ...]:
        """Fits of clusters, and the likelihood of rows under each."""
        if facts.setting != "vertical":
            return ()
        within = not self.label_private
        cluster = step(m.CLUSTER, n_clusters=self.n_clusters, within_label=within, send_rows=False)
        ask = step(m.ASK, MANY, label_in_evidence=within)
        return (cluster, step(m.FIT), step(m.NAME_ROWS), ask)

    def train(self, server: Server, take: TakeModels) -> FittedParts:
        """Cluster, fit, gather log-likelihoods, EM on q."""
        if server.setting != "vertical":
            raise FederationError(f"the rule 'em' is for columns split, found {server.setting}")
        common = common_rows(server)
        if not common.size:
            raise FederationError("the rule 'em' needs rows that every client holds; use 'product'")
        clustered = cluster_everywhere(
            server, self.n_clusters, not self.label_private, send_rows=False
        )
        sizes = {c: clustered[c].rows.size for c in server.clients}
        found = fit_clusters(server, take, sizes, {}, label_private=self.label_private)
        log_probs = []
        for client in server.clients:
            table = np.zeros((common.size, sizes[client]))
            mine = sorted(k for k in found.models if k.client == client)
            for key in mine:  # the features, and the label where it is a factor of its own
                table[:, cell_of(key)[0]] += ask_by_number(
                    server, key, common, "log_prob", label_in_evidence=not self.label_private
                )
            fitted = {cell_of(key)[0] for key in mine}
            table[:, [k for k in range(sizes[client]) if k not in fitted]] = -np.inf
            log_probs.append(table)
        tuples, weights = fit_joint_weights(log_probs, self.n_steps)
        tables = {"tuples": tuples.astype(float), "counts": weights * common.size}
        return replace(found, tables=found.tables | tables)

    def glue(self, fitted: FittedParts) -> tuple[CircuitBuilder, int]:
        """One product for every combination with weight."""
        return glue_combinations(fitted)


def fit_joint_weights(
    log_probs: list[FloatArray], n_steps: int, tolerance: float = 1e-7
) -> tuple[IntArray, FloatArray]:
    """Combinations (t, C) and q (t,) that make rows most likely; EM never lowers the likelihood.

    Args:
        log_probs: one (n, K_c) for each client.
        n_steps: most steps.
        tolerance: ends EM when the mean log-likelihood gains less.
    """
    sizes = [table.shape[1] for table in log_probs]
    best = np.stack([table.argmax(axis=1) for table in log_probs], axis=1)
    tuples = np.unique(best, axis=0)
    if prod(sizes) <= MOST_COMBINATIONS:
        tuples = np.array(list(combinations(*map(range, sizes))), dtype=np.int64)
    log_q, last = np.full(len(tuples), -np.log(len(tuples))), -np.inf
    n = len(best)
    for _ in range(n_steps):
        total, mass = 0.0, np.zeros(len(tuples))
        for start in range(0, n, ROWS_PER_STEP):
            rows = slice(start, start + ROWS_PER_STEP)
            joint = log_q + sum(t[rows][:, tuples[:, c]] for c, t in enumerate(log_probs))
            log_p = logsumexp(joint, axis=1)
            usable = np.isfinite(log_p)
            total += float(log_p[usable].sum())
            mass += np.exp(joint[usable] - log_p[usable, None]).sum(axis=0)
        with np.errstate(divide="ignore"):
            log_q = np.log(mass / mass.sum())
        if total / n - last < tolerance:
            break
        last = total / n
    kept = np.exp(log_q) > 1e-6
    return tuples[kept], np.exp(log_q[kept])


def glue_combinations(fitted: FittedParts) -> tuple[CircuitBuilder, int]:
    """sum_k q(k_1..k_C) prod_S sum_{c in holders(S)} w(c | k_c, S) p_c(x_S | k_c)."""
    builder, models = CircuitBuilder(), fitted.models
    builder.register([(models[k], k.client) for k in sorted(models)])
    column = {c: int(fitted.tables[f"column {c}"][0]) for c in {k.client for k in models}}
    holders: dict[int, dict[str, dict[int, ModelKey]]] = {}  # by subspace, client and cluster
    for key in sorted(models):
        cluster, space = cell_of(key)
        holders.setdefault(space, {}).setdefault(key.client, {})[cluster] = key
    products, rows = [], []
    for combination, count in zip(fitted.tables["tuples"], fitted.tables["counts"], strict=True):
        factors = []
        for space in sorted(holders):
            wanted = ((own, int(combination[column[c]])) for c, own in holders[space].items())
            found = [own[k] for own, k in wanted if k in own]
            if not found:
                break  # nobody could fit a model of this subspace on this cluster
            parts = [builder.part(models[k]) for k in found]
            factors.append(builder.mixture(parts, [fitted.rows[k] for k in found]))
        else:
            products.append(builder.product(factors))
            rows.append(float(count))
    return builder, builder.mixture(products, rows)
