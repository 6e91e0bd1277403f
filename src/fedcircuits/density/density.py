"""`Density`: the queries that every model answers, in names and original values.

Whoever writes a new density provides the hooks over encoded tables (`density/hooks.py`) and
`restrict`, and inherits every public query: DataFrames in, DataFrames and Series out, names and
original values throughout, missing cells marginalised exactly, evidence of probability zero refused
by row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, get_args

import numpy as np
import pandas as pd

from fedcircuits import encoding
from fedcircuits.arrays import FloatArray
from fedcircuits.density.fit_report import FitReport
from fedcircuits.density.hooks import Hooks, outcome_codes, powers
from fedcircuits.errors import ImpossibleEvidenceError, QueryError
from fedcircuits.schema import Data, Table, Variable
from fedcircuits.schema.table import Unknown
from fedcircuits.schema.variable import plain

Impossible = Literal["error", "nan"]
Given = Mapping[str, Any] | Data
Seed = int | np.random.Generator | None
P = ParamSpec("P")
Answer = TypeVar("Answer")
D = TypeVar("D", bound="Density")


def query(
    method: Callable[Concatenate[D, P], Answer],
) -> Callable[Concatenate[D, P], Answer]:
    """Marks a method of a density as a public query: every call passes `Density._query`."""

    @wraps(method)
    def asked(self: D, /, *args: P.args, **options: P.kwargs) -> Answer:
        return self._query(lambda density: method(density, *args, **options))

    return asked


class Density(Hooks):
    """A joint distribution over the variables of a schema, asked in names and original values."""

    fit_report: FitReport | None = None

    # --- likelihood -------------------------------------------------------------------------------

    @query
    def log_prob(self, rows: Data, *, unknown: Unknown = "error") -> pd.Series[float]:
        """Log-density of each row in nats, missing cells marginalised; an empty row has 0.

        Args:
            rows: a column that is absent, None, NaN or pd.NA is missing; extra columns are ignored.
            unknown: whether an unseen category is an error or a missing value.
        """
        table = self._rows(rows, unknown)
        return pd.Series(self.log_prob_table(table), index=table.index, name="log_prob")

    def mean_log_prob(self, rows: Data, *, unknown: Unknown = "error") -> float:
        """Mean log-density of the rows, nats per row."""
        return float(self.log_prob(rows, unknown=unknown).mean())

    # --- new densities ----------------------------------------------------------------------------

    @abstractmethod
    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Density:
        """The density of `keep` given the one row of `evidence`; all the rest is summed out."""

    def marginal(self, names: Iterable[str]) -> Density:
        """The density of some variables, the others summed out."""
        if isinstance(names, str):
            names = [names]
        keep = tuple(names)
        for name in keep:
            self.schema.position(name)
        if not keep or len(set(keep)) < len(keep):
            raise QueryError(f"marginal needs one or more different names, found {list(keep)}")
        return self.restrict(keep, Table.empty(self.schema, 1))

    @query
    def condition(self, /, given: Mapping[str, Any] | None = None, **values: Any) -> Density:
        """The density of the remaining variables given some values.

        Args:
            given: value by name; needed for names that are not Python identifiers.
            **values: the same as keywords.
        """
        evidence = self._evidence({**(given or {}), **values})
        keep = tuple(
            name for at, name in enumerate(self.schema.names) if not evidence.observed[0, at]
        )
        if not keep:
            raise QueryError("condition leaves no variable: every one of them is given")
        self._check_possible(evidence, "error")
        return self.restrict(keep, evidence)

    # --- predictions ------------------------------------------------------------------------------

    @query
    def predict_proba(
        self,
        data: Data,
        target: str,
        *,
        unknown: Unknown = "error",
        impossible: Impossible = "error",
    ) -> pd.DataFrame:
        """p(target | the other observed cells): one column for each original category value.

        Args:
            data: rows; the target's own column may be absent and is not looked at.
            target: a categorical or binary variable, or a number with few values.
            unknown: whether an unseen category is an error or a missing value.
            impossible: whether evidence of probability zero is an error or gives NaN.
        """
        at = self.schema.position(target)
        if self.schema.variables[at].outcomes is None:
            raise QueryError(
                f"variable {target!r} is {self.schema.variables[at].kind} with a continuum of "
                "values; ask expectation(), or condition(...).sample()"
            )
        _check_impossible(impossible)
        table = self._rows(data, unknown, without=target)
        proba = self.posterior_table(table, at)
        lost = np.flatnonzero(np.isnan(proba).any(axis=1))
        if impossible == "error" and lost.size:
            self._check_possible(table.rows(lost), "error")
            raise QueryError(
                f"{target!r} takes none of its listed values with positive probability in "
                f"{lost.size} row(s) (row label: {plain(table.index[lost[0]])!r}, ...): all its "
                "mass lies between or beyond them; ask expectation(), or with impossible='nan'"
            )
        return pd.DataFrame(
            proba, index=table.index, columns=self.schema.variables[at].outcome_labels
        )

    @query
    def predict(self, data: Data, target: str, *, unknown: Unknown = "error") -> pd.Series[Any]:
        """The most probable value of the target in each row; its mean if it is a continuum."""
        variable = self.schema[target]
        if variable.outcomes is None:
            table = self._rows(data, unknown, without=target)
            self._check_possible(table, "error")
            mean = self._moments(table, 1)[:, self.schema.position(target)]
            return pd.Series(mean, index=table.index, name=target)
        proba = self.predict_proba(data, target, unknown=unknown)
        labels = pd.Series(list(variable.outcomes)).to_numpy()
        best = labels[proba.to_numpy().argmax(axis=1)]
        answer = pd.Series(best, index=proba.index, name=target)
        answer.attrs |= proba.attrs
        return answer

    # --- completions ------------------------------------------------------------------------------

    @query
    def mpe(self, rows: Given | None = None, *, unknown: Unknown = "error") -> pd.DataFrame:
        """Rows with every missing cell filled by a most probable completion.

        `answer.attrs["method"]` says "exact" where the circuit is deterministic and "decoding"
        elsewhere: the better of the likeliest single tree (max-product) and of the likeliest branch
        at each sum. `answer.attrs["log_prob"]` lists the values of the completions.
        """
        table = self._evidence(rows, unknown)
        self._check_possible(table, "error")
        values, log_prob = self.completed_table(table)
        answer = self.schema.decode(values, table.index)
        answer.attrs["log_prob"] = log_prob.tolist()
        answer.attrs["method"] = "exact" if self.mpe_is_exact else "decoding"
        return answer

    @query
    def sample(
        self,
        n: int | None = None,
        given: Given | None = None,
        *,
        seed: Seed = None,
        unknown: Unknown = "error",
    ) -> pd.DataFrame:
        """Exact samples, unconditional or given evidence.

        Args:
            n: how many; with `given` rows, how many for each row (then in row order).
            given: values by name, or rows in which missing cells are to be drawn.
            seed: an integer or Generator for the same sample again.
            unknown: whether an unseen category is an error or a missing value.
        """
        times = 1 if n is None else _whole(n, "sample needs a whole number of samples >= 0")
        rng = np.random.default_rng(seed)
        table = self._evidence(given, unknown)
        self._check_possible(table, "error")
        table = table.rows(np.repeat(np.arange(len(table)), times))
        if given is None or isinstance(given, Mapping):
            table = Table(table.schema, table.values, table.observed, pd.RangeIndex(len(table)))
        return self.schema.decode(self.sample_table(table, rng), table.index)

    @query
    def impute(
        self,
        rows: Data,
        how: Literal["likeliest", "mean", "sample"] = "likeliest",
        *,
        seed: Seed = None,
        unknown: Unknown = "error",
    ) -> pd.DataFrame:
        """Rows with the missing cells filled.

        Args:
            rows: rows with gaps; observed cells come back as they were.
            how: "likeliest" gives the joint most probable completion, "mean" the conditional mean
                of numbers and the likeliest category each by itself, "sample" a draw.
            seed: for "sample".
            unknown: whether an unseen category is an error or a missing value.
        """
        table = self._rows(rows, unknown)
        self._check_possible(table, "error")
        if how == "likeliest":
            values = self.mpe_table(table)
        elif how == "sample":
            values = self.sample_table(table, np.random.default_rng(seed))
        elif how == "mean":
            values = self._conditional_means(table)
        else:
            raise QueryError(f"how is 'likeliest', 'mean' or 'sample', found {how!r}")
        return self.schema.decode(np.where(table.observed, table.values, values), table.index)

    # --- moments ----------------------------------------------------------------------------------

    @query
    def moment(
        self,
        name: str,
        order: int,
        given: Given | None = None,
        *,
        impossible: Impossible = "error",
        unknown: Unknown = "error",
    ) -> Any:
        """E[name**order | given]: a float for a mapping (or nothing) given, a Series for rows."""
        order = _whole(order, "the order of a moment is a whole number >= 0")
        return self._row_by_row(lambda t: self._moments(t, order), name, given, impossible, unknown)

    def expectation(
        self,
        name: str,
        given: Given | None = None,
        *,
        impossible: Impossible = "error",
        unknown: Unknown = "error",
    ) -> Any:
        """E[name | given]: a float for a mapping (or nothing) given, a Series for rows."""
        return self.moment(name, 1, given, impossible=impossible, unknown=unknown)

    @query
    def variance(
        self,
        name: str,
        given: Given | None = None,
        *,
        impossible: Impossible = "error",
        unknown: Unknown = "error",
    ) -> Any:
        """Var[name | given]: a float for a mapping (or nothing) given, a Series for rows."""
        return self._row_by_row(self.variance_table, name, given, impossible, unknown)

    def _row_by_row(
        self,
        hook: Callable[[Table], FloatArray],
        name: str,
        given: Given | None,
        impossible: Impossible,
        unknown: Unknown,
    ) -> Any:
        """A hook's answer for one numeric variable, NaN in impossible rows if they are let pass."""
        at = self.schema.position(name)
        self._check_numeric(self.schema.variables[at])
        table = self._evidence(given, unknown, asked=name)
        possible = self._check_possible(table, impossible)
        answer = np.full(len(table), np.nan)
        answer[possible] = hook(table.rows(possible))[:, at]
        if given is None or isinstance(given, Mapping):
            return float(answer[0])
        return pd.Series(answer, index=table.index, name=name)

    @query
    def covariance(
        self, names: Iterable[str] | None = None, given: Mapping[str, Any] | None = None
    ) -> pd.DataFrame:
        """Covariance matrix of some variables (all numeric ones by default) given some values."""
        if names is None:
            chosen = [v.name for v in self.schema if not v.is_coded or v.numbers is not None]
            chosen = [name for name in chosen if name not in (given or {})]
        else:
            chosen = [names] if isinstance(names, str) else list(names)
        if not chosen or len(set(chosen)) < len(chosen):
            raise QueryError(f"covariance needs one or more different names, found {chosen}")
        for name in chosen:
            self._check_numeric(self.schema[name])
        evidence = self._evidence(given)
        self._check_possible(evidence, "error")
        matrix = self.covariance_table(evidence, [self.schema.position(n) for n in chosen])
        return pd.DataFrame(matrix, index=chosen, columns=chosen)

    # --- storage ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the density to one file; `fedcircuits.load` reads it."""
        encoding.write(Path(path), encoding.pack(self.to_record()))

    # --- helpers ----------------------------------------------------------------------------------

    def _query(self, ask: Callable[[Self], Answer]) -> Answer:
        """Answers one public query; a density may ask again without parts that are away."""
        return ask(self)

    def _rows(
        self,
        data: Data,
        unknown: Unknown = "error",
        without: str | None = None,
        asked: str | None = None,
    ) -> Table:
        """Rows as a table.

        Args:
            data: rows.
            unknown: whether an unseen category is an error or a missing value.
            without: a column that is not looked at, whatever it holds.
            asked: the variable that is asked for: a density that looks up cells which were not
                sent does not look up this one.
        """
        del asked
        return self.schema.encode(data, unknown=unknown, without=without)

    def _evidence(
        self, given: Given | None, unknown: Unknown = "error", asked: str | None = None
    ) -> Table:
        """Evidence as a table: one row for a mapping or None, the rows themselves otherwise."""
        if given is None:
            return Table.empty(self.schema, 1)
        if isinstance(given, Mapping):
            for name in given:
                self.schema.position(name)
            row = pd.DataFrame({name: pd.Series([value]) for name, value in given.items()})
            return self.schema.encode(row.reindex([0]), unknown=unknown)
        return self._rows(given, unknown, asked=asked)

    def _check_possible(self, table: Table, impossible: Impossible) -> Any:
        """Rows whose evidence is possible; the others are an error, or left out on request."""
        _check_impossible(impossible)
        possible = np.ones(len(table), dtype=bool)
        rows = np.flatnonzero(table.observed.any(axis=1))
        if rows.size:
            possible[rows] = self.log_prob_table(table.rows(rows)) > -np.inf
        if impossible == "error" and not possible.all():
            raise ImpossibleEvidenceError(list(table.index[~possible]))
        return possible

    def _check_numeric(self, variable: Variable) -> None:
        if variable.is_coded and variable.numbers is None:
            raise QueryError(
                f"variable {variable.name!r} has categories that are not numbers "
                f"({variable.categories[0]!r}, ...), so it has no moments; ask predict_proba"
            )


def _check_impossible(impossible: object) -> None:
    if impossible not in get_args(Impossible):
        raise QueryError(f"impossible is 'error' or 'nan', found {impossible!r}")


def _whole(value: Any, expected: str) -> int:
    """A number >= 0 without a fraction, or an error that says what was expected."""
    try:
        whole = int(value)
        if whole == value and whole >= 0:
            return whole
    except (TypeError, ValueError, OverflowError):
        pass
    raise QueryError(f"{expected}, found {value!r}")


__all__ = ["Density", "FitReport", "outcome_codes", "powers"]
