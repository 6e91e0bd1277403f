"""The part of a tilt that all classes share, chosen so that p(x) stays near the density m(x).

Adding h_j(x_j) to the tables of every class leaves p(y | x) as it is and changes
p(x) = (1/Z) m(x) exp(u(x) + h(x)), u = log sum_y exp(c_y + g_y(x)). The h under which p(x) is
nearest to m(x) in relative entropy gives every column the marginal distribution that it has under
m: the gradient of log Z(h) - E_m[h] is the difference of the two. Both follow from one pass through
the tilted parts, so that the problem, which is convex, is solved without a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.evaluation_plan import EvaluationPlan
from fedcircuits.circuits.passes import down, sum_product, up
from fedcircuits.circuits.structure import Structure
from fedcircuits.density import Density
from fedcircuits.density.tilt import Tilt, by_column
from fedcircuits.federation.client.label.tilting import masses_by_class
from fedcircuits.federation.server.remote import RemoteDensity, masses_remotely
from fedcircuits.federation.wire.transport import RefusedError

# Half the sum over states of |p - m| of a column that is close enough, for a model and for a
# trial of rules; most passes.
CLOSE, CLOSE_FOR_A_TRIAL, MOST_PASSES = 3e-4, 1e-2, 50
_LEAST_MASS = 1e-12


def gauged(
    tilt: Tilt, structure: Structure, parts: Sequence[Density], close: float = CLOSE
) -> Tilt:
    """Return a tilt with the same p(y | x) whose p(x) has the marginals of m(x).

    Args:
        tilt: c and g.
        structure: sums and products of m over its parts.
        parts: models, here or at clients.
        close: half the sum over states of |p - m| of a column that is enough.
    """
    columns = [name for name in tilt.columns if any(name in part.schema for part in parts)]
    known = np.flatnonzero(np.isfinite(tilt.c))
    mine = tilt.select(columns)
    tables = tuple(table[known] for table in mine.tables)
    asked = Tilt(mine.columns, mine.c[known], tables, mine.counts[known])
    zeros = tuple(np.zeros((1, table.shape[1])) for table in mine.tables)
    nothing = Tilt(mine.columns, np.zeros(1), zeros, mine.counts.sum(keepdims=True))
    try:
        _, wanted = _masses(nothing, structure, parts)
        h = _nearest(asked, wanted, structure, parts, close)
    except RefusedError:  # a client refuses: what classes share stays as fitted
        return tilt
    shared = dict(zip(columns, h, strict=True))
    named = zip(tilt.columns, tilt.tables, strict=True)
    return replace(tilt, tables=tuple(t + shared[n] if n in shared else t for n, t in named))


def _nearest(
    tilt: Tilt, wanted: FloatArray, structure: Structure, parts: Sequence[Density], close: float
) -> list[FloatArray]:
    """(S,) h of each column of a tilt, `wanted` (W,) being the marginals of m."""
    from scipy import optimize  # takes longer to import than the rest of the package

    # The curvature of log Z in h is about a state's mass: in these units it is about one, and the
    # first step, which has length one, is as long as the gradient.
    unit = 1.0 / np.sqrt(np.maximum(wanted, _LEAST_MASS))
    off = np.inf

    def loss(theta: FloatArray) -> tuple[float, FloatArray]:
        nonlocal off
        h = np.where(wanted > _LEAST_MASS, theta * unit, 0.0)
        lifted = [t + part for t, part in zip(tilt.tables, by_column(h, tilt.widths), strict=True)]
        log_z, found = _masses(replace(tilt, tables=tuple(lifted)), structure, parts)
        apart = np.where(wanted > _LEAST_MASS, found - wanted, 0.0)
        by_name = by_column(apart, tilt.widths)
        off = max((0.5 * float(np.abs(part).sum()) for part in by_name), default=0.0)
        return log_z - float(wanted @ h), apart * unit

    def stop(_: FloatArray) -> None:
        if off < close:
            raise StopIteration

    start = np.zeros(wanted.size)
    length = float(np.linalg.norm(loss(start)[1]))
    if off < close:
        return by_column(start, tilt.widths)
    unit *= length
    limits = {"maxcor": 20, "maxfun": MOST_PASSES, "ftol": 0.0, "gtol": 1e-9}
    found = optimize.minimize(  # type: ignore[call-overload]
        loss, start, jac=True, method="L-BFGS-B", callback=stop, options=limits
    )
    h = np.where(wanted > _LEAST_MASS, found.x * unit, 0.0)
    return by_column(np.asarray(h), tilt.widths)


def _masses(tilt: Tilt, structure: Structure, parts: Sequence[Density]) -> tuple[float, FloatArray]:
    """log Z of m under a tilt, and (W,) the masses of its columns' states, one after another."""
    away = [part for part in parts if isinstance(part, RemoteDensity)]
    found = masses_remotely(away, tilt) if away else [masses_by_class(part, tilt) for part in parts]
    values = np.zeros((structure.n_nodes, tilt.n_classes))
    for at, (log_of_part, _) in enumerate(found):
        values[at] = log_of_part
    plan = EvaluationPlan.of(structure)
    up(plan, values, sum_product)
    log_class = tilt.c + values[-1]  # (Y,)
    log_z = float(np.logaddexp.reduce(log_class))
    flows = np.zeros_like(values)
    flows[-1] = np.exp(log_class - log_z)
    down(plan, values, flows)
    total = {name: np.zeros(t.shape[1]) for name, t in zip(tilt.columns, tilt.tables, strict=True)}
    for flow, (_, cells) in zip(flows, found, strict=False):
        for name, masses in cells.items():
            total[name] += flow @ masses
    return log_z, np.concatenate([np.zeros(0), *total.values()])
