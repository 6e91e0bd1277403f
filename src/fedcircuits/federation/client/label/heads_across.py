"""What a client does for a head over different columns: trees, codes of rows, weights of trees."""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from fedcircuits.arrays import BoolArray, Bytes, FloatArray, IntArray
from fedcircuits.density.contracts import LearnsCodes
from fedcircuits.density.row_codes import LEVELS, N_LEAVES
from fedcircuits.density.tilt import by_class, log_softmax
from fedcircuits.errors import StorageError
from fedcircuits.federation.client.dispatch import handles, seconds_since
from fedcircuits.federation.client.label.heads import LEAST_CLASS_ROWS, log_of_label, pooled
from fedcircuits.federation.client.label.tilting import (
    TILT,
    packed_levels,
    unpacked_levels,
)
from fedcircuits.federation.client.mailbox import Expected
from fedcircuits.federation.client.state import ClientState
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.packing import expand, squeeze
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.schema import Table

# Paired standard errors by which trees on codes must be better than those without.
LEAST_ERRORS = 1.0
# Lengths of packed codes are multiples of this many bytes, or of a 64th of a byte a code if more.
LEAST_STEP, STEPS = 64, 64
CODES, ALONE, ACROSS = "codes of rows", "trees alone", "trees across"  # what is sealed
_NO_PIECE = m.Piece(np.zeros(0, dtype=np.uint8), "")


