"""The part of a tilt that all classes share, chosen so that p(x) stays the density m(x).

Adding h_j(x_j) to the tables of every class leaves p(y | x) as it is and changes
p(x) = (1/Z) m(x) exp(u(x) + h(x)), u = log sum_y exp(c_y + g_y(x)). Of all sums of multiples of
the tables, h = sum_jk kappa_jk g_kj, the one is taken under which p(x) is nearest to m(x) in
relative entropy: a convex problem over rows drawn from m, which needs no row of a client.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.evaluation_plan import EvaluationPlan
from fedcircuits.circuits.queries.walk import at_random, choice_slots, walk
from fedcircuits.circuits.structure import Structure
from fedcircuits.density import Density
from fedcircuits.density.tilt import Tilt
from fedcircuits.federation.client.tilting import drawn
from fedcircuits.federation.server.remote import RemoteDensity, drawn_remotely
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.federation.wire.transport import RefusedError
from fedcircuits.schema import Schema, Table

N_DRAWN = 4096
# Draws' worth of pull towards kappa = 0.
_RIDGE = 4.0


def gauged(tilt: Tilt, schema: Schema, structure: Structure, parts: Sequence[Density]) -> Tilt:
    """Return a tilt with the same p(y | x) whose p(x) is as near to m(x) as may be.

    Args:
        tilt: c and g.
        schema: of the columns.
        structure: sums and products of m over its parts.
        parts: models, here or at clients.
    """
    columns = [at for at, name in enumerate(schema.names) if name in tilt.columns]
    known = [int(y) for y in np.flatnonzero(np.isfinite(tilt.c))]
    try:
        rows = _drawn(schema.select([schema.names[at] for at in columns]), structure, parts)
    except RefusedError:  # a client lets nobody sample: what classes share stays as fitted
        return tilt
    each = [tilt.select([name]).scores(rows)[:, known] for name in rows.schema.names]
    features = np.concatenate(each, axis=1)  # (N, D Y): what column j says of class k
    logits = tilt.c[known] + np.sum(each, axis=0)
    u = np.logaddexp.reduce(logits, axis=1)
    kappa = _nearest(u, features).reshape(len(each), len(known))
    tables = []
    for name, table in zip(tilt.columns, tilt.tables, strict=True):
        j = rows.schema.position(name)
        tables.append(np.asarray(table + kappa[j] @ table[known]))
    return Tilt(tilt.columns, tilt.c, tuple(tables), tilt.counts)


def _nearest(u: FloatArray, features: FloatArray) -> FloatArray:
    """The kappa that minimises log mean exp(u + F kappa) - mean(u + F kappa) + ridge."""
    from scipy import optimize  # takes longer to import than the rest of the package

    scale = np.maximum(features.std(axis=0), 1e-9)
    f = (features - features.mean(axis=0)) / scale  # (N, K)

    def loss(theta: FloatArray) -> tuple[float, FloatArray]:
        v = u + f @ theta
        top = v.max()
        weight = np.exp(v - top)
        value = np.log(weight.mean()) + top - v.mean()
        slope = f.T @ (weight / weight.sum()) - f.mean(axis=0)
        pull = _RIDGE / len(u) * theta
        return float(value + 0.5 * theta @ pull), slope + pull

    found = optimize.minimize(loss, np.zeros(f.shape[1]), jac=True, method="L-BFGS-B")
    return np.asarray(found.x / scale)


def _drawn(schema: Schema, structure: Structure, parts: Sequence[Density]) -> Table:
    """Rows drawn from m; the same wherever its parts are."""
    rng = named_rng(0, "gauge")
    column_of = [
        np.array([schema.position(name) for name in part.schema.names], dtype=np.int64)
        for part in parts
    ]
    table = Table.empty(schema, N_DRAWN)
    visits = _visits(structure, column_of, rng)
    seeds = [int(rng.integers(2**62)) for _ in visits]
    asked = [
        (parts[at], mine.size, seed) for (at, mine), seed in zip(visits.items(), seeds, strict=True)
    ]
    away = [each for each in asked if isinstance(each[0], RemoteDensity)]
    found = drawn_remotely(away) if away else [drawn(*each) for each in asked]
    for (at, mine), values in zip(visits.items(), found, strict=True):
        table.values[np.ix_(mine, column_of[at])] = values
    observed = np.ones(table.values.shape, dtype=bool)
    return Table(schema, table.values, observed, pd.RangeIndex(N_DRAWN))


def _visits(
    structure: Structure, column_of: Sequence[IntArray], rng: np.random.Generator
) -> dict[int, IntArray]:
    """By part the rows that it draws the cells of."""
    if structure.n_inner == 0:
        return {0: np.arange(N_DRAWN)}
    slots = choice_slots(structure, np.array([columns.min() for columns in column_of]))
    nothing = np.zeros((structure.n_nodes, N_DRAWN))  # without evidence every node has mass one
    plan = EvaluationPlan.of(structure)
    uniform = rng.random((N_DRAWN, int(slots.max()) + 1))
    leaves, rows = walk(plan, nothing, at_random(slots, uniform))
    return {int(at): np.sort(rows[leaves == at]) for at in np.unique(leaves)}
