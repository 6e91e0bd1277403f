"""What clients do about a label that is used and not sent: codes of rows, and their effects."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import sparse

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.density import LearnsTilt
from fedcircuits.density.tilt import Tilt, n_states_of, states_of
from fedcircuits.errors import FederationError
from fedcircuits.federation.client.clustering import cluster_rows
from fedcircuits.federation.client.dispatch import handles
from fedcircuits.federation.client.jobs import labels
from fedcircuits.federation.client.label.tilting import tables_of
from fedcircuits.federation.client.mailbox import Expected
from fedcircuits.federation.client.state import ClientState
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import CODES
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.schema import Schema, Table, Variable

PURPOSE = "codes"  # of what is sealed
RIDGE = 1.0  # rows of effect zero in every state, when effects are spread


class Coding(ClientState):
    """The part of a client that makes codes, fits to them and spreads their effects."""

    @handles(m.CODES)
    def _codes(self, request: m.AskCodes) -> m.Sealed:
        """The cluster of each named row, for the label's owner alone."""
        table = self._have().columns([c for c in request.columns if c != self._label])
        nowhere = np.zeros(len(table), dtype=np.int64)
        rng = named_rng(self._seed, self.name, CODES)
        codes, _ = cluster_rows(table, nowhere, min(request.n_codes, m.MOST_CODES), rng)
        self._groups[CODES] = codes
        sent = codes[self._aligned.named(request.rows)].astype(np.uint8)
        return self._mail.seal(sent, request.key, PURPOSE, request.step, request.rows)

    @handles(m.FIT_BY_CODES)
    def _fit_by_codes(self, request: m.FitByCodes) -> m.FittedByCodes:
        """What my states and others' codes add to the log-odds of my label."""
        own = self._mail.key.public
        if request.key != own:
            none = np.zeros(0)
            nothing = m.TiltTables([], none.astype(np.int64), none, np.zeros((0, 0)), none)
            return m.FittedByCodes(own, nothing, np.zeros((0, 0, 0)))
        table = self._have()
        names = [f"code\x1f{at}" for at in range(len(request.pieces))]
        coded = table.columns(request.columns)
        expected = [Expected(each.piece, PURPOSE, each.rows) for each in request.pieces]
        opened = self._mail.open(request.step, expected)
        for name, each, codes in zip(names, request.pieces, opened, strict=True):
            coded = _with_codes(coded, name, self._aligned.named(each.rows), codes, request.n_codes)
        classes, taking = labels(table, self._label, self.name)
        inside = np.zeros(len(table), dtype=bool)
        inside[self._aligned.named(request.rows)] = True
        taking = taking & inside & (True if self._use is None else self._use)
        rows = np.flatnonzero(taking)
        learner = self._learner.of_densities(None)
        if not isinstance(learner, LearnsTilt) or np.unique(classes[rows]).size < 2:
            raise FederationError(f"client {self.name!r} has no two classes to compare")
        offset = np.zeros((rows.size, request.n_classes))
        tilt = learner.fit_tilt(
            coded.rows(rows), classes[rows], offset, request.min_rows, request.n_columns
        )
        effects = np.stack([tilt.of(name) for name in names])
        tables = tables_of(tilt.select(request.columns))
        return m.FittedByCodes(own, tables, effects)

    @handles(m.SPREAD_CODES)
    def _spread_codes(self, request: m.SpreadCodes) -> m.CodesSpread:
        """Tables over my columns whose sum is closest to what my rows' codes add."""
        wanted = request.effects.T[self._groups[CODES]]  # (n, Y)
        table = self._have().columns(request.columns)
        widths, flat = spread(table, wanted)
        tilt = Tilt.from_flat(request.columns, widths, request.c, flat, request.counts)
        return m.CodesSpread(tables_of(tilt))


def spread(table: Table, wanted: FloatArray) -> tuple[list[int], FloatArray]:
    """Number of states of each column, and (Y, W) tables whose sums are closest to some numbers.

    Args:
        table: rows.
        wanted: (n, Y) what the tables of a row should add up to.
    """
    widths = [n_states_of(variable) for variable in table.schema]
    starts = np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(np.int64)
    rows, columns = [], []
    for at, variable in enumerate(table.schema):
        seen = np.flatnonzero(table.observed[:, at])
        rows.append(seen)
        columns.append(starts[at] + states_of(variable, table.values[seen, at]))
    row, column = np.concatenate(rows), np.concatenate(columns)
    ones = np.ones(row.size)
    X = sparse.csr_matrix((ones, (row, column)), shape=(len(table), int(sum(widths))))
    gram: FloatArray = np.asarray((X.T @ X).toarray()) + RIDGE * np.eye(int(sum(widths)))
    sums: FloatArray = np.asarray(X.T @ wanted)  # (W, Y)
    found = np.linalg.solve(gram, sums)
    return widths, np.ascontiguousarray(found.T)


def _with_codes(table: Table, name: str, rows: IntArray, codes: IntArray, n_codes: int) -> Table:
    """The table with a column of codes, missing where there is none."""
    values, observed = np.zeros(len(table)), np.zeros(len(table), dtype=bool)
    values[rows], observed[rows] = np.minimum(codes, n_codes - 1), True
    categories = tuple(map(str, range(n_codes)))
    variable = Variable(name, "categorical", categories, closed=True, declared=True)
    return replace(
        table,
        schema=Schema((*table.schema.variables, variable)),
        values=np.column_stack([table.values, values]),
        observed=np.column_stack([table.observed, observed]),
    )
