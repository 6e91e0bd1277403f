"""Walking down from the root, one induced tree a row: what sampling and decoding share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.evaluation_plan import DenseSums, EvaluationPlan, Products, Sums
from fedcircuits.circuits.passes import LOWEST
from fedcircuits.circuits.structure import Structure, ranges

# Given log-scores (p, r) of the children of p visited sums, and the sums (p,) and rows (p,)
# visited, the index of the chosen child (p,).
Choose = Callable[[FloatArray, IntArray, IntArray], IntArray]
PAIRS_PER_BLOCK = 2**22


def at_random(slots: IntArray, uniform: FloatArray) -> Choose:
    """Choose by inversion on the children's posterior weights.

    Every row takes the same number of uniform numbers from the generator, whatever it visits, so
    a sample does not depend on how the rows were cut into chunks.

    Args:
        slots: (n_nodes,) which of a row's numbers each sum uses (see `choice_slots`).
        uniform: (n, choices) the numbers.
    """

    def choose(scores: FloatArray, sums: IntArray, rows: IntArray) -> IntArray:
        weights = np.exp(scores - np.maximum(scores.max(axis=1, keepdims=True), LOWEST))  # (p, r)
        cumulative = np.cumsum(weights, axis=1)
        u = uniform[rows, slots[sums]] * cumulative[:, -1]
        return np.asarray(np.minimum((cumulative <= u[:, None]).sum(axis=1), scores.shape[1] - 1))

    return choose


def choice_slots(structure: Structure, leaf_column: IntArray) -> IntArray:
    """(n_nodes,) a number for each sum such that no two sums of one induced tree share it.

    Two nodes of a tree either have disjoint scopes, and so different lowest columns, or lie above
    each other, and so have different numbers of sums below them. Leaves and products have -1.

    Args:
        structure: of the circuit.
        leaf_column: (n_leaves,) the lowest column of each leaf.
    """
    lowest = np.zeros(structure.n_nodes, dtype=np.int64)
    lowest[: structure.n_leaves] = leaf_column
    height = np.zeros(structure.n_nodes, dtype=np.int64)  # sums on the way down, the node included
    for inner in structure.inner_by_level():
        spans = structure.arity[inner]
        below = structure.child[ranges(structure.first_edge[inner], spans)]
        starts = np.cumsum(spans) - spans
        nodes = structure.n_leaves + inner
        lowest[nodes] = np.minimum.reduceat(lowest[below], starts)
        height[nodes] = np.maximum.reduceat(height[below], starts) + structure.is_sum[inner]
    sums = structure.n_leaves + np.flatnonzero(structure.is_sum)
    slots = np.full(structure.n_nodes, -1, dtype=np.int64)
    key = height[sums] * (int(lowest.max()) + 1) + lowest[sums]
    slots[sums] = np.unique(key, return_inverse=True)[1].reshape(-1)
    return slots


def likeliest(scores: FloatArray, sums: IntArray, rows: IntArray) -> IntArray:
    """Choose the child of highest score."""
    del sums, rows
    return np.asarray(scores.argmax(axis=1))


def walk(plan: EvaluationPlan, values: FloatArray, choose: Choose) -> tuple[IntArray, IntArray]:
    """Visited leaves and their rows, as two arrays of equal length.

    In a smooth, decomposable circuit a row visits exactly one leaf of every variable.

    Args:
        plan: of the circuit.
        values: (n_nodes, n) of the pass up that scores a sum's children.
        choose: picks a child of each visited sum.
    """
    n_nodes, n = values.shape
    nodes = [np.full(n, n_nodes - 1, dtype=np.int64)]
    rows = [np.arange(n)]
    # Visits wait in the list until their step comes: each step takes its own nodes out.
    owner = np.full(n_nodes, -1, dtype=np.int64)
    slot = np.zeros(n_nodes, dtype=np.int64)
    for at, step in enumerate(plan.steps):
        owner[step.nodes] = at
        slot[step.nodes] = np.arange(step.nodes.size)
    waiting: dict[int, tuple[list[IntArray], list[IntArray]]] = {}

    def visit(new_nodes: IntArray, new_rows: IntArray) -> None:
        owners = owner[new_nodes]
        for key in np.unique(owners):
            mine = owners == key
            queue = waiting.setdefault(int(key), ([], []))
            queue[0].append(new_nodes[mine])
            queue[1].append(new_rows[mine])

    visit(nodes[0], rows[0])
    for at in range(len(plan.steps) - 1, -1, -1):
        if at not in waiting:
            continue
        step = plan.steps[at]
        here_nodes, here_rows = (np.concatenate(q) for q in waiting.pop(at))
        which = slot[here_nodes]
        if isinstance(step, Products):
            children = step.children[which]  # (p, r)
            visit(children.reshape(-1), np.repeat(here_rows, children.shape[1]))
            continue
        visit(_chosen(step, values, which, here_rows, choose), here_rows)
    leaves, leaf_rows = waiting.pop(-1)
    return np.concatenate(leaves), np.concatenate(leaf_rows)


def _chosen(
    step: Sums | DenseSums,
    values: FloatArray,
    which: IntArray,
    rows: IntArray,
    choose: Choose,
) -> IntArray:
    """(p,) the chosen child of each visited sum."""
    r = step.log_weights.shape[1]
    answer = np.empty(which.size, dtype=np.int64)
    block = max(1, PAIRS_PER_BLOCK // r)  # bounds memory where a sum has thousands of children
    for start in range(0, which.size, block):
        part = slice(start, start + block)
        children = (
            np.broadcast_to(step.children, (which[part].size, r))
            if isinstance(step, DenseSums)
            else step.children[which[part]]
        )  # (p, r)
        scores = step.log_weights[which[part]] + values[children, rows[part][:, None]]
        answer[part] = np.take_along_axis(
            children, choose(scores, step.nodes[which[part]], rows[part])[:, None], axis=1
        )[:, 0]
    return answer
