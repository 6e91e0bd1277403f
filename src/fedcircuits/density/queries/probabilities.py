"""Probabilities of events, distribution functions, quantiles, entropy and mutual information."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.arrays import FloatArray
from fedcircuits.density.evidence import (
    Given,
    Impossible,
    TakesEvidence,
    distinct_names,
    is_one,
    query,
)
from fedcircuits.density.queries.cells import cells_of, search_quantile
from fedcircuits.errors import QueryError
from fedcircuits.schema import Table
from fedcircuits.schema.cells import CellError, encode_values
from fedcircuits.schema.events import Region, as_event, below, not_
from fedcircuits.schema.numbers import as_float
from fedcircuits.schema.table import Unknown
from fedcircuits.schema.times import from_numbers

MOST_CELLS = 100_000  # of a joint distribution that is enumerated

_Of = Callable[[Table], FloatArray]


class Probabilities(TakesEvidence):
    """Questions whose answer is a probability, or the value at one."""

    @query
    def probability(
        self,
        event: Mapping[str, Any],
        given: Given | None = None,
        *,
        impossible: Impossible = "error",
        unknown: Unknown = "error",
    ) -> Any:
        """P(event | given): a float for a mapping (or nothing) given, a Series for rows.

        Args:
            event: by name an event (`fc.between(30, 40)`, `fc.one_of([...])`, ...) or a value; all
                must hold. A single value of a continuum has probability zero.
            given: evidence: values or events by name, or rows.
            impossible: whether evidence of probability zero is an error or gives NaN.
            unknown: whether an unseen category in the evidence is an error or a missing value.
        """
        if not isinstance(event, Mapping) or not event:
            raise QueryError(f"an event is a mapping from names to values or events, found {event}")
        asked = self._evidence({name: as_event(value) for name, value in event.items()})
        table = self._evidence(given, unknown)
        possible = self._check_possible(table, impossible)
        answer = np.full(len(table), np.nan)
        rows = table.rows(possible)
        joint = rows
        for column in range(len(self.schema)):
            for region, _ in asked.regions_at(column):
                joint = joint.meeting(column, [region])
        log_ratio = self.log_prob_table(joint) - self.log_prob_table(rows)
        answer[possible] = np.minimum(np.exp(log_ratio), 1.0)
        if is_one(given):
            return float(answer[0])
        return pd.Series(answer, index=table.index, name="probability")

    @query
    def cdf(
        self,
        name: str,
        x: Any,
        given: Given | None = None,
        *,
        impossible: Impossible = "error",
        unknown: Unknown = "error",
    ) -> Any:
        """P(name <= x | given, there is a value).

        Where "observed to be missing" is a state of the model it is left out, as in moments;
        `probability` counts it as a value that belongs to no event.

        One x gives a float, or a Series for rows; a list of x a Series by x, or a DataFrame with a
        column for each x.
        """
        column = self._numeric(name)
        listed = _listed(x)
        regions = [self._region(column, below(each, inclusive=True)) for each in listed]
        return self._at_points(
            lambda t: self._values_masses(t, column, regions), x, given, impossible, unknown
        )

    @query
    def quantile(
        self,
        name: str,
        p: Any,
        given: Given | None = None,
        *,
        impossible: Impossible = "error",
        unknown: Unknown = "error",
    ) -> Any:
        """The smallest x with cdf(name, x, given) >= p, for p strictly between 0 and 1.

        One p gives a float, or a Series for rows; a list of p a Series by p, or a DataFrame with a
        column for each p. Of a variable of dates or times the answers are dates or times.
        """
        column = self._numeric(name)
        try:
            shares = [as_float(each) for each in _listed(p)]
        except (TypeError, ValueError):
            raise QueryError(f"p is a number or a list of numbers, found {p!r}") from None
        odd = [each for each in shares if not 0 < each < 1]
        if odd:
            raise QueryError(f"p lies strictly between 0 and 1, found {odd[0]:g}")

        def of(table: Table) -> FloatArray:
            if not table.known[:, column].any():
                found = self.quantile_table(table, column, np.array(shares))
                if found is not None:
                    return found
            rows = (table.rows(slice(i, i + 1)) for i in range(len(table)))
            return np.array([self._quantiles(row, column, shares) for row in rows])

        found = self._at_points(of, p, given, impossible, unknown)
        time = self.schema.variables[column].time
        return found if time is None else _as_times(found, time)

    @query
    def interval(
        self,
        name: str,
        level: float = 0.9,
        given: Given | None = None,
        *,
        impossible: Impossible = "error",
        unknown: Unknown = "error",
    ) -> Any:
        """The central interval with that probability: its ends are quantiles.

        A tuple (low, high); for rows a DataFrame with the columns "low" and "high".
        """
        try:
            level = as_float(level)
        except (TypeError, ValueError):
            raise QueryError(f"level is a number, found {level!r}") from None
        if not 0 < level < 1:
            raise QueryError(f"level lies strictly between 0 and 1, found {level!r}")
        ends = [(1 - level) / 2, (1 + level) / 2]
        found = self.quantile(name, ends, given, impossible=impossible, unknown=unknown)
        if isinstance(found, pd.Series):
            return tuple(found.tolist())
        return found.set_axis(["low", "high"], axis=1)

    # --- information ------------------------------------------------------------------------------

    @query
    def entropy(self, names: str | Iterable[str], given: Given | None = None) -> float:
        """Entropy of some discrete variables together, in nats, by enumeration.

        A number with few values counts by these, everything else it may be being one value more.
        """
        chosen = distinct_names(names, "entropy")
        for name in chosen:
            if self.schema[name].outcomes is None:
                raise QueryError(
                    f"variable {name!r} is a continuum: it has no entropy of its own; ask "
                    "mutual_information, or probability of events"
                )
        table = self._evidence(self._one_row(given, "entropy"))
        self._check_possible(table, "error")
        columns = [self.schema.position(name) for name in chosen]
        cells = [self._cells(table, column) for column in columns]
        size = prod(len(each) for each in cells)
        if size > MOST_CELLS:
            raise QueryError(
                f"{' x '.join(str(len(each)) for each in cells)} = {size} combinations of values; "
                f"entropy enumerates at most {MOST_CELLS}: ask for fewer variables"
            )
        joint = table.rows(np.zeros(size, dtype=np.int64))
        places = np.unravel_index(np.arange(size), [len(each) for each in cells])
        for column, regions, place in zip(columns, cells, places, strict=True):
            joint = joint.meeting(column, regions, np.asarray(place, dtype=np.int64))
        share = np.exp(self.log_prob_table(joint) - self.log_prob_table(table))
        share = share / share.sum()
        return float(-_times_log(share, share).sum())

    @query
    def mutual_information(self, a: str, b: str, given: Given | None = None) -> float:
        """Mutual information of two variables, in nats.

        Of categories it is exact. Numbers count by the states of their grid, within which a model
        on grids knows no dependence, so that it is exact there too; a number without a grid counts
        by cells of equal probability (`density.cells`), which gives a lower bound.
        """
        return float(self.mutual_information_matrix([a, b], given).to_numpy()[0, 1])

    @query
    def mutual_information_matrix(
        self, names: Iterable[str] | None = None, given: Given | None = None
    ) -> pd.DataFrame:
        """Mutual information of all pairs of some variables (all by default), in nats.

        The diagonal holds each variable's entropy by the same cells.
        """
        given = self._one_row(given, "mutual information")
        known = set(given or {})
        every = [n for n in self.schema.names if n not in known]
        chosen = distinct_names(every if names is None else names, "mutual information", least=2)
        table = self._evidence(given)
        self._check_possible(table, "error")
        columns = [self.schema.position(name) for name in chosen]
        cells = [self._cells(table, column) for column in columns]
        shares = [self._masses(table, c, r)[0] for c, r in zip(columns, cells, strict=True)]
        answer = np.zeros((len(chosen), len(chosen)))
        for i, column in enumerate(columns):
            answer[i, i] = -_times_log(shares[i], shares[i]).sum()
            live = np.flatnonzero(shares[i] > 0)
            rows = table.rows(np.zeros(live.size, dtype=np.int64))
            rows = rows.meeting(column, [cells[i][at] for at in live], np.arange(live.size))
            for j in range(i):
                given_i = self._masses(rows, columns[j], cells[j])  # (k_i, k_j)
                joint = shares[i][live, None] * given_i
                apart = shares[i][live, None] * joint.sum(axis=0)
                ratio = np.divide(joint, apart, out=np.ones_like(joint), where=joint > 0)
                answer[i, j] = answer[j, i] = max(float((joint * np.log(ratio)).sum()), 0.0)
        return pd.DataFrame(answer, index=chosen, columns=chosen)

    # --- helpers ----------------------------------------------------------------------------------

    def _numeric(self, name: str) -> int:
        """Column of a variable that has numbers."""
        column = self.schema.position(name)
        self._check_numeric(self.schema.variables[column])
        return column

    def _region(self, column: int, event: Any) -> Region:
        variable = self.schema.variables[column]
        try:
            region: Region = event.region(variable, partial(encode_values, unknown="error"))
        except CellError as error:
            raise error.kind(
                f"variable {variable.name!r}: expected {error.expected}; found {event}"
            ) from None
        return region

    def _masses(self, table: Table, column: int, regions: list[Region]) -> FloatArray:
        """(n, k) P(set | evidence), evidence about the column itself included."""
        answer = np.empty((len(table), len(regions)))
        seen = np.flatnonzero(table.observed[:, column])
        values = table.values[seen, column]
        for at, region in enumerate(regions):
            answer[seen, at] = region.contains(values)
        free = ~table.known[:, column]
        if free.any():
            answer[free] = self.masses_table(table.rows(free), column, regions)
        for own, rows in table.regions_at(column):
            met = [own, *(own.meet(region) for region in regions)]
            masses = self.masses_table(table.rows(rows), column, met)
            with np.errstate(invalid="ignore"):
                answer[rows] = masses[:, 1:] / masses[:, :1]
        return np.minimum(answer, 1.0)

    def _values_masses(self, table: Table, column: int, regions: list[Region]) -> FloatArray:
        """(n, k) P(set | evidence, there is a value)."""
        if not self.schema.variables[column].missing_state:
            return self._masses(table, column, regions)
        anything = self._region(column, not_([]))
        masses = self._masses(table, column, [anything, *regions])
        with np.errstate(invalid="ignore"):
            return np.asarray(masses[:, 1:] / masses[:, :1])

    def _quantiles(self, row: Table, column: int, shares: list[float]) -> list[float]:
        """Quantiles of one column given one row."""

        def cdf(points: FloatArray) -> FloatArray:
            regions = [self._region(column, below(float(x), inclusive=True)) for x in points]
            return np.asarray(self._values_masses(row, column, regions)[0])

        variable = self.schema.variables[column]
        if variable.numbers is not None:
            points = np.sort(variable.numbers)
            upto = cdf(points)
            found = [int(np.searchsorted(upto, p)) for p in shares]
            return [float(points[min(at, points.size - 1)]) for at in found]
        return [search_quantile(cdf, p) for p in shares]

    def _cells(self, table: Table, column: int) -> list[Region]:
        """Disjoint sets that hold all the values of a column."""

        def quantiles(shares: list[float]) -> list[float]:
            return self._quantiles(table, column, shares)

        return cells_of(self.schema.variables[column], quantiles)

    def _at_points(
        self, of: _Of, points: Any, given: Given | None, impossible: Impossible, unknown: Unknown
    ) -> Any:
        """Answers (n, k) at k points, in the form that points and evidence ask for."""
        table = self._evidence(given, unknown)
        possible = self._check_possible(table, impossible)
        listed = _listed(points)
        answer = np.full((len(table), len(listed)), np.nan)
        if possible.any():
            answer[possible] = of(table.rows(possible))
        one_point = np.ndim(points) == 0
        if is_one(given):
            return float(answer[0, 0]) if one_point else pd.Series(answer[0], index=listed)
        if one_point:
            return pd.Series(answer[:, 0], index=table.index)
        return pd.DataFrame(answer, index=table.index, columns=listed)


def _listed(points: Any) -> list[Any]:
    return [points] if np.ndim(points) == 0 else list(points)


def _as_times(found: Any, time: str) -> Any:
    """Numbers as dates, times or durations, in the form they have."""
    if isinstance(found, pd.DataFrame):
        return found.apply(lambda column: _as_times(column, time))
    if isinstance(found, pd.Series):
        return pd.Series(from_numbers(found.to_numpy(), time), index=found.index)
    return pd.Series(from_numbers(np.array([found]), time))[0]


def _times_log(share: FloatArray, of: FloatArray) -> FloatArray:
    """share * log(of), 0 where the share is 0."""
    return np.asarray(share * np.log(np.where(share > 0, of, 1.0)))
