"""What clients do about a label that is used and not sent: codes of rows, and their effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy import sparse

from fedcircuits.arrays import Arrays, Bytes, FloatArray, IntArray
from fedcircuits.density import LearnsTilt
from fedcircuits.density.contracts import LearnsCodes
from fedcircuits.density.row_codes import level_width, levels
from fedcircuits.density.tilt import Tilt, by_class, log_softmax, n_states_of, one_less, states_of
from fedcircuits.errors import FederationError, StorageError
from fedcircuits.federation.client.clustering import cluster_rows
from fedcircuits.federation.client.dispatch import handles
from fedcircuits.federation.client.jobs import labels
from fedcircuits.federation.client.label.heads import LEAST_CLASS_ROWS, pooled
from fedcircuits.federation.client.label.tilting import tables_of
from fedcircuits.federation.client.mailbox import Expected
from fedcircuits.federation.client.state import ClientState
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import CODES
from fedcircuits.federation.wire.requests.heads import outputs_of
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.schema import Table, Variable

PURPOSE = "codes"  # of what is sealed
RIDGE = 1.0  # rows of effect zero in every state, when effects are spread
# Rows left out to pool tables and trees, and from which trees are boosted at all.
HELD_SHARE, FEW_SHARE, FEW_HELD, MOST_HELD, LEAST_HEAD_ROWS = 0.2, 1 / 3, 200, 10_000, 600


class Coding(ClientState):
    """The part of a client that makes codes, fits to them and spreads their effects."""

    @handles(m.CODES)
    def _codes(self, request: m.AskCodes) -> m.Sealed:
        """The cluster of each named row, for the label's owner alone."""
        table = self._to_cluster([c for c in request.columns if c != self._label])
        nowhere = np.zeros(len(table), dtype=np.int64)
        rng = named_rng(self._seed, self.name, CODES)
        n_codes = min(request.n_codes, m.MOST_CODES)
        codes, _ = cluster_rows(table, nowhere, n_codes, rng, self._least)
        # Tables reveal what effects are spread over: codes are of enough rows, too.
        self._groups[CODES] = codes = self._parts.grouped(codes)
        sent = codes[self._aligned.named(request.rows)].astype(np.uint8)
        return self._mail.seal(sent, request.key, PURPOSE, request.step, request.rows)

    @handles(m.FIT_BY_CODES)
    def _fit_by_codes(self, request: m.FitByCodes) -> m.FittedByCodes:
        """Fit what own states and others' codes add to the log-odds of the label, and trees."""
        own = self._mail.key.public
        none = np.zeros(0)
        if request.key != own:
            return m.FittedByCodes(own, m.NO_TABLES, np.zeros((0, 0, 0)), {}, none, None)
        table = self._have()
        names = [f"code\x1f{at}" for at in range(len(request.pieces))]
        coded = table.columns(request.columns)
        expected = [
            Expected(each.piece, PURPOSE, each.rows, partial(_codes_of, n_rows=each.n_rows))
            for each in request.pieces
        ]
        opened = self._mail.open(request.step, expected)
        for name, each, codes in zip(names, request.pieces, opened, strict=True):
            coded = _with_codes(coded, name, self._aligned.named(each.rows), codes, request.n_codes)
        classes, taking = labels(table, self._label, self.name)
        taking = taking & self._counted_of(request.rows)
        if self._use is not None:
            taking = taking & self._use
        rows = np.flatnonzero(taking)
        learner = self._learner.of_densities(None)
        if not isinstance(learner, LearnsTilt) or np.unique(classes[rows]).size < 2:
            raise FederationError(f"client {self.name!r} has no two classes to compare")
        mine, truth = coded.rows(rows), classes[rows]

        def fitted(some: IntArray) -> Tilt:
            offset = np.zeros((some.size, request.n_classes))
            return learner.fit_tilt(
                mine.rows(some), truth[some], offset, request.min_rows, request.n_columns
            )

        tilt = fitted(np.arange(rows.size))
        effects = np.stack([tilt.of(name) for name in names])
        tables = tables_of(tilt.select(request.columns))
        counts = np.bincount(truth, minlength=request.n_classes)
        able = isinstance(learner, LearnsCodes) and learner.heads and request.sender
        if not able or counts.min() < LEAST_CLASS_ROWS or rows.size < LEAST_HEAD_ROWS:
            return m.FittedByCodes(own, tables, effects, {}, none, None)
        assert isinstance(learner, LearnsCodes)
        rng = named_rng(self._seed, self.name, "head by codes")
        trees, widths, pool = head_by_codes(learner, fitted, mine, truth, names, request, rng)
        return m.FittedByCodes(own, tables, effects, trees, widths, pool)

    @handles(m.SPREAD_CODES)
    def _spread_codes(self, request: m.SpreadCodes) -> m.CodesSpread:
        """Fit tables over own columns, and trees, whose sum is closest to what the codes add."""
        wanted = request.effects.T[self._groups[CODES]]  # (n, Y)
        table = self._have().columns(request.columns)
        widths, flat = spread(table, wanted)
        tilt = Tilt.from_flat(request.columns, widths, request.c, flat, request.counts)
        learner, trees = self._learner.of_densities(None), {}
        if request.min_rows and isinstance(learner, LearnsCodes) and learner.heads:
            seed = int(named_rng(self._seed, self.name, "trees of codes").integers(2**31))
            trees = learner.trees_of_numbers(table, one_less(wanted), request.min_rows, seed)
        return m.CodesSpread(tables_of(tilt), trees)