def packed_row_codes(levels: FloatArray, leaves: FloatArray) -> Bytes:
    """Return levels (n, Y - 1) and leaves (n,) as bytes, frequent pairs in fewer bits.

    The last level and the leaf, which follow each other, are one symbol; so is each other level.
    The length is rounded up so far that it seldom changes with one row: a relay sees lengths.
    """
    symbols = (levels + LEVELS).astype(np.uint8)
    symbols[:, -1] = symbols[:, -1] * N_LEAVES + leaves.astype(np.uint8)
    step = max(LEAST_STEP, symbols.size // STEPS)
    return squeeze(np.ascontiguousarray(symbols.T).reshape(-1), step=step)


def unpacked_row_codes(packed: Bytes, n_rows: int, n_classes: int) -> FloatArray:
    """Return the codes (n, Y) that `packed_row_codes` was given, the leaf last."""
    symbols = expand(packed, n_rows * (n_classes - 1)).reshape(n_classes - 1, n_rows).T.copy()
    leaves = symbols[:, -1] % N_LEAVES
    symbols[:, -1] //= N_LEAVES
    if (symbols > 2 * LEVELS).any():
        raise StorageError(f"codes beyond {2 * LEVELS}")
    return np.column_stack([symbols.astype(float) - LEVELS, leaves.astype(float)])


class HeadsAcross(ClientState):
    """The part of a client that boosts trees across borders."""

    def _sealed(self, packed: Bytes, to: m.SealFor, what: str) -> m.Piece:
        sealed = self._mail.seal(packed, to.key, what, to.step, to.rows)
        return m.Piece(sealed.values, self.name)

    def _head_learner(self, n_classes: int, classes: IntArray) -> LearnsCodes | None:
        """The learner, if it boosts trees and every class has rows enough."""
        learner = self._learner.of_densities(None)
        counts = np.bincount(classes, minlength=n_classes)
        able = isinstance(learner, LearnsCodes) and learner.heads
        if not able or counts.min(initial=LEAST_CLASS_ROWS) < LEAST_CLASS_ROWS:
            return None
        assert isinstance(learner, LearnsCodes)
        return learner

    @handles(m.FIT_CODE_TREES)
    def _fit_code_trees(self, request: m.FitCodeTrees) -> m.CodeTreesFitted:
        """Trees over the client's own columns, and codes of rows for others."""
        start = time.process_time()
        table, held, named = self._rows_of(request)
        classes, known = self._labelled(held)
        learner = self._head_learner(request.n_classes, classes[known])
        if learner is None:
            return m.CodeTreesFitted({}, {}, 1.0, _NO_PIECE, (), np.zeros(1))
        seed = int(named_rng(self._seed, self.name, "say codes").integers(2**31))
        made = learner.fit_code_trees(
            table,
            classes,
            known,
            held & known,
            request.min_rows,
            seed,
            (request.leaf, request.width) if request.leaf else None,
        )
        outputs = self._sealed(packed_levels(by_class(made.outputs[named])), request.held, ALONE)
        codes = []
        for to in request.to:
            rows = self._aligned.named(to.rows)
            packed = packed_row_codes(made.levels[rows], made.leaves[rows])
            codes.append(self._sealed(packed, to, CODES))
        return m.CodeTreesFitted(
            made.trees, made.leaf, made.width, outputs, tuple(codes), seconds_since(start)
        )

    @handles(m.FIT_TREES_ON_CODES)
    def _fit_trees_on_codes(self, request: m.FitTreesOnCodes) -> m.TreesOnCodesFitted:
        """Trees over the client's own columns and codes of other groups."""
        start = time.process_time()
        own = self._mail.key.public
        table, held, named = self._rows_of(request)
        classes, known = self._labelled(held)
        learner = self._head_learner(request.n_classes, classes[known])
        if learner is None or own != request.key:
            return m.TreesOnCodesFitted(own, {}, _NO_PIECE, np.zeros(1))
        n_classes = request.n_classes
        codes = np.full((len(table), request.n_groups * n_classes), np.nan)
        expected = [
            Expected(
                each.piece,
                CODES,
                each.rows,
                partial(unpacked_row_codes, n_rows=each.n_rows, n_classes=n_classes),
            )
            for each in request.codes
        ]
        opened = self._mail.open(request.step, expected)
        for each, found in zip(request.codes, opened, strict=True):
            at = slice(each.group * n_classes, (each.group + 1) * n_classes)
            codes[self._aligned.named(each.rows), at] = found
        rows = np.flatnonzero(known)
        seed = int(named_rng(self._seed, self.name, "see codes").integers(2**31))
        trees, outputs = learner.fit_trees_on_codes(
            table.rows(rows), codes[rows], classes[rows], held[rows], request.min_rows, seed
        )
        scores = np.zeros((len(table), n_classes))
        scores[rows[held[rows]]] = by_class(outputs)
        sealed = self._sealed(packed_levels(scores[named]), request.held, ACROSS)
        return m.TreesOnCodesFitted(own, trees, sealed, seconds_since(start))

    def _rows_of(
        self, request: m.FitCodeTrees | m.FitTreesOnCodes
    ) -> tuple[Table, BoolArray, IntArray]:
        """The columns that are asked for, which rows are left out, and those in order."""
        table = self._have().columns(request.columns)
        named = self._aligned.named(request.held.rows)
        return table, self._counted_of(request.held.rows), named

    def _labelled(self, held: BoolArray) -> tuple[IntArray, BoolArray]:
        """(n,) class of every row, and whether it takes part: left-out rows do in a trial too."""
        classes, known = self._classes()
        return classes, known if self._use is None else known & (self._use | held)

    @handles(m.POOL_ACROSS)
    def _pool_across(self, request: m.PoolAcross) -> m.PooledAcross:
        """Weights of the groups' trees, with codes if those are better for certain."""
        own = self._mail.key.public
        codes, known = self._classes()
        named = self._aligned.named(request.rows)
        take = (known & self._counted_of(request.rows))[named]
        if own != request.key or not take.any():
            return m.PooledAcross(own, None, False)
        place = np.full(len(codes), -1, dtype=np.int64)
        place[named] = np.arange(named.size)
        n_classes = request.c.size

        pieces: list[m.ScorePiece | m.GroupPiece]
        pieces = [*request.tilts, *request.alone, *request.across]
        purposes = [TILT] * len(request.tilts) + [ALONE] * len(request.alone)
        purposes += [ACROSS] * len(request.across)
        expected = [
            Expected(
                each.piece,
                what,
                each.rows,
                partial(unpacked_levels, shape=(each.n_rows, n_classes)),
            )
            for each, what in zip(pieces, purposes, strict=True)
        ]
        scores = np.zeros((1 + 2 * request.n_groups, named.size, n_classes))
        for each, what, values in zip(
            pieces, purposes, self._mail.open(request.step, expected), strict=True
        ):
            at = place[self._aligned.named(each.rows)]
            if (at < 0).any():
                raise StorageError("outputs of rows that are not pooled")
            layer = 0
            if isinstance(each, m.GroupPiece):
                layer = 1 + each.group + (what == ACROSS) * request.n_groups
            scores[layer, at] += values
        log_tilt, labels = log_softmax(request.c + scores[0, take]), codes[named[take]]
        alone, across = np.split(scores[1:, take], 2)
        pool, better = pooled(log_tilt, list(alone), labels), False
        if request.across:
            gain = log_of_label(log_tilt, list(across), labels)
            gain -= log_of_label(log_tilt, list(alone), labels)
            error = float(gain.std() / np.sqrt(gain.size))
            better = bool(gain.mean() > LEAST_ERRORS * error)
            pool = pooled(log_tilt, list(across), labels) if better else pool
        return m.PooledAcross(own, pool, better)
