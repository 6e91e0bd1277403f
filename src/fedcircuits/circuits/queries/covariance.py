"""Covariance matrices given evidence: conditional means and cross-moments carried upwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.evaluation_plan import EvaluationPlan, Products
from fedcircuits.circuits.passes import LOWEST
from fedcircuits.circuits.queries.likelihood import node_log_probs
from fedcircuits.circuits.queries.moments import leaf_spreads, leaf_spreads_within
from fedcircuits.density import powers
from fedcircuits.schema import Table

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def covariance(circuit: Circuit, evidence: Table, columns: list[int]) -> FloatArray:
    """(d, d) Cov[x_i, x_j | evidence] of some columns, evidence being one row.

    Every node carries the conditional mean vector and the matrix of cross-moments of its scope,
    taken about the overall means so that nothing cancels. A product adds, and multiplies means of
    different children; a sum averages with its posterior weights. (Where "missing" is a state,
    its value counts as the mean.)
    """
    d = len(columns)
    place = {column: at for at, column in enumerate(columns)}
    log_prob = node_log_probs(circuit, evidence)[:, 0]
    centre = circuit.mean_table(evidence)[0, columns]  # (d,)
    mean = np.zeros((circuit.n_nodes, d))
    cross = np.zeros((circuit.n_nodes, d, d))
    there, leaf_mean, leaf_variance = leaf_spreads(circuit)
    for column in columns:
        for region, _ in evidence.regions_at(column):
            mine = circuit.leaves_over(column)
            within = leaf_spreads_within(circuit, column, region)
            there[mine], leaf_mean[mine], leaf_variance[mine] = within
    for group in circuit.groups:
        at = place.get(group.column)
        if at is None:
            continue
        variable, mid = circuit.schema.variables[group.column], centre[at]
        if evidence.observed[0, group.column]:
            own = powers(variable, evidence.values[0, group.column : group.column + 1], 1)[0]
            mean[group.nodes, at] = own - mid
            cross[group.nodes, at, at] = (own - mid) ** 2
        else:
            away, p = leaf_mean[group.nodes] - mid, there[group.nodes]
            mean[group.nodes, at] = p * away
            cross[group.nodes, at, at] = p * (leaf_variance[group.nodes] + away**2)
    return carry_up(circuit.plan, log_prob, mean, cross)


def carry_up(
    plan: EvaluationPlan, log_prob: FloatArray, mean: FloatArray, cross: FloatArray
) -> FloatArray:
    """(d, d) covariance at the root, from means and cross-moments at the leaves.

    Args:
        plan: of the circuit.
        log_prob: (n_nodes,) log-probability of the evidence below every node.
        mean: (n_nodes, d) conditional means about a centre, filled at the leaves.
        cross: (n_nodes, d, d) cross-moments about that centre, filled at the leaves.
    """
    for step in plan.steps:
        if isinstance(step, Products):
            below = mean[step.children]  # (k, r, d)
            total = below.sum(axis=1)
            mean[step.nodes] = total
            apart = total[:, :, None] * total[:, None, :]
            apart -= np.einsum("krd,kre->kde", below, below)
            cross[step.nodes] = apart + cross[step.children].sum(axis=1)
            continue
        k, r = step.log_weights.shape
        children = np.broadcast_to(step.children, (k, r))
        level = log_prob[step.nodes]
        share = np.exp(step.log_weights + log_prob[children] - np.maximum(level, LOWEST)[:, None])
        total = share.sum(axis=1, keepdims=True)  # one, but for rounding
        share = np.divide(share, total, out=np.zeros_like(share), where=total > 0)  # (k, r)
        mean[step.nodes] = np.einsum("kr,krd->kd", share, mean[children])
        cross[step.nodes] = np.einsum("kr,krde->kde", share, cross[children])
    # The centre is the mean itself, up to rounding; the correction keeps the last digits.
    return np.asarray(cross[-1] - np.outer(mean[-1], mean[-1]))
