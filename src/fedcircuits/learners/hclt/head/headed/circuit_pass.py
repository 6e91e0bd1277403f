"""Passes over the classes of any circuit of density and label, for rows given by states.

The same as `class_pass.py` offers for a tree, for a circuit whose root is a sum of products, each
of one class of the label: upward gives log p(observed cells, y), downward draws completions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits import Circuit
from fedcircuits.circuits.compiled.run import compiled
from fedcircuits.circuits.evaluation_plan import DenseSums, Products
from fedcircuits.circuits.leaves.tables import log_table
from fedcircuits.circuits.passes import sum_product, up
from fedcircuits.circuits.queries.flows import leaf_flows
from fedcircuits.circuits.queries.walk import at_random, walk
from fedcircuits.errors import StructureError
from fedcircuits.learners.hclt.head.headed.class_pass import Seeds, uniform
from fedcircuits.schema import Table

# A class with less of the posterior than this is worked out in log-space.
_SMALL = 1e-250


@dataclass(frozen=True)
class CircuitUpPass:
    """An upward pass over n rows.

    Attributes:
        codes: (n, D) the rows, -1 where missing, the label's column apart.
        values: (nodes, n) log-probability below every node, nothing known of the label.
        log_joint: (n, Y) log p(observed cells, y).
    """

    codes: IntArray
    values: FloatArray
    log_joint: FloatArray


class CircuitPass:
    """Tables of a circuit's leaves, prepared for passes.

    Args:
        circuit: all its leaves are tables of states.
        label: name of y.
    """

    def __init__(self, circuit: Circuit, label: str) -> None:
        self.circuit = circuit
        self._label = at = circuit.schema.position(label)
        self._place = {c: j for j, c in enumerate(i for i in range(len(circuit.schema)) if i != at)}
        self._tables = [
            (group, log_table(group.params[group.family.parameters[0]])) for group in circuit.groups
        ]  # (L, states)
        structure = circuit.structure
        if structure.n_inner == 0 or not structure.is_sum[-1]:
            raise StructureError(["a circuit of density and label has a sum over classes on top"])
        edges = slice(structure.first_edge[-2], structure.first_edge[-1])
        self._tops = structure.child[edges]  # (R,)
        self._weights = structure.log_weight[edges]
        self.n_classes = next(t.shape[1] for group, t in self._tables if group.column == at)
        self.class_of = self._classes(at)  # (R,) class of every child of the root
        self._walked = self._class_of_walked()
        self._slots = circuit.choice_slots
        self._n_choices = int(self._slots.max()) + 1

    def _classes(self, label: int) -> IntArray:
        values = np.zeros((self.circuit.n_nodes, self.n_classes))
        for group, table in self._tables:
            if group.column == label:
                values[group.nodes] = table
        up(self.circuit.plan, values, sum_product)
        possible = values[self._tops] > -np.inf  # (R, Y)
        if (possible.sum(axis=1) != 1).any():
            raise StructureError(["a child of the root is of several classes of the label"])
        return np.asarray(possible.argmax(axis=1))

    def _class_of_walked(self) -> IntArray:
        """(R,) class of the root's children in the order in which a walk sees them."""
        step = self.circuit.plan.steps[-1]
        assert not isinstance(step, Products)
        children = step.children if isinstance(step, DenseSums) else step.children[0]
        class_of = dict(zip(self._tops.tolist(), self.class_of.tolist(), strict=True))
        return np.array([class_of[int(child)] for child in children], dtype=np.int64)

    @property
    def n_slots(self) -> int:
        """How many numbers a draw takes from its seed."""
        return self._n_choices + len(self._place)

    @property
    def bytes_per_row(self) -> int:
        """What an upward pass keeps of one row."""
        return 16 * self.circuit.n_nodes

    @property
    def is_compiled(self) -> bool:
        """Whether the circuit's own compiled passes are the faster ones."""
        return compiled(self.circuit) is not None

    def sampled(self, table: Table, rng: np.random.Generator) -> FloatArray:
        """(n, D) rows with missing cells drawn by the circuit; the label stays as it is."""
        values = self.circuit.sample_table(table.hide(self._label), rng)
        values[:, self._label] = table.values[:, self._label]
        return values

    def given_complete(self, table: Table, codes: Callable[[Table], IntArray]) -> FloatArray:
        """(n, Y) log p(x, y) of rows without gaps, up to a number a row: compiled where it pays.

        Args:
            table: the rows; their label is not looked at.
            codes: gives the states of rows, for those that linear space cannot hold.
        """
        if not self.is_compiled:
            return self.again(None, None, codes(table))
        mass = np.exp(np.concatenate([t for g, t in self._tables if g.column == self._label]))
        share = np.empty((len(table), self.n_classes))
        for part, _, flows in leaf_flows(self.circuit, table.hide(self._label), [self._label]):
            share[part] = flows[self._label].T @ mass
        with np.errstate(divide="ignore"):
            answer = np.log(share)
        small = np.flatnonzero((share < _SMALL).any(axis=1))
        if small.size:
            answer[small] = self.again(None, None, codes(table.rows(small)))
        return answer

    def upward(self, codes: IntArray) -> CircuitUpPass:
        """Upward pass over coded rows (n, D), -1 where missing."""
        values = np.zeros((self.circuit.n_nodes, len(codes)))
        for group, table in self._tables:
            if group.column not in self._place:
                continue
            own = codes[:, self._place[group.column]]
            found = table.take(np.maximum(own, 0), axis=1)
            values[group.nodes] = np.where(own >= 0, found, 0.0)
        up(self.circuit.plan, values, sum_product)
        joint = np.full((len(codes), self.n_classes), -np.inf)
        for y in np.unique(self.class_of):
            mine = np.flatnonzero(self.class_of == y)
            terms = values[self._tops[mine]] + self._weights[mine, None]
            joint[:, y] = np.logaddexp.reduce(terms, axis=0)
        return CircuitUpPass(codes, values, joint)

    def again(self, up_pass: object, rows: object, codes: IntArray) -> FloatArray:
        """(N, Y) log p(x, y) of completed rows (N, D)."""
        del up_pass, rows
        answer = np.empty((len(codes), self.n_classes))
        size = max(16, 2**26 // self.bytes_per_row)
        for start in range(0, len(codes), size):
            answer[start : start + size] = self.upward(codes[start : start + size]).log_joint
        return answer

    def draw(
        self, up_pass: CircuitUpPass, rows: IntArray, seeds: Seeds, classes: IntArray
    ) -> IntArray:
        """(N, D) completions of rows of a pass, one for each seed, given the class.

        Args:
            up_pass: the pass over the rows.
            rows: (N,) which row of it to complete.
            seeds: (N,) seeds of the draws.
            classes: (N,) class each completion is drawn from.
        """
        answer = up_pass.codes[rows]
        if len(rows) == 0:
            return answer
        u = uniform(seeds[:, None], np.arange(self.n_slots))  # (N, slots)
        plain = at_random(self._slots, u)
        root = self.circuit.n_nodes - 1

        def choose(scores: FloatArray, sums: IntArray, which: IntArray) -> IntArray:
            if sums[0] == root:  # a step of the walk visits the root alone
                other = self._walked[None, :] != classes[which][:, None]
                scores = np.where(other, -np.inf, scores)
            return plain(scores, sums, which)

        size = max(16, 2**26 // self.bytes_per_row)
        for start in range(0, len(rows), size):
            part = slice(start, start + size)

            def here(
                scores: FloatArray, sums: IntArray, which: IntArray, start: int = start
            ) -> IntArray:
                return choose(scores, sums, which + start)

            leaves, at = walk(self.circuit.plan, up_pass.values[:, rows[part]], here)
            at = at + start
            for group, table in self._tables:
                if group.column not in self._place:
                    continue
                j = self._place[group.column]
                mine = (leaves >= group.first) & (leaves < group.first + group.size)
                mine &= answer[at, j] < 0
                visited, leaf = at[mine], leaves[mine] - group.first
                rising = np.cumsum(np.exp(table), axis=1)[leaf]
                cut = u[visited, self._n_choices + j] * rising[:, -1]
                drawn = (rising <= cut[:, None]).sum(axis=1)
                answer[visited, j] = np.minimum(drawn, table.shape[1] - 1)
        return answer
