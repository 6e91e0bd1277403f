"""Answers queries on models that stay at a client.

The cells of a row are sent along, or looked up in the client's own table by the digest of its id.
Only what was asked for is returned, one array a question; a cell that was looked up never is.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast, get_args

import numpy as np
import pandas as pd

from fedcircuits.arrays import Arrays, BoolArray, FloatArray, IntArray
from fedcircuits.density import Density
from fedcircuits.density.batched import Question, What, answer_here
from fedcircuits.errors import MALFORMED, FederationError
from fedcircuits.federation.client.classifiers import Classifier
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.ids import Lookup, fingerprint
from fedcircuits.federation.wire.names import ModelName
from fedcircuits.schema import Schema, Table
from fedcircuits.schema.events import CodeSet, NumberSet, Region
from fedcircuits.schema.events.region import region_from_json
from fedcircuits.schema.table import Events

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
    classifiers: dict[ModelName, Classifier] = field(default_factory=dict)
    _conditioned: OrderedDict[str, Density] = field(default_factory=OrderedDict)
    _lookups: dict[str, Lookup] = field(default_factory=dict)

    def answer(
        self, request: m.Query, models: Mapping[ModelName, Density], table: Table
    ) -> m.Answers:
        """Returns one array for each question, by its number.

        Args:
            request: what is asked.
            models: those that stayed here, by key.
            table: the client's rows, for those asked by id.
        """
        sent = SentCells.of(request)
        held = self._found(request, table)
        answers: Arrays = {}
        for at, asked in enumerate(request.questions):
            which = request.rows.get(str(at))
            if asked.what == "classify":
                classifier = self.classifiers[asked.model]
                rows, _ = sent.rows_of(classifier.schema, held, which)
                answers[str(at)] = classifier.posterior(rows)
                continue
            if asked.model not in models:
                raise FederationError(f"client {self.client!r} has no model {str(asked.model)!r}")
            model = self._restricted(asked.model, models[asked.model], request)
            rows, looked_up = sent.rows_of(model.schema, held, which)
            answers[str(at)] = _answer(model, rows, looked_up, asked)
        return m.Answers(answers)

    def _restricted(self, key: ModelName, model: Density, request: m.Query) -> Density:
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
            str(key).encode(),
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
class SentCells:
    """The cells that came with a query.

    Attributes:
        names: variables.
        values: (n, d) encoded cells.
        observed: (n, d) which of them were sent.
        regions: sets that cells without a value are known to lie in.
        event_of: (n, d) number of each cell's set, -1 for none; None where there are no sets.
    """

    names: tuple[str, ...]
    values: FloatArray
    observed: BoolArray
    regions: tuple[Region, ...] = ()
    event_of: IntArray | None = None

    @staticmethod
    def of(request: m.Query) -> SentCells:
        shape = (len(request.values), len(request.columns))
        if request.values.shape != shape or request.observed.shape != shape:
            raise FederationError(f"a query's cells must have shape {shape}")
        cells = tuple(request.columns), request.values, request.observed.astype(bool)
        if not request.events:
            return SentCells(*cells)
        event_of = request.event_of
        if event_of.shape != shape or event_of.min() < -1 or event_of.max() >= len(request.events):
            raise FederationError(f"the events of a query's cells must be numbers of shape {shape}")
        try:
            regions = tuple(region_from_json(json.loads(text)) for text in request.events)
        except MALFORMED as error:
            raise FederationError(f"an event of a query cannot be read: {error!r}") from None
        return SentCells(*cells, regions, event_of.astype(np.int64))

    def rows_of(
        self, schema: Schema, held: Table | None, which: IntArray | None
    ) -> tuple[Table, BoolArray]:
        """Rows of a model, and which cells (k, D) were looked up rather than sent.

        Args:
            schema: the model's variables.
            held: (n,) the client's own cells of the rows, None where none are looked up.
            which: (k,) the rows that are meant, None for all.
        """
        chosen = slice(None) if which is None else which
        values, observed = self.values[chosen], self.observed[chosen]
        own_rows = None if held is None else held.rows(chosen)
        rows = Table.empty(schema, len(values))
        looked_up = np.zeros(rows.observed.shape, dtype=bool)
        place = np.full(rows.observed.shape, -1, dtype=np.int64)
        for at, name in enumerate(schema.names):
            if name in self.names:
                column = self.names.index(name)
                rows.values[:, at] = values[:, column]
                rows.observed[:, at] = observed[:, column]
                if self.event_of is not None:
                    place[:, at] = self.event_of[chosen, column]
            if own_rows is not None and name in own_rows.schema:
                own = own_rows.schema.position(name)
                fill = own_rows.observed[:, own] & ~rows.observed[:, at] & (place[:, at] < 0)
                rows.values[fill, at] = own_rows.values[fill, own]
                rows.observed[fill, at] = looked_up[fill, at] = True
        if (place >= 0).any():
            self._check_events(schema, place)
            rows = replace(rows, events=Events(self.regions, place))
        return rows, looked_up

    def _check_events(self, schema: Schema, place: IntArray) -> None:
        """Refuse a set that is not one of values of its variable."""
        for at, variable in enumerate(schema):
            for number in np.unique(place[place[:, at] >= 0, at]):
                region = self.regions[number]
                fits = (
                    isinstance(region, CodeSet) and len(region.members) == variable.n_codes
                    if variable.is_coded
                    else isinstance(region, NumberSet)
                    and region.integer == (variable.kind == "count")
                )
                if not fits:
                    raise FederationError(
                        f"an event about {variable.name!r} is no set of its values"
                    )


def _answer(
    model: Density, rows: Table, looked_up: BoolArray, asked: m.ModelQuestion
) -> FloatArray:
    """What is sent back: never a cell that was looked up."""
    what = asked.what
    if what not in get_args(What):
        raise FederationError(f"no question {what!r}; there are {', '.join(get_args(What))}")
    if what in ("sample", "mpe") and looked_up.any():
        raise FederationError(
            f"rows looked up by id cannot be completed ({what}): their cells stay at the client; "
            "send the cells in the query"
        )
    if rows.events is not None and not model.answers_events:
        raise FederationError(f"a {type(model).__name__} takes values as evidence, not events")
    question = Question(
        model, cast(What, what), rows, order=asked.order, columns=asked.columns, seed=asked.seed
    )
    values = answer_here(question, rows)
    if what in ("moment", "variance"):
        values = np.where(looked_up, np.nan, values)
    return np.asarray(values)
