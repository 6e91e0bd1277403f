"""A circuit with a head for its label: p(x, y) = m(x) q(y | x).

m(x) is the tilted circuit's own marginal, q a pool of the circuit's posterior with boosted trees
(`pool.py`). Whatever q is, p has mass one and the circuit's density of x; answers about complete
rows are exact. Where a cell is missing, q is averaged over completions drawn from m, with the
circuit's exact posterior as control variate:

    p(y | observed) = t(y | observed) + mean over completions of [q(y | x) - t(y | x)]

The draws depend on the row alone, so that an answer repeats and all queries agree. Where the
missing cells have few completions all of them are summed, which is exact again. Events are summed
over states; the trees then see one value of each state of a number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.density import Density, outcome_codes, powers
from fedcircuits.density.by_state import Expanded, events_by_state
from fedcircuits.density.conditioned import Conditioned
from fedcircuits.encoding import Record
from fedcircuits.errors import MALFORMED, StorageError
from fedcircuits.learners.hclt.head.headed.completions import Completions
from fedcircuits.learners.hclt.head.headed.estimates import (
    error_given_label,
    mean_error,
    variance_by_row,
)
from fedcircuits.learners.hclt.head.headed.label_head import LabelHead
from fedcircuits.learners.hclt.head.headed.stored_head import parts_of
from fedcircuits.learners.hclt.head.trees.across_trees import AcrossTrees
from fedcircuits.schema import Table
from fedcircuits.schema.events import Region
from fedcircuits.schema.grids.quantiles import quantiles_on

# Completions behind a covariance.
_COVARIANCE = 2048
_TRIES = 16


@events_by_state
@dataclass(frozen=True, eq=False, repr=False)
class HeadedCircuit(LabelHead):
    """A tilted circuit with boosted trees pooled into the posterior of its label."""

    def __repr__(self) -> str:
        return (
            f"HeadedCircuit({self.base!r}, {self.trees.roots.size} trees with "
            f"{self.trees.n_leaves} leaves for {self.label!r}: weights {self.pool.tilt:.3g} of "
            f"the circuit, {self.pool.trees:.3g} of the trees)"
        )

    def alone(self, known: BoolArray) -> Density | None:
        """Return the circuit where the label (one of the D columns) is not known: it is m(x)."""
        return None if known[self._at] else self.base

    # --- the posterior of the label ---------------------------------------------------------------

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        if table.events is None and column == self._at:
            return self._of_label(table, column, False)[0]
        return self.posterior_with_error(table, column)[0]

    def posterior_with_error(self, table: Table, column: int) -> tuple[FloatArray, FloatArray]:
        if table.events is not None:
            answer = self.posterior_table(table, column)
            return answer, self._error_given_events(table.hide(column), column, answer)
        if column == self._at:
            return self._of_label(table, column, True)
        known = table.observed[:, self._at]
        observed = table.observed.copy()
        observed[:, column] = True
        others = ~observed.all(axis=1)
        answer = self.base.posterior_table(table, column)
        error = np.zeros(answer.shape)
        alone = np.flatnonzero(known & ~others)  # every outcome makes a complete row
        if alone.size:
            answer[alone] = super().posterior_table(table.rows(alone), column)
        rest = np.flatnonzero(known & others)
        if rest.size:
            change, error[rest] = self._change_given_label(table.rows(rest), column)
            answer[rest] = np.maximum(answer[rest] + change, 0.0)
            with np.errstate(invalid="ignore"):
                answer[rest] /= answer[rest].sum(axis=1, keepdims=True)
        return answer, error

    def _error_given_events(self, table: Table, column: int, answer: FloatArray) -> FloatArray:
        """The error of a posterior (n, K) summed over the states that events meet.

        Each of them is an estimate by draws of its own, and its weight is the circuit's, exact.
        That of answers given the label is not known.
        """
        if column != self._at:
            return np.full(answer.shape, np.nan)
        parts = Expanded.of(table)
        share = parts.shares(self, len(table))
        _, error = self.posterior_with_error(parts.rows, column)
        return np.sqrt(parts.summed(share**2, error**2, len(table)))

    def _of_label(
        self, table: Table, column: int, with_error: bool
    ) -> tuple[FloatArray, FloatArray]:
        """The posterior of the label's outcomes, and its error."""
        posterior, error = self._label_posterior(table, with_error)
        if self._states.grid is None:
            return posterior, error
        codes = self._states.codes(outcome_codes(self.schema.variables[column]))
        posterior, error = posterior[:, codes], error[:, codes]
        with np.errstate(invalid="ignore"):
            total = posterior.sum(axis=1, keepdims=True)
            return posterior / total, error / total

    def masses_table(self, table: Table, column: int, regions: list[Region]) -> FloatArray:
        table = table.hide(column)
        if (table.known & ~table.observed).any():  # events: summed over states
            return super().masses_table(table, column, regions)
        if column == self._at:
            posterior = self._label_posterior(table)[0]
            return posterior @ np.stack([self._states.shares(r) for r in regions], axis=1)
        answer = self.base.masses_table(table, column, regions)
        known = np.flatnonzero(table.observed[:, self._at])
        j = self._completer.columns.index(column)
        change = np.zeros((known.size, len(regions)))
        for part, found, head, tilt, _ in self._given_label(table.rows(known)):
            values = self._completer.numbers(found, j)
            for at, region in enumerate(regions):
                inside = (head - tilt) * region.contains(values)
                change[part, at] = np.bincount(found.row, inside, minlength=known[part].size)
        answer[known] = np.clip(answer[known] + change, 0.0, 1.0)
        return answer

    def quantile_table(self, table: Table, column: int, shares: FloatArray) -> FloatArray | None:
        grid = self._states.grid
        if table.events is not None:
            return None
        if column != self._at:
            return (
                self.base.quantile_table(table, column, shares)
                if not table.observed[:, self._at].any()
                else None
            )
        if grid is None:
            return None
        return quantiles_on(grid, self._label_posterior(table)[0], shares)

    def log_prob_table(self, table: Table) -> FloatArray:
        answer = self.base.log_prob_table(self._hidden(table))
        known = np.flatnonzero(table.observed[:, self._at] & (answer > -np.inf))
        if known.size:
            rows = table.rows(known)
            values = rows.values[:, self._at]
            states = self._states.codes(values)
            posterior = self._label_posterior(rows)[0][np.arange(known.size), states]
            with np.errstate(divide="ignore"):
                answer[known] += np.log(posterior) + self._states.log_within(values)
        return answer

    # --- given the label: completions drawn from t(x | y), weighted by q / t ----------------------

    def moment_of(self, table: Table, column: int, order: int) -> FloatArray:
        if column != self._at or table.known[:, column].any() or table.events is not None:
            return super().moment_of(table, column, order)
        return self._label_posterior(table)[0] @ self._states.moments(order)

    def moment_error(self, table: Table, column: int, order: int) -> FloatArray:
        answer = np.zeros(len(table))
        if table.events is not None:  # summed over states; the error of that is not known
            return np.full(len(table), np.nan)
        completer = self._completer
        if column != self._at:
            gaps = np.flatnonzero(table.observed[:, self._at] & self._is_open(table))
            rows = table.rows(gaps)
            j, variable = completer.columns.index(column), self.schema.variables[column]
            for part, found, head, tilt, unseen in self._given_label(rows):
                values = powers(variable, completer.numbers(found, j), order)[:, None]
                spread = np.maximum(
                    *(variance_by_row(found, w, values, part.size) for w in (head, tilt))
                )
                error = error_given_label(found, head, tilt, values, spread, unseen)[:, 0]
                answer[gaps[part]] = np.where(rows.observed[part, column], 0.0, error)
            return answer
        gaps = np.flatnonzero(self._is_open(table) & ~table.observed[:, column])
        values = self._states.moments(order)
        for part, log_tilt, found in completer.completed(table.rows(gaps)):
            answer[gaps[part]] = mean_error(
                np.exp(log_tilt), found, values, completer.n_drawn, completer.typical
            )
        return answer

    def moment_table(self, table: Table, order: int) -> FloatArray:
        answer = np.empty(table.values.shape)
        for at, variable in enumerate(self.schema):
            answer[:, at] = powers(variable, table.values[:, at], order)
        partial = np.flatnonzero(self._is_open(table))
        if partial.size:
            answer[partial] = self.base.moment_table(table.rows(partial), order)
        known = table.observed[:, self._at]
        gaps = np.flatnonzero(known & self._is_open(table))
        for part, found, head, tilt, _ in self._given_label(table.rows(gaps)):
            for j, at in enumerate(self._completer.columns):
                values = self._completer.numbers(found, j)
                change = (head - tilt) * powers(self.schema.variables[at], values, order)
                rows = gaps[part]
                added = np.bincount(found.row, change, minlength=rows.size)
                answer[rows, at] += np.where(table.observed[rows, at], 0.0, added)
        free = np.flatnonzero(~known)
        if free.size:
            posterior = self._label_posterior(table.rows(free))[0]
            answer[free, self._at] = posterior @ self._states.moments(order)
        return answer

    def variance_table(self, table: Table) -> FloatArray:
        """About the circuit's means, so that a large mean costs no digits."""
        answer = np.zeros(table.values.shape)
        partial = np.flatnonzero(self._is_open(table))
        if partial.size:
            answer[partial] = self.base.variance_table(table.rows(partial))
        known = table.observed[:, self._at]
        gaps = np.flatnonzero(known & self._is_open(table))
        rows = table.rows(gaps)
        centre, there = self.base.mean_table(rows), self.base.moment_table(rows, 0)
        for part, found, head, tilt, _ in self._given_label(rows):
            mine = gaps[part]
            for j, at in enumerate(self._completer.columns):
                values, variable = self._completer.numbers(found, j), self.schema.variables[at]
                seen = powers(variable, values, 0)
                away = (powers(variable, values, 1) - centre[part][found.row, at]) * seen
                change = [
                    np.bincount(found.row, (head - tilt) * f, minlength=mine.size)
                    for f in (seen, away, away**2)
                ]
                with np.errstate(invalid="ignore", divide="ignore"):
                    mass = there[part, at] + change[0]
                    second = (there[part, at] * answer[mine, at] + change[2]) / mass
                    spread = np.maximum(second - (change[1] / mass) ** 2, 0.0)
                answer[mine, at] = np.where(table.observed[mine, at], answer[mine, at], spread)
        free = np.flatnonzero(~known)
        if free.size:
            posterior = self._label_posterior(table.rows(free))[0]
            numbers = self._states.moments(1)
            mean = posterior @ numbers
            spread = (numbers - mean[:, None]) ** 2 + self._states.variances()
            answer[free, self._at] = (posterior * spread).sum(axis=1)
        return answer

    def covariance_table(self, evidence: Table, columns: list[int]) -> FloatArray:
        answer = self.base.covariance_table(evidence, columns)
        if not self._is_open(evidence)[0]:
            return self._with_label_variance(answer, evidence, columns)
        centre = self.base.mean_table(evidence)[0]
        inside = [j for j, at in enumerate(self._completer.columns) if at in columns]
        place = [columns.index(self._completer.columns[j]) for j in inside]

        def away(found: Completions) -> FloatArray:
            """(N, d) distances of the completions from the means, 0 where there is no value."""
            parts = []
            for j in inside:
                at = self._completer.columns[j]
                variable, values = self.schema.variables[at], self._completer.numbers(found, j)
                seen = powers(variable, values, 0) * float(not evidence.observed[0, at])
                parts.append((powers(variable, values, 1) - centre[at]) * seen)
            return np.stack(parts, axis=1) if parts else np.zeros((found.row.size, 0))

        if evidence.observed[0, self._at]:
            for _, found, head, tilt, _ in self._given_label(evidence, _COVARIANCE):
                x = away(found)
                moved = (x * (head - tilt)[:, None]).T @ x
                mean = (head - tilt) @ x  # the circuit's own is zero
                answer[np.ix_(place, place)] += moved - np.outer(mean, mean)
            return answer
        if self._at in columns:
            i = columns.index(self._at)
            numbers = self._states.moments(1)
            for _, _, found in self._completer.completed(evidence, n_drawn=_COVARIANCE):
                change = (np.exp(found.log_head) - np.exp(found.log_tilt)) @ numbers
                x = away(found)
                moved = (found.weight * (change - found.weight @ change)) @ (x - found.weight @ x)
                answer[i, place] += moved
                answer[place, i] += moved
        return self._with_label_variance(answer, evidence, columns)

    def _with_label_variance(
        self, matrix: FloatArray, evidence: Table, columns: list[int]
    ) -> FloatArray:
        """The matrix with the variance of a free label on its diagonal."""
        if self._at in columns and not evidence.observed[0, self._at]:
            i = columns.index(self._at)
            matrix[i, i] = self.variance_table(evidence)[0, self._at]
        return matrix

    # --- samples and completions ------------------------------------------------------------------

    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        answer = table.values.copy()
        known = table.observed[:, self._at]
        free, bound = np.flatnonzero(~known), np.flatnonzero(known & self._is_open(table))
        if free.size:
            drawn, _, log_head = self._drawn(table.rows(free), None, rng)
            rising = np.cumsum(np.exp(log_head), axis=1)
            u = rng.random(free.size) * rising[:, -1]
            label = np.minimum((rising <= u[:, None]).sum(axis=1), rising.shape[1] - 1)
            drawn[:, self._at] = self._states.draw(label, rng)
            answer[free] = drawn
        while bound.size:  # rejection: q / t is at most exp(limit)
            tries = np.repeat(bound, _TRIES)
            label = self._states.codes(table.values[tries, self._at])
            drawn, log_tilt, log_head = self._drawn(table.rows(tries), label, rng)
            every = np.arange(tries.size)
            accept = np.exp(log_head[every, label] - log_tilt[every, label] - self.pool.limit)
            taken = (rng.random(tries.size) < accept).reshape(-1, _TRIES)
            hit = taken.any(axis=1)
            first = taken.argmax(axis=1) + _TRIES * np.arange(bound.size)
            answer[bound[hit]] = drawn[first[hit]]
            bound = bound[~hit]
        return answer

    def _drawn(
        self, table: Table, label: IntArray | None, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(n, D) rows with missing cells drawn by the circuit, and (n, Y) log t and log q there."""
        values = self._completer.sampled(table, label, rng)
        whole = replace(table, values=values, observed=np.ones(values.shape, dtype=bool))
        return values, *self._completer.complete(whole)

    def mpe_table(self, table: Table) -> FloatArray:
        """The circuit's completion of x, then the label likeliest given it: a decoding."""
        answer = self.base.mpe_table(table)
        free = np.flatnonzero(~table.observed[:, self._at])
        if free.size:
            whole = replace(
                table.rows(free),
                values=answer[free],
                observed=np.ones((free.size, len(self.schema)), dtype=bool),
            )
            value, log_density = self._states.modes()
            best = (self._completer.complete(whole)[1] + log_density).argmax(axis=1)
            answer[free, self._at] = value[best]
        return answer

    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Density:
        if self.label not in keep and not evidence.observed[0, self._at]:
            return self.base.restrict(keep, evidence)
        return Conditioned(self, keep, evidence)

    # --- storage ----------------------------------------------------------------------------------

    def to_record(self) -> Record:
        report = None if self.fit_report is None else self.fit_report.to_json()
        header = {
            "schema": self.schema.to_json(),
            "label": self.label,
            "fit_report": report,
            "pool": {name: getattr(self.pool, name) for name in ("tilt", "trees", "limit")},
        }
        assert not isinstance(self.trees, AcrossTrees)  # of federations alone
        arrays = {f"tree.{name}": array for name, array in self.tree.arrays().items()}
        arrays |= {f"trees.{name}": array for name, array in self.trees.arrays().items()}
        arrays |= {"pool.shift": self.pool.shift, "pool.classes": self.pool.classes}
        return Record("headed_circuit", header, arrays)

    @staticmethod
    def from_record(record: Record) -> HeadedCircuit:
        """Inverse of `to_record`; anything that is not as it should be is a `StorageError`."""
        try:
            return HeadedCircuit(*parts_of(record))
        except StorageError:
            raise
        except MALFORMED as error:
            raise StorageError(f"the headed circuit in the file is not valid: {error}") from None
