"""Moments, expectations, variances and covariances of numeric variables given evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedcircuits.arrays import FloatArray
from fedcircuits.density.evidence import (
    Given,
    Impossible,
    TakesEvidence,
    is_one,
    query,
    whole_number,
)
from fedcircuits.errors import QueryError
from fedcircuits.schema import Table, images
from fedcircuits.schema.table import Unknown

MOST_ORDER = 100  # of a moment: the work grows with it, and a float holds no larger powers


class Moments(TakesEvidence):
    """Questions whose answer is a mean of powers of variables."""

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
        order = whole_number(order, f"the order of a moment is in 0..{MOST_ORDER}", MOST_ORDER)
        at = self.schema.position(name)
        return self._row_by_row(
            lambda t: self.moment_of(t, at, order), name, given, impossible, unknown
        )

    def expectation(
        self,
        name: str | NDArray[np.generic],
        given: Given | None = None,
        *,
        impossible: Impossible = "error",
        unknown: Unknown = "error",
        with_error: bool = False,
    ) -> Any:
        """E[name | given]: a float for a mapping (or nothing) given, a Series for rows.

        With `with_error` the standard error comes second, 0 but where a model that is not exact
        (`is_exact`) answers about its label with cells missing. Images in place of a name come back
        with the mean in every masked pixel, as from `impute`.
        """
        if isinstance(name, np.ndarray) and images.is_images(name):
            if given is not None or with_error:
                raise QueryError("the expectation of images takes the images alone")
            return self._mean_images(name, impossible, unknown)
        name = cast("str", name)  # or what is told as no name of a variable
        mean = self.moment(name, 1, given, impossible=impossible, unknown=unknown)
        if not with_error:
            return mean
        at = self.schema.position(name)
        error = self._query(
            lambda density: density._row_by_row(
                lambda t: density.moment_error(t, at, 1), name, given, impossible, unknown
            )
        )
        return mean, error

    @query
    def _mean_images(
        self, given: NDArray[np.generic], impossible: Impossible, unknown: Unknown
    ) -> Any:
        """Images with the mean in every masked pixel."""
        table = self._rows(given, unknown)
        self._check_possible(table, impossible)
        means = np.where(table.observed, table.values, self._conditional_means(table))
        return self._completed(means, table.index, given, as_images=True)

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
        at = self.schema.position(name)
        return self._row_by_row(
            lambda t: self.variance_table(t)[:, at], name, given, impossible, unknown
        )

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
        answer[possible] = hook(table.rows(possible))
        if is_one(given):
            return float(answer[0])
        return pd.Series(answer, index=table.index, name=name)

    @query
    def covariance(
        self,
        names: Iterable[str] | None = None,
        other: str | Given | None = None,
        given: Given | None = None,
    ) -> Any:
        """Covariance matrix of some variables (all numeric ones by default) given some values.

        With two names, `covariance("a", "b")`, it is their covariance as a number.

        Args:
            names: of the variables, or the first of two.
            other: the second of two names; or the evidence, which may stand here too.
            given: evidence of one row: a dict, a Series or a DataFrame.
        """
        if isinstance(names, str) and isinstance(other, str):
            matrix = self._covariance(list(dict.fromkeys([names, other])), given)
            return float(matrix.to_numpy()[0, -1])
        if isinstance(other, str):
            raise QueryError(
                f"covariance takes two names or one list of names, found {names!r} and {other!r}"
            )
        return self._covariance(names, given if other is None else other)

    def _covariance(self, names: Iterable[str] | None, about: Given | None) -> pd.DataFrame:
        given = self._one_row(about, "covariance")
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
