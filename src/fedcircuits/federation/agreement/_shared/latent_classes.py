"""The latent class model of cluster indices, fitted by the server (the L of Assumption 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.federation.client.clustering import clusters_per_stratum

# Of a client's overall cluster shares, in every class: a few aligned rows must not decide alone.
PSEUDO_ROWS = 1.0


@dataclass(frozen=True)
class LatentClasses:
    """P(k_1..k_C) = sum_l q(l) prod_c r_c(k_c | l).

    Attributes:
        log_q: (R,) log q(l).
        log_r: one (R, K_c) log r_c(k | l) for each client.
    """

    log_q: FloatArray
    log_r: list[FloatArray]

    def log_joint(self, indices: IntArray) -> FloatArray:
        """(n, R) log q(l) prod_c r_c(k_c | l) of index tuples (n, C); -1 is a gap, summed out."""
        total = np.tile(self.log_q, (len(indices), 1))
        for c, table in enumerate(self.log_r):
            here = indices[:, c] >= 0
            total[here] += table[:, indices[here, c]].T
        return total

    def given_cluster(self, client: int) -> FloatArray:
        """(K_c, R) r(l | k_c), for rows that only one client holds."""
        joint = np.exp(self.log_q[:, None] + self.log_r[client]).T
        return np.asarray(joint / np.maximum(joint.sum(axis=1, keepdims=True), 1e-300))


def fit_latent_classes(
    tuples: IntArray,
    counts: FloatArray,
    sizes: list[int],
    n_classes: int,
    rng: np.random.Generator,
    n_starts: int = 4,
    n_steps: int = 100,
) -> LatentClasses:
    """EM on distinct index tuples, the best of several starts.

    Args:
        tuples: (t, C) distinct index tuples, -1 where a client does not hold the row.
        counts: (t,) how often each occurs.
        sizes: K_c of each client.
        n_classes: R.
        rng: source of the starts.
        n_starts: number of starts.
        n_steps: most EM steps.
    """
    weights = counts / counts.sum()
    here = tuples >= 0
    marginals = []
    for c, size in enumerate(sizes):
        mine = np.bincount(tuples[here[:, c], c], weights[here[:, c]], size)
        marginals.append(mine / max(mine.sum(), 1e-300))
    pseudo = PSEUDO_ROWS / counts.sum()
    best: tuple[float, LatentClasses] | None = None
    for _ in range(n_starts):
        share = rng.dirichlet(np.full(n_classes, 0.5), size=len(tuples))  # (t, R)
        score = -np.inf
        for _step in range(n_steps):
            mass = share * weights[:, None]
            q = mass.sum(axis=0) + 1e-9
            tables = []
            for c, size in enumerate(sizes):
                table = np.tile(pseudo * marginals[c] + 1e-6 / size, (n_classes, 1))
                np.add.at(table.T, tuples[here[:, c], c], mass[here[:, c]])
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


def fit_within_strata(
    tuples: IntArray,
    counts: FloatArray,
    sizes: list[int],
    strata: IntArray,
    n_classes: int,
    rng: np.random.Generator,
) -> LatentClasses:
    """Latent classes of each stratum side by side, so that none mixes strata.

    Args:
        tuples: (t, C) distinct index tuples.
        counts: (t,) how often each occurs.
        sizes: K_c of each client.
        strata: (t,) stratum of each tuple.
        n_classes: R in all, shared out by the square root of the strata's rows.
        rng: source of the starts.
    """
    rows = np.bincount(strata, counts).astype(float)
    log_q: list[FloatArray] = []
    log_r: list[list[FloatArray]] = [[] for _ in sizes]
    for stratum, wanted in enumerate(clusters_per_stratum(rows, n_classes)):
        mine = strata == stratum
        if rows[stratum] <= 0:
            continue
        k = int(min(wanted, mine.sum()))
        part = fit_latent_classes(tuples[mine], counts[mine], sizes, k, rng)
        log_q.append(part.log_q + np.log(rows[stratum] / rows.sum()))
        for c, table in enumerate(part.log_r):
            log_r[c].append(table)
    return LatentClasses(np.concatenate(log_q), [np.concatenate(t) for t in log_r])


def fit_tuples(
    indices: IntArray,
    strata: IntArray,
    sizes: list[int],
    n_classes: int,
    rng: np.random.Generator,
) -> LatentClasses:
    """Latent classes of the index tuples of rows.

    Args:
        indices: (n, C) cluster of each row at each client, -1 where it does not hold the row.
        strata: (n,) stratum of each row, which its tuple decides; -1 where it is not known: such
            rows are left out, unless no row has a stratum.
        sizes: K_c of each client.
        n_classes: R in all.
        rng: source of the starts.
    """
    known = strata >= 0
    if known.any():
        indices, strata = indices[known], strata[known]
    else:
        strata = np.zeros_like(strata)
    tuples, first, counts = np.unique(indices, axis=0, return_index=True, return_counts=True)
    return fit_within_strata(tuples, counts.astype(float), sizes, strata[first], n_classes, rng)
