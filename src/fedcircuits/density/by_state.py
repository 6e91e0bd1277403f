"""Events for a density whose hooks take values alone: summed over the states of the variables.

Where a model knows of a number only which state of its grid it is in, nothing else depends on the
place inside the state. A cell that is known to lie in a set is then one row for every state that
the set meets, with any value of that state, weighted by the share of the state that belongs to the
set; sums over these rows are exact. Codes are states of one value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from itertools import product
from math import prod
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.density.density import Density
from fedcircuits.errors import QueryError
from fedcircuits.schema import Table, Variable
from fedcircuits.schema.events import CodeSet, NumberSet, Region
from fedcircuits.schema.events.cut import Cut

MOST_ROWS = 20_000  # that one row may become
D = TypeVar("D", bound=Density)


@dataclass(frozen=True, eq=False)
class Part:
    """The part of a set that lies in one state of a variable.

    Attributes:
        value: an encoded value of highest density there.
        log_factor: log of P(part) over the density at the value, both given the state.
        state: number of the state.
        cut: what lies inside; None for a code.
    """

    value: float
    log_factor: float
    state: int = 0
    cut: Cut | None = None


def parts_of(variable: Variable, region: Region) -> list[Part]:
    """The parts of a set, state by state."""
    if isinstance(region, CodeSet):
        return [Part(float(code), 0.0) for code in np.flatnonzero(region.mask)]
    assert isinstance(region, NumberSet)
    if variable.grid is None:
        raise QueryError(f"variable {variable.name!r} has no grid, so no states to sum over")
    cut = Cut.of(variable.grid, region)
    values, log_density = cut.modes()
    meets = np.flatnonzero((cut.shares > 0) & (log_density > -np.inf))
    log_factor = np.log(cut.shares[meets]) - log_density[meets]
    return [
        Part(float(values[s]), float(f), int(s), cut)
        for s, f in zip(meets, log_factor, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Expanded:
    """Rows with events as rows with values.

    Attributes:
        rows: values alone; m in all.
        owner: (m,) the row each one belongs to.
        log_factor: (m,) to be added to their log-densities.
        inside: by column (m,) the part of each row's event, None where it has none.
    """

    rows: Table
    owner: IntArray
    log_factor: FloatArray
    inside: dict[int, list[Part | None]]

    @staticmethod
    def of(table: Table) -> Expanded:
        """The rows of a table, one for every combination of states that its events meet."""
        columns = [c for c in range(len(table.schema)) if table.regions_at(c)]
        of_cell: dict[int, list[list[Part] | None]] = {}
        for column in columns:
            variable = table.schema.variables[column]
            of_cell[column] = [None] * len(table)
            for region, rows in table.regions_at(column):
                parts = parts_of(variable, region)
                for row in rows:
                    of_cell[column][row] = parts
        owner: list[int] = []
        chosen: list[tuple[Part | None, ...]] = []
        for row in range(len(table)):
            cells = [of_cell[column][row] for column in columns]
            options: list[list[Part | None]] = [[None] if c is None else [*c] for c in cells]
            size = prod(len(option) for option in options)
            if size > MOST_ROWS:
                raise QueryError(
                    f"the events of row {table.index[row]!r} meet {size} combinations of states, "
                    f"at most {MOST_ROWS} are summed: give fewer or narrower events"
                )
            found = list(product(*options))
            chosen += found
            owner += [row] * len(found)
        which = np.array(owner, dtype=np.int64)
        wide = table.rows(which)
        values, observed = wide.values.copy(), wide.observed.copy()
        factor = np.zeros(which.size)
        inside: dict[int, list[Part | None]] = {}
        for at, column in enumerate(columns):
            inside[column] = [parts[at] for parts in chosen]
            for row, part in enumerate(inside[column]):
                if part is not None:
                    values[row, column], observed[row, column] = part.value, True
                    factor[row] += part.log_factor
        return Expanded(
            replace(wide, values=values, observed=observed, events=None), which, factor, inside
        )

    def log_weights(self, model: Density) -> FloatArray:
        """(m,) log-probability of every row's part of the evidence."""
        if not len(self.rows):
            return np.zeros(0)
        return np.asarray(model.log_prob_table(self.rows) + self.log_factor)

    def shares(self, model: Density, n: int) -> FloatArray:
        """(m,) probability of every row given its owner's evidence; they sum to one for an owner.

        Args:
            model: asked.
            n: number of owners.
        """
        log_weight = self.log_weights(model)
        top = np.full(n, -np.inf)
        np.maximum.at(top, self.owner, log_weight)
        weight = np.exp(log_weight - np.where(np.isfinite(top), top, 0.0)[self.owner])
        total = np.bincount(self.owner, weight, minlength=n)
        return np.divide(
            weight, total[self.owner], out=np.zeros_like(weight), where=total[self.owner] > 0
        )

    def filled(self, column: int, answer: FloatArray, of_part: Callable[[Part], float]) -> None:
        """Put what a part says in place of what its single value would say, in answer (m, D)."""
        for row, part in enumerate(self.inside[column]):
            if part is not None and part.cut is not None:
                answer[row, column] = of_part(part)

    def moments(self, model: Density, order: int) -> FloatArray:
        """(m, D) moments given every row's part of the evidence."""
        answer = model.moment_table(self.rows, order).copy()
        for column in self.inside:
            tables: dict[Cut, FloatArray] = {}

            def of_part(part: Part, tables: dict[Cut, FloatArray] = tables) -> float:
                assert part.cut is not None
                if part.cut not in tables:
                    tables[part.cut] = part.cut.moments(order)
                return float(tables[part.cut][part.state])

            self.filled(column, answer, of_part)
        return answer

    def variances(self, model: Density) -> FloatArray:
        """(m, D) variances given every row's part of the evidence; 0 where there is no value."""
        answer = np.nan_to_num(model.variance_table(self.rows), posinf=np.inf)
        for column in self.inside:
            tables: dict[Cut, FloatArray] = {}

            def of_part(part: Part, tables: dict[Cut, FloatArray] = tables) -> float:
                assert part.cut is not None
                if part.cut not in tables:
                    tables[part.cut] = part.cut.variances()
                return float(tables[part.cut][part.state])

            self.filled(column, answer, of_part)
        return answer

    def summed(self, weights: FloatArray, values: FloatArray, n: int) -> FloatArray:
        """(n, ...) sums over every owner's rows of values (m, ...) with weights (m,)."""
        answer = np.zeros((n, *values.shape[1:]))
        shape = (-1, *([1] * (values.ndim - 1)))
        np.add.at(answer, self.owner, weights.reshape(shape) * values)
        return answer


