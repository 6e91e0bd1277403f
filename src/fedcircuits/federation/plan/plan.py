"""Algorithm 1 as a pure function: what will be fitted, and how it will be glued.

This is the plan of the paper. The list of messages that clients consent to before a run, also
called a plan, is made in `agreement/planning.py`.

Planning touches neither data nor network. `Plan.products` says, for each product node, which
cluster of every private subspace is its child; the sums over shared subspaces are children of
every product.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as combinations
from math import prod
from typing import Literal

import numpy as np

from fedcircuits.federation.plan.indicator import BoolMatrix
from fedcircuits.federation.plan.subspaces import Subspace, subspaces

Glueing = Literal["naive", "random", "combinatorial"]
# Beyond this many products a combinatorial plan is not a plan.
MOST_PRODUCTS = 4096


class PlanError(ValueError):
    """A plan that cannot be made."""


@dataclass(frozen=True)
class Plan:
    """The server side of a federated circuit.

    Attributes:
        shared: subspaces held by several clients; a sum over the holders for each (line 9-12).
        private: subspaces held by one client, clustered there into K parts (line 14).
        n_clusters: K.
        products: for each product node (line 15-19), the cluster of each private subspace; with
            naive glueing one product over the clients' mixtures, written as a single empty tuple.
        unheld: features that no client holds; they are not part of the model.
    """

    shared: tuple[Subspace, ...]
    private: tuple[Subspace, ...]
    n_clusters: int
    products: tuple[tuple[int, ...], ...]
    unheld: tuple[int, ...]


def plan(
    M: BoolMatrix,
    n_clusters: int,
    n_products: int | None = None,
    seed: int = 0,
    glueing: Glueing = "combinatorial",
) -> Plan:
    """Algorithm 1 without the training.

    Args:
        M: (C, F) feature indicator.
        n_clusters: K, clusters of every private subspace.
        n_products: P, for random glueing; at least K, so that each cluster is the child of at
            least one product. Where P reaches the number of combinations, all of them are used.
        seed: of the random choice of children.
        glueing: "naive" (one product of client mixtures), "random" or "combinatorial".
    """
    if n_clusters < 1:
        raise PlanError(f"the number of clusters must be at least 1, found {n_clusters}")
    spaces = subspaces(M)
    if not spaces:
        raise PlanError("no client holds any feature")
    shared = tuple(s for s in spaces if s.is_shared)
    private = tuple(s for s in spaces if not s.is_shared)
    unheld = tuple(int(j) for j in np.flatnonzero(~M.any(axis=0)))
    if glueing == "naive" or not private:
        return Plan(shared, private, n_clusters, ((),), unheld)
    n_combinations = prod([n_clusters] * len(private))
    wanted = n_products if glueing == "random" and n_products is not None else n_combinations
    if wanted < n_clusters:
        raise PlanError(
            f"{wanted} products cannot cover {n_clusters} clusters: each cluster must be the child "
            "of at least one product, so P >= K"
        )
    if wanted >= n_combinations:
        if n_combinations > MOST_PRODUCTS:
            raise PlanError(
                f"{n_clusters} clusters of {len(private)} private subspaces give {n_combinations} "
                "combinations; use random glueing with fewer products, or the latent rule"
            )
        every = combinations(range(n_clusters), repeat=len(private))
        return Plan(shared, private, n_clusters, tuple(every), unheld)
    return Plan(
        shared, private, n_clusters, _random(n_clusters, len(private), wanted, seed), unheld
    )


def _random(K: int, n_private: int, P: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """P different combinations; the first K use every cluster of every subspace once."""
    rng = np.random.default_rng(seed)
    chosen = list(zip(*(rng.permutation(K).tolist() for _ in range(n_private)), strict=True))
    taken = set(chosen)
    while len(chosen) < P:
        candidate = tuple(int(k) for k in rng.integers(K, size=n_private))
        if candidate not in taken:
            taken.add(candidate)
            chosen.append(candidate)
    return tuple(chosen)
