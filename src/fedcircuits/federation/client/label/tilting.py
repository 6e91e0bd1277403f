"""What a client does about the tilt of the label: fits tables, scores rows, tilts its models."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import Bytes, FloatArray, IntArray
from fedcircuits.circuits import Circuit
from fedcircuits.circuits.queries.tilt import tilted_masses
from fedcircuits.density import Density, LearnsTilt
from fedcircuits.density.tilt import Tilt, n_states_of
from fedcircuits.errors import FederationError, StorageError
from fedcircuits.federation.client.dispatch import handles, seconds_since
from fedcircuits.federation.client.mailbox import Expected
from fedcircuits.federation.client.state import ClientState
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import ModelName
from fedcircuits.federation.wire.packing import pack_codes, packed_size, unpack_codes
from fedcircuits.schema import Table

TILT = "tilt"  # purpose of sealed scores
LEVELS = 127  # of a score, to each side of zero
MOST = 1e6  # of a score that another client sends
# Levels of a score that goes to the client whose turn it is, and steps to place them.
N_LEVELS, LLOYD_STEPS, BOOK = 8, 20, np.dtype("<f4")


def tables_of(tilt: Tilt) -> m.TiltTables:
    """Return a tilt as it travels."""
    widths = np.array([table.shape[1] for table in tilt.tables], dtype=np.int64)
    return m.TiltTables(list(tilt.columns), widths, tilt.c, tilt.flat, tilt.counts)


def tilt_of(sent: m.TiltTables) -> Tilt:
    """Return the tilt that came in a message; one that does not fit together is an error."""
    fault = sent.fault()
    if fault is not None:
        raise StorageError(f"a tilt that cannot be read: {fault}")
    widths = [int(width) for width in sent.widths]
    return Tilt.from_flat(sent.columns, widths, sent.c, sent.g, sent.counts)


def packed_scores(scores: FloatArray) -> Bytes:
    """Return scores (n, Y) up to a constant a row in 8 bits each, the last class left out."""
    centred = scores - scores.mean(axis=1, keepdims=True)
    step = max(float(np.abs(centred).max(initial=0.0)) / LEVELS, 1e-12)
    codes = np.round(centred[:, :-1] / step).astype(np.int8)
    return np.concatenate([np.array([step]).view(np.uint8), codes.view(np.uint8).reshape(-1)])


def packed_levels(scores: FloatArray) -> Bytes:
    """Return scores (n, Y) up to a constant a row in 3 bits each, the last class left out.

    Levels are where the scores are (Lloyd's algorithm), so that few bits carry most of them.
    """
    centred = scores - scores.mean(axis=1, keepdims=True)
    parts = []
    for column in centred[:, :-1].T:
        book = _levels_of(column)
        codes = np.searchsorted((book[1:] + book[:-1]) / 2, column)
        parts += [book.view(np.uint8), pack_codes(codes, N_LEVELS)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint8)


def unpacked_levels(packed: Bytes, shape: tuple[int, int]) -> FloatArray:
    """Return close to the scores (n, Y) that `packed_levels` was given, rows with mean zero."""
    n, n_classes = shape
    size = BOOK.itemsize * N_LEVELS + packed_size(n, N_LEVELS)
    if packed.dtype != np.uint8 or packed.shape != (size * (n_classes - 1),):
        raise StorageError(f"scores of {packed.size} bytes for {n} rows and {n_classes} classes")
    known = np.empty((n, n_classes - 1))
    for y, part in enumerate(packed.reshape(n_classes - 1, size)):
        book = part[: BOOK.itemsize * N_LEVELS].copy().view(BOOK)
        if not (np.abs(book) < MOST).all():
            raise StorageError("levels of scores that are not finite, or beyond all odds")
        codes = unpack_codes(part[BOOK.itemsize * N_LEVELS :].copy(), n, N_LEVELS)
        known[:, y] = book[codes]
    return np.concatenate([known, -known.sum(axis=1, keepdims=True)], axis=1)


def _levels_of(numbers: FloatArray) -> NDArray[np.float32]:
    """(8,) levels in order that lie close to numbers (n,), by the mean of the squares."""
    if numbers.size == 0:
        return np.zeros(N_LEVELS, dtype=BOOK)
    known = np.sort(numbers)
    sums = np.concatenate([[0.0], np.cumsum(known)])
    book = np.quantile(known, (np.arange(N_LEVELS) + 0.5) / N_LEVELS)
    book[0], book[-1] = known[0], known[-1]
    for _ in range(LLOYD_STEPS):
        ends = np.searchsorted(known, (book[1:] + book[:-1]) / 2)
        ends = np.concatenate([[0], ends, [known.size]])
        counts = np.diff(ends)
        book = np.where(counts > 0, np.diff(sums[ends]) / np.maximum(counts, 1), book)
    return np.sort(book).astype(BOOK)


def unpacked_scores(packed: Bytes, shape: tuple[int, int]) -> FloatArray:
    """Return the scores (n, Y) that `packed_scores` was given, with mean zero in each row."""
    n, n_classes = shape
    if packed.dtype != np.uint8 or packed.size != 8 + n * (n_classes - 1):
        raise StorageError(f"scores of {packed.size} bytes for {n} rows and {n_classes} classes")
    step = float(packed[:8].copy().view(np.float64)[0])
    codes = packed[8:].copy().view(np.int8).reshape(n, n_classes - 1)
    known = codes * step
    if not (np.abs(known) < MOST).all():
        raise StorageError("scores that are not finite, or beyond all odds")
    return np.concatenate([known, -known.sum(axis=1, keepdims=True)], axis=1)


class Tilting(ClientState):
    """The part of a client that fits, scores and applies tilts."""

    @handles(m.FIT_TILT)
    def _fit_tilt(self, request: m.FitTilt) -> m.TiltFitted:
        """Tables of the client's own columns, others' scores of the same rows given."""
        start = time.process_time()
        learner = self._learner.of_densities(None, mixed=request.mixed)
        table = self._have().columns(request.columns)
        can = self._learner.tilts and all(n_states_of(v) > 0 for v in table.schema)
        own = self._mail.key.public
        if not can or (request.pieces and request.key != own):
            return m.TiltFitted(own, can, m.NO_TABLES, np.zeros(1))
        offset = np.zeros((len(table), request.n_classes))
        codes, taking = self._classes()
        if request.rows:
            expected = [
                Expected(
                    each.piece,
                    TILT,
                    each.rows,
                    partial(unpacked_levels, shape=(each.n_rows, request.n_classes)),
                )
                for each in request.pieces
            ]
            opened = self._mail.open(request.step, expected) if expected else []
            for each, scores in zip(request.pieces, opened, strict=True):
                offset[self._aligned.named(each.rows)] += scores
            if not request.rest:
                taking = taking & self._counted_of(request.rows)
        if self._use is not None:
            taking = taking & self._use
        rows = np.flatnonzero(taking)
        assert isinstance(learner, LearnsTilt)
        mine, classes = table.rows(rows), codes[rows]
        if np.unique(classes).size < 2:  # one class: there is nothing to compare
            found = _without_effect(mine, classes, request.n_classes)
        else:
            found = learner.fit_tilt(
                mine, classes, offset[rows], request.min_rows, request.n_columns
            )
        seconds = seconds_since(start)
        return m.TiltFitted(own, True, tables_of(found), seconds)

    @handles(m.SCORE_TILT)
    def _score_tilt(self, request: m.ScoreTilt) -> m.Sealed:
        """Scores of the client's rows by tables, for the client whose turn it is."""
        named = self._aligned.named(request.rows)
        scores = packed_levels(tilt_of(request.tables).scores(self._have().rows(named)))
        return self._mail.seal(scores, request.key, TILT, request.step, request.rows)

    @handles(m.MASSES)
    def _masses(self, request: m.AskMasses) -> m.Masses:
        """Masses of states under tilted models, by which the server chooses what classes share."""
        tilt = tilt_of(request.tables)
        found = [masses_by_class(self._model(name), tilt) for name in request.models]
        none = np.zeros((tilt.n_classes, 0))
        side_by_side = [np.concatenate([none, *cells.values()], axis=1) for _, cells in found]
        log_z = np.array([each for each, _ in found])
        return m.Masses(log_z, {str(at): cells for at, cells in enumerate(side_by_side)})

    @handles(m.TAKE_TILT)
    def _take_tilt(self, request: m.TakeTilt) -> m.Ready:
        self._tilts[request.name] = tilt_of(request.tables)
        return m.Ready(len(self._have()), [])

    @handles(m.NORMALISERS)
    def _normalisers(self, request: m.AskNormalisers) -> m.Normalisers:
        """How much mass each tilted model has before it is divided by it."""
        found = [self._log_z(replace(name, tilt=request.name)) for name in request.models]
        return m.Normalisers(np.array(found))

    def _model(self, name: ModelName) -> Density:
        """A model that was fitted here, or one tilted by tables that were sent."""
        if name.tilt:
            return self._tilted_models(replace(name, tilted_class=-1))[name.tilted_class][0]
        if name not in self._models:
            raise FederationError(f"client {self.name!r} has no model {str(name)!r}")
        return self._models[name]

    def _tilted_models(self, name: ModelName) -> list[tuple[Density, float]]:
        """For every class a model tilted by tables, and its normaliser; made once for a fit."""
        model, tilt = self._to_tilt(name)
        kept = self._tilted.get(name)
        if kept is None or kept[0] is not model:
            kept = self._tilted[name] = (model, tilted_by_class(model, tilt))
        return kept[1]

    def _log_z(self, name: ModelName) -> FloatArray:
        """(Y,) log of what each class of a model sums to under tables that were sent.

        No tilted circuit is made for them: a trial needs no more.
        """
        model, tilt = self._to_tilt(name)
        kept = self._normalisers_of.get(name)
        if kept is None or kept[0] is not model:
            kept = self._normalisers_of[name] = (model, masses_by_class(model, tilt)[0])
        return kept[1]

    def _to_tilt(self, name: ModelName) -> tuple[Density, Tilt]:
        """The model and the tables of a tilted one."""
        if name.tilt not in self._tilts:
            raise FederationError(f"client {self.name!r} was not sent the tilt {name.tilt!r}")
        return self._model(replace(name, tilt="")), self._tilts[name.tilt]


def tilted_by_class(model: Density, tilt: Tilt) -> list[tuple[Density, float]]:
    """For every class m(x) exp(sum_j g_yj(x_j)) / Z_y and log Z_y.

    Args:
        model: m, a circuit with tables of states for leaves.
        tilt: whose tables over the model's columns count.
    """
    circuit, tables = _tables_over(model, tilt)
    return [
        circuit.tilted({name: table[y] for name, table in tables.items()})
        for y in range(tilt.n_classes)
    ]


def masses_by_class(model: Density, tilt: Tilt) -> tuple[FloatArray, dict[str, FloatArray]]:
    """(Y,) log Z_y, and by column the masses (Y, states) of m(x) exp(sum_j g_yj(x_j)) / Z_y."""
    circuit, tables = _tables_over(model, tilt)
    return tilted_masses(circuit, tables, tilt.n_classes)


def _tables_over(model: Density, tilt: Tilt) -> tuple[Circuit, dict[str, FloatArray]]:
    """A circuit, and the tables of its columns in the order of the tilt."""
    if not isinstance(model, Circuit):
        raise FederationError(f"a {type(model).__name__} has no tables of states to tilt")
    return model, {name: tilt.of(name) for name in tilt.columns if name in model.schema}


def _without_effect(rows: Table, classes: IntArray, n_classes: int) -> Tilt:
    """The tilt of rows of one class or none: all tables zero."""
    counts = np.bincount(classes, rows.weights, minlength=n_classes).astype(float)
    tables = _zeros([n_states_of(variable) for variable in rows.schema], n_classes)
    c = np.where(counts > 0, 0.0, -np.inf)
    return Tilt(tuple(rows.schema.names), c, tables, counts)


def _zeros(widths: Sequence[int], n_classes: int) -> tuple[FloatArray, ...]:
    return tuple(np.zeros((n_classes, width)) for width in widths)