def head_by_codes(
    learner: LearnsCodes,
    fitted: Callable[[IntArray], Tilt],
    table: Table,
    classes: IntArray,
    names: Sequence[str],
    request: m.FitByCodes,
    rng: np.random.Generator,
) -> tuple[Arrays, FloatArray, m.PoolWeights]:
    """Trees over the owner's columns and what others' codes add, widths of levels, and the pool.

    What codes add to the rows of one half is fitted to the other half: trees would trust too much
    in what their own rows have decided.

    Args:
        learner: of the owner.
        fitted: the tilt of some rows.
        table: the owner's columns, then one of codes for each name.
        classes: (n,) of the rows.
        names: of the columns of codes.
        request: what is asked for.
        rng: that chooses rows.
    """
    n, n_classes = len(table), request.n_classes
    order = rng.permutation(n)
    n_held = min(MOST_HELD, max(min(FEW_HELD, int(FEW_SHARE * n)), int(HELD_SHARE * n)))
    held, rest = np.zeros(n, dtype=bool), np.sort(order[n_held:])
    held[order[:n_held]] = True
    first = rest[rng.permutation(rest.size) < rest.size // 2]
    second = np.setdiff1d(rest, first)
    tilt = fitted(rest)
    parts = ((np.flatnonzero(held), tilt), (first, fitted(second)), (second, fitted(first)))
    senders = 1 + max(request.sender)
    outputs = np.full((senders, n, outputs_of(n_classes)), np.nan)
    for name, at in zip(names, request.sender, strict=True):
        place = table.schema.position(name)
        for rows, by in parts:
            seen = rows[table.observed[rows, place]]
            added = by.of(name).T[table.values[seen, place].astype(np.int64)]  # (n, Y)
            outputs[at, seen] = one_less(added)
    widths = np.array([level_width(each[np.isfinite(each[:, 0])]) for each in outputs])
    codes = [  # one leaf for all rows
        np.column_stack([levels(each, float(width)), 0 * each[:, :1]])
        for each, width in zip(outputs, widths, strict=True)
    ]
    seed = int(rng.integers(2**31))
    own = table.columns(request.columns)
    trees, found = learner.fit_trees_on_codes(
        own, np.concatenate(codes, axis=1), classes, held, request.min_rows, seed
    )
    log_tilt = log_softmax(tilt.c + tilt.scores(table.rows(np.flatnonzero(held))))
    return trees, widths, pooled(log_tilt, [by_class(found)], classes[held])


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


def _codes_of(values: Bytes, n_rows: int) -> Bytes:
    """Return codes (n,) unchanged, or raise an error where they are not one byte a row."""
    if values.dtype != np.uint8 or values.shape != (n_rows,):
        raise StorageError(f"codes of shape {values.shape} for {n_rows} rows")
    return values


def _with_codes(table: Table, name: str, rows: IntArray, codes: IntArray, n_codes: int) -> Table:
    """The table with a column of codes, missing where there is none."""
    values, observed = np.zeros(len(table)), np.zeros(len(table), dtype=bool)
    values[rows], observed[rows] = np.minimum(codes, n_codes - 1), True
    categories = tuple(map(str, range(n_codes)))
    variable = Variable(name, "categorical", categories, closed=True, declared=True)
    return table.with_column(variable, values, observed)
