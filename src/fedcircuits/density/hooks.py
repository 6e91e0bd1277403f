"""What the author of a density writes: questions over encoded tables.

Four answers are needed (`log_prob_table`, `sample_table`, `mpe_table`, `moment_table`). Posteriors
and variances are made of these by default, which a density that can do better replaces; covariances
are its own to give.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedcircuits import encoding
from fedcircuits.arrays import FloatArray
from fedcircuits.errors import QueryError
from fedcircuits.schema import Schema, Table, Variable
from fedcircuits.schema.events import Region

if TYPE_CHECKING:
    from fedcircuits.density.batched import Place


class Hooks(ABC):
    """A joint distribution as its author sees it.

    Hooks work on `Table`s: `values` (n, D) and `observed` (n, D); where not observed, the value
    is marginalised (`log_prob_table`) or filled in (`sample_table`, `mpe_table`).
    """

    schema: Schema

    @property
    def place(self) -> Place | None:
        """Where the density stays, if it must be asked by message (`density.batched`)."""
        return None

    @abstractmethod
    def log_prob_table(self, table: Table) -> FloatArray:
        """(n,) log-density of the observed cells of each row."""

    @abstractmethod
    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        """(n, D) the rows with missing cells drawn from the conditional given the observed ones.

        Every row has evidence of positive probability: the caller has seen to that.
        """

    @abstractmethod
    def mpe_table(self, table: Table) -> FloatArray:
        """(n, D) the rows with missing cells filled by a most probable completion."""

    def completed_table(self, table: Table) -> tuple[FloatArray, FloatArray]:
        """(n, D) the rows as `mpe_table` completes them, and (n,) their log-density."""
        values = self.mpe_table(table)
        return values, self.log_prob_table(table.completed(values))

    @abstractmethod
    def moment_table(self, table: Table, order: int) -> FloatArray:
        """(n, D) E[x_j**order | observed cells of the row], of the values as numbers.

        Where "observed to be missing" is a state, it counts as 0: order 0 gives the probability
        that there is a value.
        """

    def variance_table(self, table: Table) -> FloatArray:
        """(n, D) Var[x_j | observed cells of the row], of the value given that there is one.

        The default subtracts raw moments and so has no digit left where the mean is large against
        the spread; a density that can do better does (circuits are exact).
        """
        first, second = (self._moments(table, order) for order in (1, 2))
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(np.maximum(second - first**2, 0.0))

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Number of free parameters."""

    @property
    @abstractmethod
    def mpe_is_exact(self) -> bool:
        """Whether `mpe` finds a true maximum (deterministic circuits) or a decoding."""

    @property
    def answers_events(self) -> bool:
        """Whether the hooks heed `Table.events`: sets of values that cells are known to lie in."""
        return False

    @property
    def is_exact(self) -> bool:
        """Whether every answer is exact.

        One that is not answers by estimates where cells are missing, and exactly elsewhere;
        `predict_proba(..., with_error=True)` gives their standard errors.
        """
        return True

    @property
    def exact_part(self) -> Hooks:
        """A density of the same variables that is exact throughout; itself where it is."""
        return self

    @property
    def column_groups(self) -> dict[str, tuple[str, ...]]:
        """Names of variables that belong together, such as those of one client; none by default."""
        return {}

    @abstractmethod
    def to_record(self) -> encoding.Record:
        """Header and arrays for `save` (see `fedcircuits.encoding`)."""

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        """(n, k) probability of each outcome of one variable given the other observed cells.

        NaN in rows whose evidence has probability zero.
        The default evaluates the joint once for every outcome; a circuit does it in one pass.
        """
        codes = outcome_codes(self.schema.variables[column])
        log_joint = np.empty((len(table), codes.size))
        for at, code in enumerate(codes):
            values, observed = table.values.copy(), table.observed.copy()
            values[:, column], observed[:, column] = code, True
            asked = replace(table, values=values, observed=observed)
            log_joint[:, at] = self.log_prob_table(asked)
        return normalised(log_joint)

    def masses_table(self, table: Table, column: int, regions: list[Region]) -> FloatArray:
        """(n, k) probability that one variable lies in each of k sets, given the other cells.

        What is known of the variable itself is not looked at; NaN in rows whose evidence has
        probability zero. The default evaluates the evidence once, and once more for every set.
        """
        table = table.hide(column)
        n, k = len(table), len(regions)
        base = self.log_prob_table(table)
        wide = table.rows(np.repeat(np.arange(n), k))
        which = np.tile(np.arange(k), n)
        joint = self.log_prob_table(wide.meeting(column, regions, which)).reshape(n, k)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.exp(joint - base[:, None]))

    def quantile_table(self, table: Table, column: int, shares: FloatArray) -> FloatArray | None:
        """(n, k) quantiles of one variable given the other cells, None where they are searched.

        What is known of the variable itself is not looked at.
        """
        del table, column, shares
        return None

    def posterior_with_error(self, table: Table, column: int) -> tuple[FloatArray, FloatArray]:
        """(n, k) `posterior_table` and the standard error of each number, 0 where it is exact."""
        answer = self.posterior_table(table, column)
        return answer, np.zeros(answer.shape)

    def covariance_table(self, evidence: Table, columns: list[int]) -> FloatArray:
        """(d, d) covariance of some columns given one row of evidence; a hook without a default."""
        del evidence, columns
        raise QueryError(f"{type(self).__name__} does not answer covariance")

    def _moments(self, table: Table, order: int) -> FloatArray:
        """(n, D) moments of the value given that there is one."""
        raw = self.moment_table(table, order)
        if not any(variable.missing_state for variable in self.schema):
            return raw
        with np.errstate(invalid="ignore"):
            return np.asarray(raw / self.moment_table(table, 0))

    def moment_of(self, table: Table, column: int, order: int) -> FloatArray:
        """(n,) moment of one column's value given that there is one; see `moment_table`.

        The default computes those of all columns; a density that can do with less does.
        """
        return np.asarray(self._moments(table, order)[:, column])

    def moment_error(self, table: Table, column: int, order: int) -> FloatArray:
        """(n,) standard error of `moment_of`, 0 where it is exact."""
        del column, order
        return np.zeros(len(table))

    def mean_table(self, table: Table) -> FloatArray:
        """(n, D) means of the value given that there is one, 0 where there cannot be."""
        return np.nan_to_num(self._moments(table, 1), posinf=np.inf, neginf=-np.inf)

    def _conditional_means(self, table: Table) -> FloatArray:
        """(n, D) the mean of a number, rounded where it is whole, the likeliest category."""
        values = self._moments(table, 1)
        for at, variable in enumerate(self.schema):
            gaps = np.flatnonzero(~table.observed[:, at])
            if variable.is_coded and gaps.size:
                posterior = self.posterior_table(table.rows(gaps), at)
                values[gaps, at] = posterior.argmax(axis=1)
            elif variable.kind == "count":
                values[gaps, at] = np.round(values[gaps, at])
        return self._inside_events(table, values)

    def _inside_events(self, table: Table, values: FloatArray) -> FloatArray:
        """(n, D) values with a likeliest one where a cell's is outside the event about it."""
        for at in range(len(self.schema)):
            for region, rows in table.regions_at(at):
                outside = rows[~region.contains(values[rows, at])]
                if outside.size:
                    values[outside, at] = self.mpe_table(table.rows(outside))[:, at]
        return values


