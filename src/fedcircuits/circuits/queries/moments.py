"""Moments and variances of all variables at once, given each row: one pass up, one down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.leaf_group import LeafGroup
from fedcircuits.circuits.passes import leaves_within
from fedcircuits.circuits.queries.flows import leaf_flows
from fedcircuits.density import powers
from fedcircuits.schema import Table
from fedcircuits.schema.events import Region

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def moments(
    circuit: Circuit, table: Table, order: int, columns: Sequence[int] | None = None
) -> FloatArray:
    """(n, d) conditional raw moments of columns (all if not given); of an observed cell, its power.

    Leaves over a column that is observed throughout are not asked.
    """
    columns = range(len(circuit.schema)) if columns is None else columns
    answer = np.empty((len(table), len(columns)))
    asked = [at for at in columns if not table.observed[:, at].all()]
    place = {at: i for i, at in enumerate(columns)}
    of_leaf = {at: leaf_moments(circuit, at, order) for at in asked}
    for part, rows, flows in leaf_flows(circuit, table, asked) if asked else ():
        for at, flow in flows.items():  # (L, n)
            found = mean_over(of_leaf[at][:, None], flow)
            for region, mine in rows.regions_at(at):
                inside = leaf_moments_within(circuit, at, region, order)  # (L,)
                found[mine] = mean_over(inside[:, None], flow[:, mine])
            answer[part, place[at]] = found
    for at, i in place.items():
        seen = table.observed[:, at]
        answer[seen, i] = powers(circuit.schema.variables[at], table.values[seen, at], order)
    return answer


def variances(circuit: Circuit, table: Table) -> FloatArray:
    """(n, D) conditional variances of the value given that there is one, 0 of an observed cell.

    By the law of total variance, so that a large mean costs no digits; NaN where there cannot be
    a value.
    """
    answer = np.empty((len(table), len(circuit.schema)))
    there, mean, variance = leaf_spreads(circuit)
    for part, rows, flows in leaf_flows(circuit, table, range(len(circuit.schema))):
        for at, variable in enumerate(circuit.schema):
            mine, flow = circuit.leaves_over(at), flows[at]
            found = total_variance(there[mine, None] * flow, mean[mine, None], variance[mine, None])
            for region, within in rows.regions_at(at):
                p, m, v = leaf_spreads_within(circuit, at, region)
                inside = p[:, None] * flow[:, within]
                found[within] = total_variance(inside, m[:, None], v[:, None])
            seen = rows.observed[:, at]
            has_value = powers(variable, rows.values[seen, at], 0) > 0
            found[seen] = np.where(has_value, 0.0, np.nan)
            answer[part, at] = found
    return answer


def mean_over(values: FloatArray, weights: FloatArray) -> FloatArray:
    """(n,) mean of values (L, n) or (L, 1) with weights (L, n); 0 where no weight is positive.

    An infinite value counts only where it has weight; infinite to both sides gives NaN.
    """
    total = weights.sum(axis=0)  # one, but for rounding: far from all data log p has few digits
    finite = np.isfinite(values)
    with np.errstate(over="ignore", invalid="ignore"):
        if values.shape[1] == 1 and finite.all():
            answer = values[:, 0] @ weights
        else:
            answer = np.where(weights > 0, values * weights, 0.0).sum(axis=0)
        return np.asarray(np.divide(answer, total, out=np.zeros_like(total), where=total > 0))


def total_variance(weights: FloatArray, means: FloatArray, variances: FloatArray) -> FloatArray:
    """(n,) variance of mixtures with weights (L, n) of parts with means and variances (L, 1 or n).

    NaN where no weight is positive.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        away = means - mean_over(means, weights)  # (L, n)
        answer = mean_over(away * away + variances, weights)
    return np.where(weights.sum(axis=0) > 0, answer, np.nan)


def leaf_moments(circuit: Circuit, column: int | None, order: int) -> FloatArray:
    """(L,) moment of every leaf of one column, or of every leaf."""
    return np.concatenate(
        [
            g.family.moment(g.params, g.grid, circuit.schema.variables[g.column], order)
            for g in circuit.groups
            if column is None or g.column == column
        ]
    )


def leaf_moments_within(circuit: Circuit, column: int, region: Region, order: int) -> FloatArray:
    """(L,) moments of the leaves of one column given an event about it."""
    return np.concatenate(
        [leaves_within(circuit, g, region).moment(order) for g in _groups_at(circuit, column)]
    )


def leaf_spreads_within(
    circuit: Circuit, column: int, region: Region
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """As `leaf_spreads`, (L,) of the leaves of one column given an event about it."""
    there, first = (leaf_moments_within(circuit, column, region, order) for order in (0, 1))
    mean = np.divide(first, there, out=np.zeros_like(first), where=there > 0)
    variance = [leaves_within(circuit, g, region).variance() for g in _groups_at(circuit, column)]
    return there, mean, np.concatenate(variance)


def _groups_at(circuit: Circuit, column: int) -> list[LeafGroup]:
    """Groups of one column, in the order of `leaves_over`."""
    return [group for group in circuit.groups if group.column == column]


def leaf_spreads(circuit: Circuit) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(n_leaves,) of every leaf: the probability of a value, its mean and its variance."""
    there, first = leaf_moments(circuit, None, 0), leaf_moments(circuit, None, 1)
    mean = np.divide(first, there, out=np.zeros_like(first), where=there > 0)
    variance = [
        g.family.variance(g.params, g.grid, circuit.schema.variables[g.column])
        for g in circuit.groups
    ]
    return there, mean, np.concatenate(variance)
