"""The upward and downward pass of which queries are made: values to the root, flows to leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.evaluation_plan import (
    DenseSums,
    EvaluationPlan,
    Index,
    Products,
    Step,
    Sums,
)
from fedcircuits.circuits.leaf_group import LeafGroup
from fedcircuits.circuits.leaves.within import Within
from fedcircuits.schema import Table
from fedcircuits.schema.events import Region

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit

# Only the subtraction of a row maximum is guarded: -inf minus this stays -inf, and no value is
# ever floored.
LOWEST = float(np.finfo(np.float64).min)
CHUNK_BYTES = 4 * 2**20
# Below this a dense sum has lost digits to underflow and is worked out again in log-space.
TINY = 1e-280
MOST_EVENTS = 4096  # kept for one circuit

Combine = Callable[[FloatArray, Step], None]


def chunk_rows(n_nodes: int) -> int:
    """Return how many rows to evaluate at once so that the values of all nodes fit the caches."""
    return int(np.clip(CHUNK_BYTES // (8 * max(n_nodes, 1)), 16, 4096))


def chunked(circuit: Circuit, table: Table) -> Iterator[tuple[slice, Table]]:
    """Chunks of rows of a size that suits the circuit."""
    return table.chunks(chunk_rows(circuit.n_nodes))


def leaf_log_prob(circuit: Circuit, table: Table, values: FloatArray) -> None:
    """Fill the leaves' rows of values (n_nodes, n): log-density, log-probability of an event, or 0.

    0 is the logarithm of the whole mass: nothing is known of the cell.
    """
    for group in circuit.groups:
        column, seen = table.values[:, group.column], table.observed[:, group.column]
        if not seen.any():
            values[group.nodes] = 0.0
        else:
            values[group.nodes] = group.family.log_prob(group.params, group.grid, column)
            if not seen.all():
                values[group.nodes, ~seen] = 0.0
        for region, rows in table.regions_at(group.column):
            values[group.nodes, rows] = leaves_within(circuit, group, region).log_mass[:, None]


def leaves_within(circuit: Circuit, group: LeafGroup, region: Region) -> Within:
    """The leaves of a group given an event; equal events are worked out once for a circuit."""
    key = (group.first, region)
    kept = circuit.within_cache
    if key not in kept:
        if len(kept) >= MOST_EVENTS:
            kept.clear()
        variable = circuit.schema.variables[group.column]
        kept[key] = group.family.within(group.params, group.grid, variable, region)
    return kept[key]


def up(plan: EvaluationPlan, values: FloatArray, combine: Combine) -> None:
    """Fill values (n_nodes, n) from the leaves to the root."""
    with np.errstate(divide="ignore"):  # log 0 = -inf is a legitimate value
        for step in plan.steps:
            combine(values, step)


def sum_product(values: FloatArray, step: Step) -> None:
    """Log-space sums and products: the ordinary meaning of a circuit."""
    if isinstance(step, Products):
        _add_children(values, step)
    elif isinstance(step, DenseSums):
        _dense_sums(values, step)
    else:
        _sums(values, step)


def max_product(values: FloatArray, step: Step) -> None:
    """Log-space maxima and products: the value of the best induced tree."""
    if isinstance(step, Products):
        _add_children(values, step)
        return
    best = np.full((step.nodes.size, values.shape[1]), -np.inf)
    for i in range(step.log_weights.shape[1]):
        child: Index = step.slots[i] if isinstance(step, Sums) else step.children[i : i + 1]
        np.maximum(best, values[child] + step.log_weights[:, i, None], out=best)
    values[step.out] = best


def _add_children(values: FloatArray, step: Products) -> None:
    """Products: sums of logs. Loops over the shorter of nodes and slots."""
    k, r = step.children.shape
    if k < r:
        for node, children in zip(step.nodes, step.children, strict=True):
            values[node] = values[children].sum(axis=0)
        return
    total = _rows(values, step.slots[0])
    if isinstance(step.slots[0], slice):
        total = total.copy()
    for slot in step.slots[1:]:
        total += _rows(values, slot)
    values[step.out] = total


def _rows(values: FloatArray, slot: Index) -> FloatArray:
    """Rows of the values: a view of a slice, else a gather (`take` is a third faster there)."""
    return values[slot] if isinstance(slot, slice) else values.take(slot, axis=0, mode="clip")


def _sums(values: FloatArray, step: Sums) -> None:
    k, r = step.children.shape
    if k < r:
        for node, children, log_weight in zip(
            step.nodes, step.children, step.log_weights, strict=True
        ):
            terms = values[children] + log_weight[:, None]  # (r, n)
            values[node] = log_sum_exp(terms)
        return
    terms = [
        _rows(values, slot) + step.log_weights[:, i, None] for i, slot in enumerate(step.slots)
    ]
    top = np.maximum(terms[0], terms[1]) if r > 1 else terms[0].copy()  # (k, n)
    for term in terms[2:]:
        np.maximum(top, term, out=top)
    if top.min() == -np.inf:
        np.maximum(top, LOWEST, out=top)
    terms[0] -= top
    total = np.exp(terms[0], out=terms[0])
    for term in terms[1:]:
        term -= top
        total += np.exp(term, out=term)
    np.log(total, out=total)
    values[step.out] = np.add(total, top, out=total)


def log_sum_exp(terms: FloatArray) -> FloatArray:
    """(n,) log of the sum of exponentials over the first axis of (r, n); all -inf gives -inf."""
    top = np.maximum(terms.max(axis=0), LOWEST)
    answer: FloatArray = np.log(np.exp(terms - top).sum(axis=0)) + top
    return answer


def _dense_sums(values: FloatArray, step: DenseSums) -> None:
    inside = values[step.source]  # (r, n)
    top = np.maximum(inside.max(axis=0), LOWEST)  # (n,)
    total = step.weights @ np.exp(inside - top)  # (k, n)
    values[step.out] = np.log(total) + top
    if total.min(initial=1.0) >= TINY:
        return
    # The shared maximum may belong to a child with weight zero: then all that counts has
    # underflowed although its logarithm is an ordinary number.
    for row in np.flatnonzero((total < TINY).any(axis=0)):
        terms = step.log_weights + inside[:, row]  # (k, r)
        values[step.nodes, row] = log_sum_exp(terms.T)


def down(
    plan: EvaluationPlan,
    values: FloatArray,
    flows: FloatArray,
    wanted: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None,
) -> None:
    """Spread flows (n_nodes, n), 1 at the root and 0 elsewhere, down to the leaves.

    The flow of a node is the probability, given the evidence of a row, that the node is part of
    the tree the row came from. `values` are those of a sum-product pass, finite at the root.

    Args:
        plan: of the circuit.
        values: (n_nodes, n).
        flows: (n_nodes, n), filled in place.
        wanted: (n_nodes,) nodes whose flow matters; steps that lead to none are left out.
    """
    for step in reversed(plan.steps):
        if wanted is not None and not wanted[step.nodes].any():
            continue
        flow = flows[step.out]  # (k, n)
        if isinstance(step, DenseSums):
            inside = values[step.source]  # (r, n)
            top = np.maximum(inside.max(axis=0), LOWEST)
            level = np.maximum(values[step.out], LOWEST)  # (k, n)
            with np.errstate(over="ignore"):
                ratio = np.where(flow > 0, flow * np.exp(np.minimum(top - level, 700.0)), 0.0)
            share = np.exp(inside - top) * (step.weights.T @ ratio)
            lost = (ratio > 1e250).any(axis=0)
            for row in np.flatnonzero(lost):
                share[:, row] = _dense_share(step, inside[:, row], level[:, row], flow[:, row])
            flows[step.source] += share
            continue
        for i, slot in enumerate(step.slots):
            if isinstance(step, Products):
                moved = flow
            else:
                level = np.maximum(values[step.out], LOWEST)
                moved = flow * np.exp(values[slot] + step.log_weights[:, i, None] - level)
            if isinstance(slot, slice):
                flows[slot] += moved
            else:
                np.add.at(flows, slot, moved)  # a child may serve several parents


def _dense_share(
    step: DenseSums, inside: FloatArray, level: FloatArray, flow: FloatArray
) -> FloatArray:
    """(r,) flow into the children of one row, in log-space: exact where the fast form overflows."""
    with np.errstate(divide="ignore", over="ignore"):
        terms = step.log_weights + inside[None, :] - level[:, None]
        answer: FloatArray = (flow[:, None] * np.exp(np.minimum(terms, 0.0))).sum(axis=0)
    return answer