def normalised(log_joint: FloatArray) -> FloatArray:
    """(n, k) probabilities from log-weights (n, k); NaN in rows without a finite one."""
    top = log_joint.max(axis=1, keepdims=True)  # (n, 1)
    weight = np.exp(log_joint - np.where(np.isfinite(top), top, 0.0))
    with np.errstate(invalid="ignore"):
        return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def outcome_codes(variable: Variable) -> FloatArray:
    """(k,) encoded values of the outcomes of a variable."""
    if variable.is_coded:
        return np.arange(len(variable.categories), dtype=float)
    if variable.grid is None or not variable.grid.is_discrete:
        raise QueryError(f"variable {variable.name!r} has a continuum of values")
    return variable.grid.atoms


def powers(variable: Variable, values: FloatArray, order: int) -> FloatArray:
    """(n,) encoded values as numbers to a power; 0 for "observed to be missing" and for strings."""
    if variable.is_coded:
        numbers = np.zeros(len(variable.categories))
        numbers = numbers if variable.numbers is None else variable.numbers
        with np.errstate(over="ignore"):
            table = np.append(numbers**order, 0.0)
        return np.asarray(table[values.astype(np.int64)])
    there = np.isfinite(values)
    with np.errstate(over="ignore"):
        return np.where(there, np.where(there, values, 0.0) ** order, 0.0)
