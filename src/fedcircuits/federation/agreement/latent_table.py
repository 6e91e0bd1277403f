"""`latent` with `table=True`: latent classes from a table of counts alone.

The table N(k_1..k_C) is an inner product across parties: a secure sum cannot make it where columns
are split. Two mechanisms are here, by name:

- "trusted" (the default): a trusted aggregator, which is the server of this run, sees the cluster
  indices of aligned rows and passes on the table only. With `epsilon` the table gets Laplace noise
  of scale 2 / epsilon (one replaced row changes two cells) before anything is fitted to it.
- "randomised-response": clients randomise the index of every row themselves, and the server
  estimates the table. The epsilon is that of one index.

In both the epsilon covers indices or table, not the client circuits and not rows per cluster.

No row's class is sent back. A client's rows belong to class l with weight r(l | k_c), so
p_c(x_S | l) is the mixture of its own cluster models with weights r_c(k | l):

    p(x) = sum_l q(l) prod_S sum_{c in holders(S)} w(c | S) sum_k r_c(k | l) p_c(x_S | k)
"""

from __future__ import annotations

from itertools import product as combinations
from math import prod

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement._shared.aligned import (
    aligned_indices,
    cluster_everywhere,
    common_rows,
)
from fedcircuits.federation.agreement._shared.class_models import cell_of, fit_clusters
from fedcircuits.federation.agreement._shared.latent_classes import fit_within_strata
from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import FittedParts, TakeModels
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire.noise import laplace
from fedcircuits.federation.wire.randomised_response import estimated_table
from fedcircuits.federation.wire.seeds import named_rng

MOST_CELLS = 200_000
TRUSTED, RANDOMISED = "trusted", "randomised-response"
MECHANISMS = (TRUSTED, RANDOMISED)
N_CLASSES, N_CLUSTERS = 24, 32


def check_mechanism(mechanism: str, epsilon: float | None) -> None:
    """Raises an error for a mechanism that does not exist or an epsilon that it cannot use."""
    if mechanism not in MECHANISMS:
        raise FederationError(f"the mechanism is {' or '.join(MECHANISMS)}, found {mechanism!r}")
    if mechanism == RANDOMISED if epsilon is None else epsilon <= 0:
        raise FederationError(
            f"epsilon must be positive, found {epsilon} (mechanism {mechanism!r})"
        )


def train_on_table(
    server: Server,
    take: TakeModels,
    *,
    n_classes: int,
    n_clusters: int,
    epsilon: float | None,
    mechanism: str,
    label_private: bool,
) -> FittedParts:
    """Clusters rows, counts index combinations, fits latent classes to the table.

    Args:
        server: the run.
        take: as for `Rule.train`.
        n_classes: R.
        n_clusters: K at each client.
        epsilon: of the noise, None for none.
        mechanism: one of MECHANISMS.
        label_private: whether the label's owner clusters without its label.
    """
    check_mechanism(mechanism, epsilon)
    randomised = mechanism == RANDOMISED
    of_index = float(epsilon or 0.0) if randomised else 0.0
    clustered = cluster_everywhere(server, n_clusters, not label_private, epsilon=of_index)
    sizes = [clustered[c].rows.size for c in server.clients]
    rng = named_rng(server.seed, "latent-table")
    indices = aligned_indices(server, clustered, common_rows(server))
    if randomised:
        _check_cells(sizes)
        shares = [clustered[c].rows / clustered[c].rows.sum() for c in server.clients]
        cells = estimated_table(indices, sizes, shares, of_index)
        tuples, counts = np.argwhere(cells > 0), cells[cells > 0]
    else:
        tuples, counts = _counted(indices, sizes, epsilon)
    strata = np.zeros(len(tuples), dtype=np.int64)
    if server.label_holders and not label_private:
        owner = server.label_holders[0]
        strata = clustered[owner].strata[tuples[:, server.clients.index(owner)]]
    model = fit_within_strata(tuples, counts, sizes, strata, n_classes, rng)
    tables = {"q": np.exp(model.log_q)}
    tables |= {f"r {c}": np.exp(model.log_r[at]) for at, c in enumerate(server.clients)}
    by_client = dict(zip(server.clients, sizes, strict=True))
    return fit_clusters(server, take, by_client, tables, label_private=label_private)


def _counted(
    indices: IntArray, sizes: list[int], epsilon: float | None
) -> tuple[IntArray, FloatArray]:
    """Combinations (t, C) and their counts (t,), with noise where there is an epsilon."""
    tuples, found = np.unique(indices, axis=0, return_counts=True)
    counts = found.astype(float)
    if epsilon is None:
        return tuples, counts
    _check_cells(sizes)
    # Noise on every cell, those without a row too: an absent cell would give its zero away.
    every = np.array(list(combinations(*map(range, sizes))), dtype=np.int64)
    cells = np.zeros(tuple(sizes))
    cells[tuple(tuples.T)] = counts
    noisy = cells.ravel() + laplace(2.0 / epsilon, cells.size)
    kept = noisy > 0
    return every[kept], noisy[kept]


def _check_cells(sizes: list[int]) -> None:
    if prod(sizes) > MOST_CELLS:
        raise FederationError(
            f"a table of {prod(sizes)} cells cannot be given noise: use fewer clusters"
        )


def glue_table(fitted: FittedParts) -> tuple[CircuitBuilder, int]:
    """One product for every latent class, of mixtures of all clusters of all holders."""
    builder, models = CircuitBuilder(), fitted.models
    builder.register([(models[k], k.client) for k in sorted(models)])
    held: dict[int, list[tuple[str, int, int, float]]] = {}  # client, cluster, part, rows
    for key in sorted(models):
        k, space = cell_of(key)
        part = (key.client, k, builder.part(models[key]), fitted.rows[key])
        held.setdefault(space, []).append(part)
    products, weights = [], []
    for cls, q in enumerate(fitted.tables["q"]):
        factors = []
        for space in sorted(held):
            by_client: dict[str, float] = {}
            for client, _, _, rows in held[space]:
                by_client[client] = by_client.get(client, 0.0) + rows
            share = [
                by_client[client] * fitted.tables[f"r {client}"][cls, k]
                for client, k, _, _ in held[space]
            ]
            factors.append(builder.mixture([part for _, _, part, _ in held[space]], share))
        products.append(builder.product(factors))
        weights.append(float(q))
    return builder, builder.mixture(products, weights)
