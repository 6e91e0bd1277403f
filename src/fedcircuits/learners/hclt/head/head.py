"""The shared-marginal head: p(x, y) = p(x) [a p(y | x) + sum_i w_i q_i(y | x)], w summing to 1 - a.

p is a circuit and p(x) its own marginal; q_i are small trees on the states of x. All terms have the
same p(x), so the average of posteriors is exact: p(x) stays what it was, and only what is asked
about the label, or given the label, changes. A leaf of a tree is a box of states, so a cell that is
missing costs one pass over the circuit for every leaf it leaves open, and none where no tree asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits import Circuit
from fedcircuits.circuits.queries.covariance import carry_up
from fedcircuits.density import Density, powers
from fedcircuits.density.by_state import events_by_state
from fedcircuits.density.conditioned import Conditioned
from fedcircuits.density.fit_report import FitReport
from fedcircuits.encoding import Record
from fedcircuits.errors import StorageError, StructureError
from fedcircuits.learners.hclt.head.forest import Forest
from fedcircuits.learners.hclt.head.head_states import (
    completed_rows,
    distinct_rows,
    n_states,
    state_about,
    state_powers,
)
from fedcircuits.learners.hclt.head.interval_pass import ANYWHERE, LABELLED, BoxedPasses
from fedcircuits.learners.prepare import column_codes
from fedcircuits.schema import Schema, Table

ROWS_PER_CHUNK = 4096
_Hook = Callable[[Table], FloatArray]
_OfLabel = Callable[[FloatArray, FloatArray], FloatArray]
_TABLE_FAMILIES = ("categorical", "histogram", "count_table")


@events_by_state
@dataclass(frozen=True, eq=False, repr=False)
class HeadedCircuit(Density):
    """A circuit with a head of trees for one label.

    Attributes:
        base: the circuit p(x, y); its leaves are tables of states.
        label: name of y.
        forest: the trees; its weights sum to 1 - a.
        fit_report: what the learner said.
    """

    base: Circuit
    label: str
    forest: Forest
    fit_report: FitReport | None = None

    def __post_init__(self) -> None:
        families = {group.family.name for group in self.base.groups}
        odd = sorted(families.difference(_TABLE_FAMILIES))
        if odd:
            raise StructureError([f"a head needs leaves with tables of states, found {odd[0]}"])
        total = float(self.forest.weights.sum())
        if not total <= 1.0 + 1e-9:
            raise StructureError([f"the trees' weights sum to {total}, at most 1 is expected"])

    @cached_property
    def schema(self) -> Schema:  # type: ignore[override]
        return self.base.schema

    @property
    def base_weight(self) -> float:
        """The weight a of the circuit's own posterior."""
        return 1.0 - min(float(self.forest.weights.sum()), 1.0)

    @cached_property
    def _at(self) -> int:
        at: int = self.schema.position(self.label)
        return at

    @cached_property
    def _passes(self) -> BoxedPasses:
        return BoxedPasses(self.base, self.forest, self._at)

    def __repr__(self) -> str:
        return (
            f"HeadedCircuit({self.base!r}, {self.forest.roots.size} trees with "
            f"{self.forest.n_leaves} leaves for {self.label!r}, a = {self.base_weight:.3g})"
        )

    @property
    def n_parameters(self) -> int:
        """Those of the circuit, a cut for every split, class shares in every leaf."""
        n_leaves, n_classes = self.forest.n_leaves, self.forest.values.shape[1]
        n_splits = int(self.forest.column.size) - n_leaves
        return self.base.n_parameters + n_splits + n_leaves * (int(n_classes) - 1)

    @property
    def mpe_is_exact(self) -> bool:
        """Never known to be."""
        return False

    # --- the posterior of the label ---------------------------------------------------------------

    def _hidden(self, table: Table) -> Table:
        observed = table.observed.copy()  # but for the label
        observed[:, self._at] = False
        return replace(table, observed=observed)

    def _codes(self, table: Table) -> IntArray:
        """(n, D) states, -1 where missing and in the label's column."""
        codes = np.full(table.values.shape, -1, dtype=np.int64)
        for at, variable in enumerate(self.schema):
            seen = table.observed[:, at]
            if at != self._at and seen.any():
                codes[seen, at] = column_codes(variable, table.values[seen, at])
        return codes

    def _reached(self, table: Table) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
        """Rows, leaves and p(box | observed cells of x) of all that may meet; which needed a pass.

        Within a row, the boxes of one tree share a mass of one.
        """
        rows, leaves, asked = self.forest.reached(self._codes(table))
        mass = np.ones(rows.size)
        pairs = np.flatnonzero(asked)
        if pairs.size:
            log_prob = self._passes.log_prob(self._hidden(table), rows[pairs], leaves[pairs])
            owner = rows[pairs] * self.forest.roots.size + self.forest.tree_of[leaves[pairs]]
            _, owner = np.unique(owner, return_inverse=True)
            top = np.full(int(owner.max()) + 1, -np.inf)
            np.maximum.at(top, owner, log_prob)
            share = np.exp(log_prob - np.where(np.isfinite(top), top, 0.0)[owner])
            total = np.bincount(owner, share)[owner]
            mass[pairs] = np.divide(share, total, out=np.zeros_like(share), where=total > 0)
        return rows, leaves, mass, pairs

    def _label_posterior(self, table: Table) -> FloatArray:
        """(n, Y) p(y | observed cells of x), NaN where those have probability zero."""
        distinct, back = distinct_rows(self._hidden(table))
        answer = self.base_weight * self.base.posterior_table(distinct, self._at)
        for part, chunk in distinct.chunks(ROWS_PER_CHUNK):
            rows, leaves, mass, _ = self._reached(chunk)
            share = mass * self.forest.weights[self.forest.tree_of[leaves]]
            for y in range(answer.shape[1]):
                found = share * self.forest.values[leaves, y]
                answer[part, y] += np.bincount(rows, found, minlength=len(chunk))
        return answer[back]

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        if column == self._at:
            return self._label_posterior(table)
        known = table.observed[:, self._at]
        if not known.any():
            return self.base.posterior_table(table, column)
        given = super().posterior_table(table.rows(known), column)
        answer = np.empty((len(table), given.shape[1]))
        answer[known] = given
        answer[~known] = self.base.posterior_table(table.rows(~known), column)
        return answer

    def log_prob_table(self, table: Table) -> FloatArray:
        answer = self.base.log_prob_table(self._hidden(table))
        known = np.flatnonzero(table.observed[:, self._at] & (answer > -np.inf))
        if known.size:
            rows = table.rows(known)
            classes = rows.values[:, self._at].astype(np.int64)
            posterior = self._label_posterior(rows)[np.arange(known.size), classes]
            with np.errstate(divide="ignore"):
                answer[known] += np.log(posterior)
        return answer

    # --- given the label, a mixture: the circuit, and the boxes the trees leave open --------------

    def _components(self, table: Table) -> tuple[IntArray, IntArray, FloatArray]:
        """Rows, leaves (or LABELLED, ANYWHERE) and weights of rows with a label.

        Sorted by row; the weights of a row sum to one.
        """
        n, classes = len(table), table.values[:, self._at].astype(np.int64)
        own = self.base.posterior_table(self._hidden(table), self._at)[np.arange(n), classes]
        rows, leaves, mass, pairs = self._reached(table)
        weight = mass * self.forest.weights[self.forest.tree_of[leaves]]
        weight *= self.forest.values[leaves, classes[rows]]
        boxed = np.zeros(rows.size, dtype=bool)
        boxed[pairs] = True
        everywhere = np.bincount(rows[~boxed], weight[~boxed], minlength=n)
        every = np.arange(n)
        row = np.concatenate([every, every, rows[boxed]])
        leaf = np.concatenate([np.full(n, LABELLED), np.full(n, ANYWHERE), leaves[boxed]])
        weight = np.concatenate([self.base_weight * own, everywhere, weight[boxed]])
        order = np.argsort(row, kind="stable")
        order = order[weight[order] > 0]
        row, leaf, weight = row[order], leaf[order], weight[order]
        return row, leaf, weight / np.bincount(row, weight, minlength=n)[row]

    def _given_label(self, table: Table, per_state: list[FloatArray]) -> FloatArray:
        """(n, D) conditional means of a function of the missing cells of rows with a label."""
        distinct, back = distinct_rows(table)
        answer = np.zeros(distinct.values.shape)
        for part, chunk in distinct.chunks(ROWS_PER_CHUNK):
            row, leaf, weight = self._components(chunk)
            found = self._passes.expectations(chunk, row, leaf, per_state)
            with np.errstate(invalid="ignore"):  # infinite to both sides: no such moment
                np.add.at(answer[part], row, weight[:, None] * found)
        return answer[back]

    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        answer = table.values.copy()
        known = table.observed[:, self._at]
        free, bound = np.flatnonzero(~known), np.flatnonzero(known & ~table.observed.all(axis=1))
        if free.size:
            drawn = self.base.sample_table(table.rows(free), rng)
            filled = completed_rows(table.rows(free), drawn)
            posterior = np.cumsum(self._label_posterior(filled), axis=1)
            u = rng.random(free.size) * posterior[:, -1]
            state = (posterior <= u[:, None]).sum(axis=1)
            drawn[:, self._at] = np.minimum(state, posterior.shape[1] - 1)
            answer[free] = drawn
        if bound.size:
            rows = table.rows(bound)
            distinct, back = distinct_rows(rows)
            row, leaf, weight = self._components(distinct)
            ends = np.cumsum(np.bincount(row, minlength=len(distinct)))
            # Weights of a row sum to one, so row d owns the stretch from d to d + 1.
            target = back + rng.random(bound.size)
            chosen = np.searchsorted(np.cumsum(weight), target, side="right")
            starts = np.concatenate([[0], ends[:-1]])
            chosen = np.clip(chosen, starts[back], ends[back] - 1)
            every = np.arange(bound.size)
            answer[bound] = self._passes.sample(rows, every, leaf[chosen], rng)
        return answer

    def mpe_table(self, table: Table) -> FloatArray:
        """The circuit's completion of x, then the label likeliest given it."""
        answer = self.base.mpe_table(table)
        free = np.flatnonzero(~table.observed[:, self._at])
        if free.size:
            posterior = self._label_posterior(completed_rows(table.rows(free), answer[free]))
            answer[free, self._at] = posterior.argmax(axis=1)
        return answer

    def moment_table(self, table: Table, order: int) -> FloatArray:
        def given_label(rows: Table) -> FloatArray:
            return self._given_label(rows, [state_powers(v, order) for v in self.schema])

        def of_label(numbers: FloatArray, posterior: FloatArray) -> FloatArray:
            return np.asarray(posterior @ numbers**order)

        answer = self._by_label(
            table, lambda rows: self.base.moment_table(rows, order), given_label, of_label
        )
        for at, variable in enumerate(self.schema):
            seen = table.observed[:, at]
            answer[seen, at] = powers(variable, table.values[seen, at], order)
        return answer

    def variance_table(self, table: Table) -> FloatArray:
        """About the circuit's means, so that a large mean costs no digits."""

        def given_label(rows: Table) -> FloatArray:
            there, first, second = self._spread(rows, self._centre)
            with np.errstate(invalid="ignore", over="ignore"):
                return np.asarray(np.maximum(second / there - (first / there) ** 2, 0.0))

        def of_label(numbers: FloatArray, posterior: FloatArray) -> FloatArray:
            mean = posterior @ numbers
            return np.asarray((posterior * (numbers - mean[:, None]) ** 2).sum(axis=1))

        answer = self._by_label(table, self.base.variance_table, given_label, of_label)
        for at, variable in enumerate(self.schema):
            seen = table.observed[:, at]
            has_value = powers(variable, table.values[seen, at], 0) > 0
            answer[seen, at] = np.where(has_value, 0.0, np.nan)
        return answer

    def _by_label(self, table: Table, free: _Hook, bound: _Hook, of_label: _OfLabel) -> FloatArray:
        """(n, D) rows without a label answered by `free` and `of_label`, the others by `bound`."""
        known = table.observed[:, self._at]
        answer = np.empty(table.values.shape)
        if known.any():
            answer[known] = bound(table.rows(known))
        if not known.all():
            rows = table.rows(~known)
            found = free(rows)
            variable = self.schema.variables[self._at]
            numbers = variable.numbers
            numbers = np.zeros(len(variable.categories)) if numbers is None else numbers
            found[:, self._at] = of_label(numbers, self._label_posterior(rows))
            answer[~known] = found
        return answer

    @cached_property
    def _centre(self) -> FloatArray:
        """(D,) means of the circuit, 0 where infinite."""
        mean = self.base.mean_table(Table.empty(self.schema, 1))[0]
        return np.where(np.isfinite(mean), mean, 0.0)

    def _spread(self, rows: Table, centre: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(n, D) each: p(a value), E[x - centre; a value], E[(x - centre)^2; a value], given y."""
        found = []
        for order in range(3):
            about = [state_about(v, c, order) for v, c in zip(self.schema, centre, strict=True)]
            found.append(self._given_label(rows, about))
        return found[0], found[1], found[2]

    def covariance_table(self, evidence: Table, columns: list[int]) -> FloatArray:
        of_x = [i for i, column in enumerate(columns) if column != self._at]
        answer = np.zeros((len(columns), len(columns)))
        known = bool(evidence.observed[0, self._at])
        if of_x:
            mine = [columns[i] for i in of_x]
            inner = self._covariance_given_label if known else self.base.covariance_table
            answer[np.ix_(of_x, of_x)] = inner(evidence, mine)
        if known or self._at not in columns:
            return answer
        i = columns.index(self._at)
        numbers = self.schema.variables[self._at].numbers
        assert numbers is not None  # the caller has seen to that
        p = self._label_posterior(evidence)[0]
        away = numbers - p @ numbers
        answer[i, i] = p @ away**2
        values = np.repeat(evidence.values, p.size, axis=0)
        values[:, self._at] = np.arange(p.size)
        observed = evidence.observed.repeat(p.size, axis=0)
        observed[:, self._at] = True
        rows = Table(self.schema, values, observed, evidence.index.repeat(p.size))
        centre = self.base.mean_table(evidence)[0]
        live = np.flatnonzero(p > 0)
        first = self._spread(rows.rows(live), centre)[1]
        for at in of_x:
            if not evidence.observed[0, columns[at]]:
                answer[i, at] = answer[at, i] = (p * away)[live] @ first[:, columns[at]]
        return answer

    def _covariance_given_label(self, evidence: Table, columns: list[int]) -> FloatArray:
        """(d, d): every component's means and cross-moments about the overall means."""
        d = len(columns)
        there, first, _ = self._spread(evidence, self._centre)
        with np.errstate(invalid="ignore"):
            centre = self._centre + np.nan_to_num(first / there)[0]
        mean, cross = np.zeros(d), np.zeros((d, d))
        _, leaves, weights = self._components(evidence)
        groups = [g for g in self.base.groups if g.column in columns]
        for leaf, weight in zip(leaves, weights, strict=True):
            log_prob, interval = self._passes.node_values(evidence, int(leaf))
            means = np.zeros((self.base.n_nodes, d))
            crosses = np.zeros((self.base.n_nodes, d, d))
            for group in groups:
                i, variable = columns.index(group.column), self.schema.variables[group.column]
                if evidence.observed[0, group.column]:
                    continue  # a constant, the centre itself
                for order, into in ((1, means[:, i]), (2, crosses[:, i, i])):
                    about = state_about(variable, centre[group.column], order)
                    into[group.nodes] = self._passes.leaf_means(
                        group, int(interval[group.column]), about
                    )
            carry_up(self.base.plan, log_prob, means, crosses)
            mean += weight * means[-1]
            cross += weight * crosses[-1]
        return np.asarray(cross - np.outer(mean, mean))

    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Density:
        if self.label not in keep and not evidence.observed[0, self._at]:
            return self.base.restrict(keep, evidence)
        return Conditioned(self, keep, evidence)

    # --- storage ----------------------------------------------------------------------------------

    def to_record(self) -> Record:
        base = replace(self.base, fit_report=self.fit_report).to_record()
        arrays = {f"base.{name}": array for name, array in base.arrays.items()}
        arrays |= {f"head.{name}": array for name, array in self.forest.arrays().items()}
        header = {"base": base.header, "label": self.label}
        return Record("headed_circuit", header, arrays)

    @staticmethod
    def from_record(record: Record) -> HeadedCircuit:
        """Inverse of `to_record`; anything that is not as it should be is a `StorageError`."""
        try:
            base = Circuit.from_record(
                Record("circuit", record.header["base"], _under("base.", record))
            )
            label = record.header["label"]
            n_classes = len(base.schema[label].categories)
            cards = [0 if v.name == label else n_states(v) for v in base.schema]
            forest = Forest.from_arrays(_under("head.", record), cards, n_classes)
            return HeadedCircuit(base, label, forest, base.fit_report)
        except StorageError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise StorageError(f"the headed circuit in the file is not valid: {error}") from None


def _under(prefix: str, record: Record) -> dict[str, np.ndarray[Any, Any]]:
    start = len(prefix)
    return {k[start:]: array for k, array in record.arrays.items() if k.startswith(prefix)}