@runtime_checkable
class KnowsEvents(Protocol):
    """A density of which some variables' own distribution takes events as they are."""

    def alone(self, known: BoolArray) -> Density | None:
        """Return a density with the same distribution of the known columns (D,), if there is."""
        ...


def _log_prob(model: Density, table: Table) -> FloatArray:
    known = np.asarray(table.known.any(axis=0))
    alone = model.alone(known) if isinstance(model, KnowsEvents) else None
    if alone is not None:
        return alone.log_prob_table(table)
    parts = Expanded.of(table)
    log_weight = parts.log_weights(model)
    answer = np.full(len(table), -np.inf)
    np.logaddexp.at(answer, parts.owner, log_weight)
    return answer


def _moment(model: Density, table: Table, order: int) -> FloatArray:
    parts = Expanded.of(table)
    share = parts.shares(model, len(table))
    return parts.summed(share, parts.moments(model, order), len(table))


def _variance(model: Density, table: Table) -> FloatArray:
    parts, n = Expanded.of(table), len(table)
    share = parts.shares(model, n)[:, None]
    there, first = parts.moments(model, 0), parts.moments(model, 1)
    mean = np.divide(first, there, out=np.zeros_like(first), where=there > 0)
    ones = np.ones(len(parts.owner))
    total = parts.summed(ones, share * there, n)
    with np.errstate(invalid="ignore", divide="ignore"):
        middle = parts.summed(ones, share * first, n) / total
        spread = parts.variances(model) + (mean - middle[parts.owner]) ** 2
        return np.asarray(parts.summed(ones, share * there * spread, n) / total)


