"""Queries on models that stay at a client: which rows are meant, and what is told of them.

A row's cells are sent along, or looked up in the client's own table by the digest of its id. Only
what was asked for goes back: a vector a model, or values that were drawn; a cell that was looked up
never does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.arrays import Arrays, FloatArray
from fedcircuits.density import Density
from fedcircuits.errors import FederationError
from fedcircuits.federation.client.classifiers import Classifier
from fedcircuits.federation.wire import messages as m
from fedcircuits.federation.wire.ids import Lookup, fingerprint
from fedcircuits.schema import Schema, Table

KEPT = 4096  # conditioned models that are remembered


@dataclass
class Answering:
    """Answers queries on a client's models.

    Attributes:
        client: its name, for errors.
        ids: of the client's rows, None where it has none.
        secret: mixed into digests of ids.
        classifiers: models that only classify, by key.
    """

    client: str
    ids: pd.Series[Any] | None
    secret: str = ""
    classifiers: dict[str, Classifier] = field(default_factory=dict)
    _conditioned: OrderedDict[str, Density] = field(default_factory=OrderedDict)
    _lookups: dict[str, Lookup] = field(default_factory=dict)

    def answer(self, request: m.Query, models: Mapping[str, Density], table: Table) -> m.Answers:
        """One array for each model asked.

        Args:
            request: what is asked.
            models: those that stayed here, by key.
            table: the client's rows, for those asked by id.
        """
        sent = Asked.of(request)
        held = self._found(request, table)
        answers: Arrays = {}
        if request.what == "classify":
            for key in request.models:
                rows, _ = sent.rows_of(self.classifiers[key].schema, held)
                answers[key] = self.classifiers[key].posterior(rows)
            return m.Answers(answers)
        for key in request.models:
            if key not in models:
                raise FederationError(f"client {self.client!r} has no model {key!r}")
            model = self._restricted(key, models[key], request)
            rows, looked_up = sent.rows_of(model.schema, held)
            chosen = request.rows.get(key)
            if chosen is not None:
                rows, looked_up = rows.rows(chosen), looked_up[chosen]
            answers[key] = _told(model, rows, looked_up, request)
        return m.Answers(answers)

    def _restricted(self, key: str, model: Density, request: m.Query) -> Density:
        """The model given fixed values, other variables summed out, as the server wants it."""
        if not request.restricted:
            return model
        keep = tuple(name for name in model.schema.names if name in set(request.keep))
        evidence = Table.empty(model.schema, 1)
        for at, name in enumerate(request.given):
            if name in model.schema:
                column = model.schema.position(name)
                evidence.values[0, column] = request.given_values[at]
                evidence.observed[0, column] = True
        if len(keep) == len(model.schema) and not evidence.observed.any():
            return model
        name = fingerprint(
            key.encode(),
            repr(keep).encode(),
            evidence.values.tobytes(),
            evidence.observed.tobytes(),
        )
        if name not in self._conditioned:
            self._conditioned[name] = model.restrict(keep, evidence)
            while len(self._conditioned) > KEPT:
                self._conditioned.popitem(last=False)
        return self._conditioned[name]

    def _found(self, request: m.Query, table: Table) -> Table | None:
        """The client's own cells of the rows asked by id, unobserved where it has no such row."""
        if not len(request.digests):
            return None
        if self.ids is None:
            raise FederationError(f"client {self.client!r} has no id column to look rows up by")
        if request.salt not in self._lookups:
            self._lookups[request.salt] = Lookup(self.ids, request.salt, self.secret, self.client)
        at = self._lookups[request.salt].find(request.digests)
        found = table.rows(np.maximum(at, 0))
        observed = found.observed & (at >= 0)[:, None]
        for column, variable in enumerate(found.schema):
            # As in rows that are sent: what is missing is summed out, not "observed to be missing".
            observed[:, column] &= found.values[:, column] != variable.missing_code
        for name in request.hidden:
            if name in found.schema:
                observed[:, found.schema.position(name)] = False
        return replace(found, observed=observed)


@dataclass(frozen=True)
class Asked:
    """The cells that came with a query."""

    names: tuple[str, ...]
    values: FloatArray
    observed: Any

    @staticmethod
    def of(request: m.Query) -> Asked:
        shape = (len(request.values), len(request.columns))
        if request.values.shape != shape or request.observed.shape != shape:
            raise FederationError(f"a query's cells must have shape {shape}")
        return Asked(tuple(request.columns), request.values, request.observed.astype(bool))

    def rows_of(self, schema: Schema, held: Table | None) -> tuple[Table, Any]:
        """Rows of a model, and which cells (n, D) were looked up rather than sent."""
        rows = Table.empty(schema, len(self.values))
        looked_up = np.zeros(rows.observed.shape, dtype=bool)
        for at, name in enumerate(schema.names):
            if name in self.names:
                column = self.names.index(name)
                rows.values[:, at] = self.values[:, column]
                rows.observed[:, at] = self.observed[:, column]
            if held is not None and name in held.schema:
                own = held.schema.position(name)
                fill = held.observed[:, own] & ~rows.observed[:, at]
                rows.values[fill, at] = held.values[fill, own]
                rows.observed[fill, at] = looked_up[fill, at] = True
        return rows, looked_up


def _told(model: Density, rows: Table, looked_up: Any, request: m.Query) -> FloatArray:
    """What goes back."""
    what, order = request.what, request.order
    if what == "log_prob":
        return model.log_prob_table(rows)
    if what == "posterior":
        return model.posterior_table(rows, model.schema.position(request.target))
    if what == "moment":
        values = model.moment_table(rows, order)
    elif what == "variance":
        values = model.variance_table(rows)
    elif what == "covariance":
        values = model.covariance_table(rows, list(range(len(model.schema))))
    elif looked_up.any():
        raise FederationError(
            f"rows looked up by id cannot be completed ({what}): their cells stay at the client; "
            "send the cells in the query"
        )
    elif what == "sample":
        values = model.sample_table(rows, np.random.default_rng(request.seed))
    elif what == "mpe":
        values = model.mpe_table(rows)
    else:
        raise FederationError(f"no question {what!r}")
    if what in ("moment", "variance"):
        values = np.where(looked_up, np.nan, values)
    return np.asarray(values)
