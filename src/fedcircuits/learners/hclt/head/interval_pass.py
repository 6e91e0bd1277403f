"""Passes over a circuit in which a missing cell is known to lie in an interval of states.

A leaf with a table of states answers 1 where its cell is missing; here it answers the mass of the
interval instead, so that the root is p(observed cells, the others in their box). Flows then give
moments inside the box, and a walk a sample from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.circuits import Circuit
from fedcircuits.circuits.leaf_group import LeafGroup
from fedcircuits.circuits.passes import chunk_rows, down, leaf_log_prob, sum_product, up
from fedcircuits.circuits.queries.walk import at_random, walk
from fedcircuits.learners.hclt.head.forest import Forest
from fedcircuits.schema import Table

# In place of a leaf of the forest: no box at all, with or without the row's label.
LABELLED, ANYWHERE = -1, -2


class BoxedPasses:
    """Passes for pairs of a row and a leaf of the forest."""

    def __init__(self, circuit: Circuit, forest: Forest, label: int) -> None:
        """Prepare a circuit whose leaves are tables of states; `label` is the label's column."""
        self._circuit = circuit
        self._label = label
        low, high = forest.boxes
        n_nodes = forest.column.size
        # Intervals of ranks that occur in a column; number 0 is the whole of it.
        self._interval = np.zeros((n_nodes, len(forest.ranks)), dtype=np.int64)
        self._inside: list[BoolArray] = []  # of every column (intervals, card)
        for at, ranks in enumerate(forest.ranks):
            card = max(ranks.size, 1)
            key = low[:, at] * (card + 1) + high[:, at]
            whole = np.array([ranks.size])  # the key of [0, card)
            known, number = np.unique(np.concatenate([whole, key]), return_inverse=True)
            number = number.reshape(-1)
            # Swap so that the whole column is number 0.
            first = number[0]
            swapped = np.where(number == first, 0, np.where(number == 0, first, number))
            known[[0, first]] = known[[first, 0]]
            self._interval[:, at] = swapped[1:]
            begin, end = known // (card + 1), known % (card + 1)
            inside = (ranks[None, :] >= begin[:, None]) & (ranks[None, :] < end[:, None])
            self._inside.append(inside)

    def _table(self, group: LeafGroup) -> FloatArray:
        """(L, card) masses of the states."""
        return group.params[group.family.parameters[0]]

    @cached_property
    def _mass(self) -> dict[int, FloatArray]:
        """By a group's first leaf: (L, intervals) mass inside each interval."""
        return {
            group.first: self._table(group) @ self._inside[group.column].T.astype(float)
            for group in self._circuit.groups
            if group.column != self._label
        }

    @cached_property
    def _log_mass(self) -> dict[int, FloatArray]:
        with np.errstate(divide="ignore"):
            return {first: np.log(mass) for first, mass in self._mass.items()}

    def _chunks(self, table: Table, rows: IntArray, leaves: IntArray) -> Iterator[_Chunk]:
        """Node values (n_nodes, m) of pairs, a few at a time."""
        circuit = self._circuit
        size = chunk_rows(circuit.n_nodes)
        for start in range(0, rows.size, size):
            part = slice(start, start + size)
            mine, place = np.unique(rows[part], return_inverse=True)
            evidence = table.rows(mine)
            at_rows = np.empty((circuit.n_nodes, mine.size))
            leaf_log_prob(circuit, evidence, at_rows)
            n_leaves = circuit.structure.n_leaves
            values = np.empty((circuit.n_nodes, place.size))
            values[:n_leaves] = at_rows[:n_leaves, place.reshape(-1)]
            leaf, gaps = leaves[part], ~evidence.observed[place.reshape(-1)]
            boxed = np.flatnonzero(leaf >= 0)
            for group in circuit.groups:
                if group.column == self._label:
                    values[group.nodes, np.flatnonzero(leaf != LABELLED)] = 0.0
                    continue
                pairs = boxed[gaps[boxed, group.column]]
                interval = self._interval[leaf[pairs], group.column]
                pairs, interval = pairs[interval > 0], interval[interval > 0]
                if pairs.size:
                    values[group.first : group.first + group.size, pairs] = self._log_mass[
                        group.first
                    ][:, interval]
            up(circuit.plan, values, sum_product)
            number = np.where(leaf[:, None] >= 0, self._interval[np.maximum(leaf, 0)], 0)
            yield _Chunk(part, values, number * gaps, gaps)

    def log_prob(self, table: Table, rows: IntArray, leaves: IntArray) -> FloatArray:
        """(m,) log p(observed cells, the missing ones in the leaf's box) of each pair.

        Args:
            table: rows.
            rows: (m,) the row of every pair.
            leaves: (m,) the node of the forest, LABELLED or ANYWHERE. The label counts as evidence
                only with LABELLED.
        """
        answer = np.empty(rows.size)
        for chunk in self._chunks(table, rows, leaves):
            answer[chunk.part] = chunk.values[-1]
        return answer

    def expectations(
        self, table: Table, rows: IntArray, leaves: IntArray, per_state: list[FloatArray]
    ) -> FloatArray:
        """(m, D) conditional mean of a function of each missing cell; 0 where observed.

        Args:
            table: rows.
            rows: (m,) the row of every pair.
            leaves: (m,) as for `log_prob`.
            per_state: of every column (card,) the function's mean in each state.
        """
        circuit = self._circuit
        tables = {}
        for group in circuit.groups:
            if group.column != self._label:
                inside = self._inside[group.column]
                total = _weighted(self._table(group), inside, per_state[group.column])
                mass = self._mass[group.first]
                tables[group.first] = np.divide(
                    total, mass, out=np.zeros_like(total), where=mass > 0
                )
        answer = np.zeros((rows.size, len(circuit.schema)))
        for chunk in self._chunks(table, rows, leaves):
            flows = np.zeros_like(chunk.values)
            flows[-1] = chunk.values[-1] > -np.inf
            down(circuit.plan, chunk.values, flows)
            found = answer[chunk.part]
            for group in circuit.groups:
                if group.column == self._label:
                    continue
                pairs = np.flatnonzero(chunk.gaps[:, group.column])
                mean = tables[group.first][:, chunk.interval[pairs, group.column]]
                flow = flows[group.nodes][:, pairs]
                with np.errstate(invalid="ignore"):
                    term = np.where(flow > 0, flow * mean, 0.0)
                found[pairs, group.column] += term.sum(axis=0)
        return answer

    def sample(
        self, table: Table, rows: IntArray, leaves: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        """(m, D) the rows of the pairs with missing cells drawn inside the box."""
        circuit = self._circuit
        answer = table.values[rows]
        for chunk in self._chunks(table, rows, leaves):
            choose = at_random(circuit.choice_slots, chunk.values.shape[1], rng)
            visited, pairs = walk(circuit.plan, chunk.values, choose)
            drawn = answer[chunk.part]
            for group in circuit.groups:
                if group.column == self._label:
                    continue
                hit = (visited >= group.first) & (visited < group.first + group.size)
                which, pair = visited[hit] - group.first, pairs[hit]
                gap = chunk.gaps[pair, group.column]
                which, pair = which[gap], pair[gap]
                inside = self._inside[group.column][chunk.interval[pair, group.column]]
                masses = np.where(inside, self._table(group)[which], 0.0)  # (k, card)
                state = _draw(masses, rng)
                variable = circuit.schema.variables[group.column]
                drawn[pair, group.column] = (
                    state if variable.is_coded else _within(group, state, rng)
                )
            answer[chunk.part] = drawn
        return answer

    def node_values(self, table: Table, leaf: int) -> tuple[FloatArray, IntArray]:
        """(n_nodes,) values of the first row in a box, and (D,) its intervals."""
        rows, leaves = np.zeros(1, dtype=np.int64), np.array([leaf])
        chunk = next(self._chunks(replace(table), rows, leaves))
        return chunk.values[:, 0], chunk.interval[0]

    def leaf_means(self, group: LeafGroup, interval: int, per_state: FloatArray) -> FloatArray:
        """(L,) conditional mean of a function of the state inside one interval."""
        inside = self._inside[group.column][interval : interval + 1]
        total = _weighted(self._table(group), inside, per_state)[:, 0]
        mass = self._mass[group.first][:, interval]
        return np.divide(total, mass, out=np.zeros_like(total), where=mass > 0)


class _Chunk:
    """Some pairs: their slice, node values (n_nodes, m), intervals (m, D), missing cells (m, D)."""

    def __init__(
        self, part: slice, values: FloatArray, interval: IntArray, gaps: BoolArray
    ) -> None:
        self.part = part
        self.values = values
        self.interval = interval
        self.gaps = gaps


def _weighted(table: FloatArray, inside: BoolArray, per_state: FloatArray) -> FloatArray:
    """(L, intervals) sum over an interval's states of mass times a number that may be infinite."""
    finite = np.isfinite(per_state)
    total = table @ np.where(inside & finite, np.where(finite, per_state, 0.0), 0.0).T
    for sign in (1.0, -1.0):
        at = inside & (per_state == sign * np.inf)
        if at.any():
            total = total + np.where((table > 0) @ at.T.astype(float) > 0, sign * np.inf, 0.0)
    return np.asarray(total)


def _draw(masses: FloatArray, rng: np.random.Generator) -> IntArray:
    """(k,) a state from each row of masses (k, card), by inversion."""
    cumulative = np.cumsum(masses, axis=1)
    u = rng.random(len(masses)) * cumulative[:, -1]
    state = (cumulative <= u[:, None]).sum(axis=1)
    last = masses.shape[1] - 1 - (masses[:, ::-1] > 0).argmax(axis=1)
    return np.asarray(np.minimum(state, last), dtype=np.int64)


def _within(group: LeafGroup, state: IntArray, rng: np.random.Generator) -> FloatArray:
    assert group.grid is not None
    return group.grid.sample_within(state, rng)
