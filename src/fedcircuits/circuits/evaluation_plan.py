"""The order in which a circuit is evaluated: steps of many nodes at once.

Nodes of one level are grouped so that each group is a few whole-array operations over
(nodes, rows): products of one arity, sums of one arity, and *dense* sums, several sums over the
same children, which become a matrix product. That last form makes a learned latent tree as fast
as hand-written tensor code while it stays an ordinary circuit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.structure import Structure

Index = slice | IntArray


def as_index(nodes: IntArray) -> Index:
    """A slice if the nodes are evenly spaced upwards, which saves the copy of a gather."""
    if nodes.size == 1:
        return slice(int(nodes[0]), int(nodes[0]) + 1)
    step = int(nodes[1] - nodes[0])
    if step > 0 and (np.diff(nodes) == step).all():
        return slice(int(nodes[0]), int(nodes[-1]) + 1, step)
    return nodes


@dataclass(frozen=True, eq=False)
class _Together:
    """k nodes worked out together.

    Attributes:
        nodes: (k,) the nodes.
    """

    nodes: IntArray

    @cached_property
    def out(self) -> Index:
        """Rows of the value array that the nodes fill."""
        return as_index(self.nodes)


@dataclass(frozen=True, eq=False)
class _OneArity(_Together):
    """k nodes of r children each.

    Attributes:
        children: (k, r).
    """

    children: IntArray

    @cached_property
    def slots(self) -> list[Index]:
        """The i-th children of all k nodes, for each i."""
        return [as_index(column) for column in self.children.T]


@dataclass(frozen=True, eq=False)
class Products(_OneArity):
    """k products of r children each."""


@dataclass(frozen=True, eq=False)
class Sums(_OneArity):
    """k sums of r children each.

    Attributes:
        log_weights: (k, r).
    """

    log_weights: FloatArray


@dataclass(frozen=True, eq=False)
class DenseSums(_Together):
    """k sums over the same r children.

    Attributes:
        children: (r,).
        log_weights: (k, r).
        weights: (k, r).
    """

    children: IntArray
    log_weights: FloatArray
    weights: FloatArray

    @cached_property
    def source(self) -> Index:
        """Rows of the value array that hold the children."""
        return as_index(self.children)


Step = Products | Sums | DenseSums


@dataclass(frozen=True, eq=False)
class EvaluationPlan:
    """Steps that evaluate a circuit from the leaves to the root."""

    steps: tuple[Step, ...]

    @staticmethod
    def of(structure: Structure) -> EvaluationPlan:
        """Group the inner nodes of every level."""
        steps: list[Step] = []
        for inner in structure.inner_by_level():
            arity = structure.arity[inner]
            kind = structure.is_sum[inner]
            for r in np.unique(arity):
                products = inner[~kind & (arity == r)]
                if products.size:
                    children = _children(structure, products, int(r))[0]
                    steps.append(Products(structure.n_leaves + products, children))
                sums = inner[kind & (arity == r)]
                if sums.size:
                    steps += _sum_steps(structure, sums, int(r))
        return EvaluationPlan(tuple(steps))


def _children(structure: Structure, inner: IntArray, r: int) -> tuple[IntArray, FloatArray]:
    """(k, r) children and log-weights of nodes of arity r."""
    edges = structure.first_edge[inner][:, None] + np.arange(r)[None, :]
    return structure.child[edges], structure.log_weight[edges]


def _sum_steps(structure: Structure, sums: IntArray, r: int) -> list[Step]:
    """Dense blocks where two or more sums share all their children, plain sums for the rest."""
    children, log_weights = _children(structure, sums, r)
    order = np.argsort(children, axis=1, kind="stable")
    children = np.take_along_axis(children, order, axis=1)
    log_weights = np.take_along_axis(log_weights, order, axis=1)
    nodes = structure.n_leaves + sums
    _, block, size = np.unique(children, axis=0, return_inverse=True, return_counts=True)
    block = block.reshape(-1)
    steps: list[Step] = []
    # A block pays when it replaces several gathers of the same children. One that names a child
    # twice (products that became the same node in a marginal) is not dense: flows down would be
    # written, not added, to the repeated child.
    repeats = (np.diff(children, axis=1) == 0).any(axis=1)  # (k,)
    dense = (size[block] >= 2) & ~repeats
    for b in np.unique(block[dense]):
        mine = np.flatnonzero(block == b)
        weights = np.exp(log_weights[mine])
        steps.append(DenseSums(nodes[mine], children[mine[0]], log_weights[mine], weights))
    alone = ~dense
    if alone.any():
        steps.append(Sums(nodes[alone], children[alone], log_weights[alone]))
    return steps