def _covariance(model: Density, evidence: Table, columns: list[int]) -> FloatArray:
    parts = Expanded.of(evidence)
    share = parts.shares(model, 1)
    first = parts.moments(model, 1)[:, columns]
    away = first - share @ first
    answer = np.einsum("m,mi,mj->ij", share, away, away)
    spread = parts.variances(model)
    for row in np.flatnonzero(share > 0):
        inner = model.covariance_table(parts.rows.rows(slice(row, row + 1)), columns)
        for i, column in enumerate(columns):
            if column in parts.inside and parts.inside[column][row] is not None:
                inner[i, i] = spread[row, column]
        answer += share[row] * inner
    return np.asarray(answer)


def _posterior(model: Density, table: Table, column: int) -> FloatArray:
    parts = Expanded.of(table.hide(column))
    share = parts.shares(model, len(table))
    found = np.nan_to_num(model.posterior_table(parts.rows, column))
    answer = parts.summed(share, found, len(table))
    with np.errstate(invalid="ignore"):
        return np.asarray(answer / answer.sum(axis=1, keepdims=True))


def _sample(model: Density, table: Table, rng: np.random.Generator) -> FloatArray:
    parts = Expanded.of(table)
    share = parts.shares(model, len(table))
    # Owners are in order, so row i owns the stretch from i to i + 1 of the summed shares.
    chosen = np.searchsorted(np.cumsum(share), np.arange(len(table)) + rng.random(len(table)))
    first = np.searchsorted(parts.owner, np.arange(len(table)))
    last = np.searchsorted(parts.owner, np.arange(len(table)), side="right") - 1
    chosen = np.clip(chosen, first, last)
    answer = model.sample_table(parts.rows.rows(chosen), rng).copy()
    for column, inside in parts.inside.items():
        for row, at in enumerate(chosen):
            part = inside[at]
            if part is not None and part.cut is not None:
                answer[row, column] = part.cut.draw(np.array([part.state]), rng)[0]
    return answer


def _mpe(model: Density, table: Table) -> FloatArray:
    parts = Expanded.of(table)
    values = model.mpe_table(parts.rows)
    level = model.log_prob_table(parts.rows.completed(values))
    answer = table.values.copy()
    best = np.full(len(table), -np.inf)
    for row, owner in enumerate(parts.owner):
        if level[row] > best[owner]:
            best[owner], answer[owner] = level[row], values[row]
    return answer


_BY_STATE: dict[str, Callable[..., FloatArray]] = {
    "log_prob_table": _log_prob,
    "moment_table": _moment,
    "variance_table": _variance,
    "covariance_table": _covariance,
    "posterior_table": _posterior,
    "sample_table": _sample,
    "mpe_table": _mpe,
}


def _always(density: Density) -> bool:
    del density
    return True


def events_by_state(density: type[D]) -> type[D]:
    """Let the hooks of a class of densities that take values alone take events as well.

    The schema's grids must be those of the model, and nothing in the model may depend on the place
    of a number inside a state.
    """

    def answering(plain: Callable[..., Any], by_state: Callable[..., FloatArray]) -> Any:
        @wraps(plain)
        def hook(self: D, table: Table, *args: Any) -> Any:
            if table.events is not None and (table.known & ~table.observed).any():
                return by_state(self, table, *args)
            return plain(self, table, *args)

        return hook

    for name, by_state in _BY_STATE.items():
        setattr(density, name, answering(getattr(density, name), by_state))
    setattr(density, "answers_events", property(_always))  # noqa: B010
    return density
