"""`Density`: the queries that every model answers, in names and original values.

Whoever writes a new density provides the hooks over encoded tables (`density/hooks.py`) and
`restrict`, and inherits every public query: DataFrames in, DataFrames and Series out, names and
original values throughout, missing cells marginalised exactly, evidence of probability zero refused
by row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import pandas as pd

from fedcircuits import encoding
from fedcircuits.density.evidence import (
    Given,
    Impossible,
    check_impossible,
    distinct_names,
    query,
)
from fedcircuits.density.fit_report import FitReport
from fedcircuits.density.hooks import outcome_codes, powers
from fedcircuits.density.queries.completions import Completions
from fedcircuits.density.queries.explanation import Explanation, explain
from fedcircuits.density.queries.moments import Moments
from fedcircuits.density.queries.probabilities import Probabilities
from fedcircuits.errors import QueryError, StorageError
from fedcircuits.schema import Data, Table
from fedcircuits.schema.shown import HEADS, html, some, variable_rows
from fedcircuits.schema.table import Unknown
from fedcircuits.schema.times import from_numbers
from fedcircuits.schema.variable import plain


class Density(Probabilities, Moments, Completions):
    """A joint distribution over the variables of a schema, asked in names and original values.

    Evidence is a value, or an event (`fc.between`, `fc.one_of`, ...), by name or in the cells of
    rows; what is not given is summed out. Where the variables are pixels, rows may be images, of
    shape (n, h, w) or (n, h, w, 3) and masked where a pixel is unknown.
    """

    fit_report: FitReport | None = None

    def __repr__(self) -> str:
        count = "1 variable" if len(self.schema) == 1 else f"{len(self.schema)} variables"
        names = some(self.schema.names)
        return f"{type(self).__name__}({count}: {names}; {self.n_parameters} parameters)"

    def _repr_html_(self) -> str:
        """The model as a notebook shows it: how it was learned, and its variables."""
        return html(repr(self), self._facts_shown(), HEADS, variable_rows(self.schema))

    def _facts_shown(self) -> list[tuple[str, str]]:
        """Names and values that describe the model beside its variables."""
        report = self.fit_report
        if report is None:
            return []
        facts = [("learner", f"{report.learner}, {report.seconds:.1f} s")]
        return facts + [("warning", warning) for warning in report.warnings]

    # --- likelihood -------------------------------------------------------------------------------

    @query
    def log_prob(self, rows: Data, *, unknown: Unknown = "error") -> pd.Series[float]:
        """Log-density of each row in nats, missing cells marginalised; an empty row has 0.

        A cell that holds an event counts by its probability: the answer is the logarithm of the
        density of the values times the probability of the events given the values.

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
        keep = tuple(distinct_names(names, "marginal"))
        for name in keep:
            self.schema.position(name)
        return self.restrict(keep, Table.empty(self.schema, 1))

    @query
    def condition(self, /, given: Given | None = None, **values: Any) -> Density:
        """The density of the remaining variables given some values or events.

        A variable with a value is gone; one with an event remains, limited to the event.

        Args:
            given: value or event by name (a dict, a Series or a DataFrame of one row); needed for
                names that are not Python identifiers.
            **values: the same as keywords.
        """
        known = self._one_row(given, "condition")
        evidence = self._evidence({**(known or {}), **values})
        keep = tuple(
            name for at, name in enumerate(self.schema.names) if not evidence.observed[0, at]
        )
        if not keep:
            raise QueryError("condition leaves no variable: every one of them is given")
        self._check_possible(evidence, "error")
        return self._limited(keep, evidence)

    def _limited(self, keep: tuple[str, ...], evidence: Table) -> Density:
        """As `restrict`; events about variables that are kept limit their values."""
        from fedcircuits.density.conditioned import Conditioned  # it is a density itself

        columns = [self.schema.position(name) for name in keep]
        events = [(at, r) for at, c in enumerate(columns) for r, _ in evidence.regions_at(c)]
        if not events:
            return self.restrict(keep, evidence)
        for column in columns:
            evidence = evidence.hide(column)
        whole = keep == self.schema.names and not evidence.known.any()
        base = self if whole else self.restrict(keep, evidence)
        limits = Table.empty(base.schema, 1)
        for at, region in events:
            limits = limits.meeting(at, [region])
        if isinstance(base, Conditioned):
            return base.restrict(keep, limits)
        return Conditioned(base, keep, limits)

    # --- predictions ------------------------------------------------------------------------------

    @overload
    def predict_proba(
        self,
        data: Data,
        target: str,
        *,
        unknown: Unknown = ...,
        impossible: Impossible = ...,
        with_error: Literal[False] = ...,
    ) -> pd.DataFrame: ...

    @overload
    def predict_proba(
        self,
        data: Data,
        target: str,
        *,
        unknown: Unknown = ...,
        impossible: Impossible = ...,
        with_error: Literal[True],
    ) -> tuple[pd.DataFrame, pd.DataFrame]: ...

    def predict_proba(
        self,
        data: Data,
        target: str,
        *,
        unknown: Unknown = "error",
        impossible: Impossible = "error",
        with_error: bool = False,
    ) -> pd.DataFrame | tuple[pd.DataFrame, pd.DataFrame]:
        """p(target | the other observed cells): one column for each original category value.

        Args:
            data: rows; the target's own column may be absent and is not looked at.
            target: a categorical or binary variable, or a number with few values.
            unknown: whether an unseen category is an error or a missing value.
            impossible: whether evidence of probability zero is an error or gives NaN.
            with_error: whether the standard errors are returned too, as a second frame. They are 0
                but where a model that is not exact (`is_exact`) answers for missing cells.
        """
        proba, error = self._query(
            lambda density: density._proba_and_error(data, target, unknown, impossible, with_error)
        )
        if error is None:
            return proba
        return proba, error

    def _proba_and_error(
        self, data: Data, target: str, unknown: Unknown, impossible: Impossible, with_error: bool
    ) -> tuple[pd.DataFrame, pd.DataFrame | None]:
        """p(target | the other observed cells) and its standard errors, None if not asked for."""
        at = self.schema.position(target)
        if self.schema.variables[at].outcomes is None:
            raise QueryError(
                f"variable {target!r} is {self.schema.variables[at].kind} with a continuum of "
                "values; ask expectation(), or condition(...).sample()"
            )
        check_impossible(impossible)
        table = self._rows(data, unknown, without=target)
        error = None
        if with_error:
            proba, error = self.posterior_with_error(table, at)
        else:
            proba = self.posterior_table(table, at)
        lost = np.flatnonzero(np.isnan(proba).any(axis=1))
        if impossible == "error" and lost.size:
            self._check_possible(table.rows(lost), "error")
            raise QueryError(
                f"{target!r} takes none of its listed values with positive probability in "
                f"{lost.size} row(s) (row label: {plain(table.index[lost[0]])!r}, ...): all its "
                "mass lies between or beyond them; ask expectation(), or with impossible='nan'"
            )
        labels = self.schema.variables[at].outcome_labels
        answer = pd.DataFrame(proba, index=table.index, columns=labels)
        if error is None:
            return answer, None
        return answer, pd.DataFrame(error, index=table.index, columns=labels)

    @query
    def predict(self, data: Data, target: str, *, unknown: Unknown = "error") -> pd.Series[Any]:
        """The most probable value of the target in each row; its mean if it is a continuum."""
        variable = self.schema[target]
        if variable.outcomes is None:
            table = self._rows(data, unknown, without=target)
            self._check_possible(table, "error")
            mean: Any = self.moment_of(table, self.schema.position(target), 1)
            if variable.time is not None:
                mean = from_numbers(mean, variable.time)
            return pd.Series(mean, index=table.index, name=target)
        proba = self.predict_proba(data, target, unknown=unknown)
        labels = pd.Series(list(variable.outcomes)).to_numpy()
        best = labels[proba.to_numpy().argmax(axis=1)]
        answer = pd.Series(best, index=proba.index, name=target)
        answer.attrs |= proba.attrs
        return answer

    @query
    def explain(
        self, rows: Data, target: str, value: object | None = None, *, unknown: Unknown = "error"
    ) -> Explanation:
        """What each column contributes to a prediction, in log-odds that add up to the answer.

        Args:
            rows: the target's own column may be absent and is not looked at.
            target: as for `predict_proba`.
            value: the class to explain against all others; by default each row's most probable one.
            unknown: whether an unseen category is an error or a missing value.
        """
        proba, _ = self._proba_and_error(rows, target, unknown, "error", False)
        table = self._rows(rows, unknown, without=target)
        at = self.schema.position(target)
        return explain(self, table, at, proba.to_numpy(), value, self.column_groups)

    # --- storage ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the density to one file; `fedcircuits.load` reads it."""
        if not isinstance(path, str | Path):
            raise StorageError(f"save takes the path of a file, found {type(path).__name__}")
        encoding.write(Path(path), encoding.pack(self.to_record()))

    def draw(self, path: str | Path) -> None:
        """Write a picture of the model to a file: PNG, SVG or PDF by its ending.

        It shows the tree of strongest dependences: lines are as thick as two variables share
        mutual information (in nats beside them) under the model.
        """
        from fedcircuits.report import networks  # matplotlib takes a second to import
        from fedcircuits.report.page import trained_for

        label = trained_for(self)
        names = networks.names_drawn(self.schema.names, label)
        if len(names) < 2:
            raise QueryError(f"a picture shows dependences of variables; the model has {names}")
        tree = networks.dependence_tree(self.mutual_information_matrix(names), label)
        title = f"strongest dependences of {len(names)} of {len(self.schema)} variables, nats"
        networks.save(
            path, networks.tree_size(tree), title, lambda on: networks.paint_tree(on, tree, label)
        )

    def report(
        self,
        path: str | Path,
        rows: Data | None = None,
        *,
        label: str | None = None,
        figures_to: str | Path | None = None,
        scored: Density | None = None,
    ) -> Path:
        """Write a report about the density to one HTML file and return its path.

        Args:
            path: where the page goes.
            rows: held-out rows that the model is scored on and compared with.
            label: variable whose prediction is scored; by default the one it was trained for.
            figures_to: a folder that also gets every figure as an SVG file.
            scored: the model to score in place of this one, where this one has learned from the
                rows too: learned in the same way without them.
        """
        from fedcircuits.report import write_report  # matplotlib takes a second to import

        return write_report(self, path, rows, label=label, figures_to=figures_to, scored=scored)


__all__ = ["Density", "FitReport", "outcome_codes", "powers"]
