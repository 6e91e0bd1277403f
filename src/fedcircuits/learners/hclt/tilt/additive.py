"""A tilt fitted to rows alone, with no tree: convex, quick, and with others' scores as an offset.

The objective is that of the tilted circuit, cross-entropy + NLL / D + penalties / N, with the rows
themselves in place of m: log Z is the log of the mean of sum_y exp(logit) over the rows. So columns
that depend on each other are not counted twice, and other clients' scores of a row enters
as a fixed offset. Strengths of the penalties are estimated as for the tilted circuit (`priors.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, sparse

from fedcircuits.arrays import FloatArray, IntArray, IntegerArray
from fedcircuits.density.tilt import Tilt
from fedcircuits.learners.hclt.sample import Sample
from fedcircuits.learners.hclt.tilt.priors import (
    COARSE_RIDGE,
    TiltLayout,
    TiltPrior,
    coarse_penalty,
    constant_prior,
    fine_penalty,
    tilt_layout,
    updated_prior,
)
from fedcircuits.learners.hclt.tilt.tilt_fit import log_total
from fedcircuits.learners.hclt.tree.chow_liu import one_hot
from fedcircuits.learners.hclt.tree.tree_em import column_marginals
from fedcircuits.learners.prepare import Coded
from fedcircuits.native import Kernels, Pointer, addresses, kernels, pointer

# Steps of the first fit and of the last one; those between only move the strengths.
_N_STEPS, _LAST_STEPS, _MOVING_STEPS, _MEMORY = 40, 20, 10, 12
# Up to so many cells a dense product takes less time than a sparse one takes to begin.
_DENSE_CELLS = 2**15
_UPDATES = ("fine", "fine", "both", "both")

Tables = tuple[FloatArray, FloatArray, FloatArray]


@dataclass(frozen=True)
class AdditiveRows:
    """Labelled rows as indicators of their states.

    Attributes:
        indicator: (n, W) one-hot states, empty where missing.
        labels: (n,) classes.
        weights: (n,) summing to one.
        n_effective: rows behind the weights.
        offset: (n, Y) log-scores of each row from other clients' columns.
    """

    indicator: sparse.csr_matrix
    labels: IntegerArray
    weights: FloatArray
    n_effective: float
    offset: FloatArray

    @property
    def n_classes(self) -> int:
        """Number of classes Y."""
        return int(self.offset.shape[1])

    @staticmethod
    def of(
        codes: IntegerArray,
        cards: tuple[int, ...],
        labels: IntegerArray,
        weights: FloatArray,
        offset: FloatArray,
    ) -> AdditiveRows:
        """Rows of states (n, D), -1 where missing, with labels and weights (n,)."""
        total = float(weights.sum())
        indicator = one_hot(codes, cards)
        indicator.indptr = indicator.indptr.astype(np.int32, copy=False)
        indicator.indices = indicator.indices.astype(np.int32, copy=False)
        classes = np.ascontiguousarray(labels, dtype=np.int64)
        offset = np.ascontiguousarray(offset, dtype=np.float64)
        return AdditiveRows(indicator, classes, weights / total, total, offset)


class AdditiveProblem:
    """The objective over a flat, preconditioned vector of class constants, fine, coarse tables."""

    def __init__(
        self, rows: AdditiveRows, layout: TiltLayout, prior: TiltPrior, n_columns: int
    ) -> None:
        """Set up for fixed rows and strengths; D is `n_columns`, others' included."""
        self.rows, self.layout, self.prior = rows, layout, prior
        Y = rows.n_classes
        self._sizes = [Y, Y * layout.n_fine, Y * layout.n_coarse]
        self._columns = n_columns
        self._kept: list[npt.NDArray[Any]] = []
        self._coarse_of: sparse.csr_matrix | FloatArray = layout.coarse_of  # (W, C)
        if layout.n_fine * layout.n_coarse <= _DENSE_CELLS:
            self._coarse_of = layout.coarse_of.toarray()
        share = np.bincount(rows.labels, rows.weights, minlength=Y)
        variance = rows.n_effective * share * (1 - share) + 1e-6
        cells = np.asarray(rows.indicator.T @ rows.weights)
        coarse = layout.coarse_of.T @ cells
        curvature = [
            variance,
            (np.outer(variance, cells) + prior.fine[layout.column_of]).ravel(),
            (np.outer(variance, coarse) + 2 * prior.coarse[layout.coarse_column]).ravel(),
        ]
        self._scale = np.sqrt(rows.n_effective / np.concatenate(curvature))

    def unpack(self, vector: FloatArray) -> Tables:
        """c (Y,), fine (Y, W) and coarse (Y, C) of a vector."""
        Y = self.rows.n_classes
        c, fine, coarse = np.split(vector * self._scale, np.cumsum(self._sizes)[:-1])
        return c, fine.reshape(Y, -1), coarse.reshape(Y, self.layout.n_coarse)

    def pack(self, c: FloatArray, fine: FloatArray, coarse: FloatArray) -> FloatArray:
        """Inverse of `unpack`."""
        return np.asarray(np.concatenate([c, fine.ravel(), coarse.ravel()]) / self._scale)

    def _cell_tilts(self, tables: Tables) -> FloatArray:
        """(W, Y) what each state adds to the logits, coarse part included."""
        return np.ascontiguousarray(tables[1].T + self._coarse_of @ tables[2].T)

    def logits(self, tables: Tables) -> FloatArray:
        """(n, Y) unnormalised logs."""
        rows = self.rows
        return np.asarray(rows.indicator @ self._cell_tilts(tables) + tables[0] + rows.offset)

    def __call__(self, vector: FloatArray) -> tuple[float, FloatArray]:
        """Return objective and gradient at a packed vector."""
        native, rows = kernels(), self.rows
        if native is not None:
            return self._compiled(native, vector)
        tables = self.unpack(vector)
        value, d_c, cells = self._of_rows(tables)
        d_g, d_coarse = cells.T, (self._coarse_of.T @ cells).T  # (Y, W), (Y, C)
        for penalty, table, slope_of in (
            (fine_penalty, tables[1], d_g),
            (coarse_penalty, tables[2], d_coarse),
        ):
            cost, slope = penalty(table, self.prior, self.layout)
            value += cost / rows.n_effective
            slope_of += slope / rows.n_effective
        gradient = np.concatenate([d_c, d_g.ravel(), d_coarse.ravel()])
        return value, gradient * self._scale

    @cached_property
    def _laid_out(self) -> list[Pointer]:
        """What the compiled loop reads and writes; the first arrays are vector to value."""
        rows, layout, prior, (n, Y) = self.rows, self.layout, self.prior, self.rows.offset.shape
        W, n_coarse = layout.n_fine, layout.n_coarse
        same = np.append(0.0, layout.coarse_column[1:] == layout.coarse_column[:-1])
        kept = [
            *(np.empty_like(self._scale), self._scale, np.empty_like(self._scale), np.empty(1)),
            *(layout.coarse_index, prior.fine[layout.column_of]),
            *(prior.coarse[layout.coarse_column], same[:n_coarse]),
            *(rows.indicator.indptr, rows.indicator.indices, rows.labels, rows.weights),
            *(rows.offset, np.empty((n, Y)), np.empty(n), np.empty((W, Y)), np.empty((W, Y))),
            np.empty(Y),
        ]
        self._kept = kept
        sizes = np.array([n, Y, W, n_coarse], dtype=np.int64)
        numbers = np.array([1.0 / self._columns, rows.n_effective, COARSE_RIDGE])
        return [pointer(array) for array in (sizes, numbers, addresses(kept))]

    def _compiled(self, native: Kernels, vector: FloatArray) -> tuple[float, FloatArray]:
        """The same in one call."""
        arguments = self._laid_out
        self._kept[0][:] = vector
        native.call("additive_objective", *arguments)
        return float(self._kept[3][0]), self._kept[2].copy()

    def _of_rows(self, tables: Tables) -> tuple[float, FloatArray, FloatArray]:
        """The NumPy twin of the compiled loop over rows."""
        rows, D, every = self.rows, self._columns, np.arange(len(self.rows.labels))
        logits = self.logits(tables)
        total = log_total(logits)
        chosen = logits[every, rows.labels]
        top = float(total.max())
        mass = rows.weights * np.exp(total - top)  # (n,)
        log_z = float(np.log(mass.sum())) + top
        value = float(rows.weights @ (total - chosen))
        value += (log_z - float(rows.weights @ chosen)) / D
        residual = np.exp(logits - total[:, None])
        residual *= (rows.weights + mass / mass.sum() / D)[:, None]
        residual[every, rows.labels] -= (1.0 + 1.0 / D) * rows.weights
        return value, residual.sum(axis=0), np.asarray(rows.indicator.T @ residual)

    def curvature(self, tables: Tables) -> FloatArray:
        """(Y, W) sum over the rows in a state of p(y | x)(1 - p(y | x)), in rows."""
        logits = self.logits(tables)
        p = np.exp(logits - log_total(logits)[:, None])
        spread = p * (1 - p) * (self.rows.weights * self.rows.n_effective)[:, None]
        return np.asarray(self.rows.indicator.T @ spread).T


def fit_additive(
    rows: AdditiveRows,
    layout: TiltLayout,
    n_own: int,
    prior_scale: float = 1.0,
    n_columns: int | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return c (Y,) and g (Y, W): the tables and the strengths of their penalties in turn.

    Args:
        rows: what is fitted.
        layout: of the tables.
        n_own: columns of the tables.
        prior_scale: what the strengths are multiplied by in a last fit, for tables that will be
            averaged with others'.
        n_columns: D where others hold columns too.
    """
    prior, D = constant_prior(n_own), n_columns or n_own
    Y = rows.n_classes
    share = np.bincount(rows.labels, rows.weights, minlength=Y)
    tables: Tables = (
        np.log(np.maximum(share, 1e-12)),
        np.zeros((Y, layout.n_fine)),
        np.zeros((Y, layout.n_coarse)),
    )
    tables = _fitted(AdditiveProblem(rows, layout, prior, D), tables, _N_STEPS)
    for number, kind in enumerate(_UPDATES):
        curvature = AdditiveProblem(rows, layout, prior, D).curvature(tables)
        fresh = updated_prior(tables[1], tables[2], curvature, prior, layout)
        prior = TiltPrior(fresh.fine, fresh.coarse if kind == "both" else prior.coarse)
        is_last = number + 1 == len(_UPDATES) and prior_scale == 1.0
        n_steps = _LAST_STEPS if is_last else _MOVING_STEPS
        tables = _fitted(AdditiveProblem(rows, layout, prior, D), tables, n_steps)
    if prior_scale != 1.0:
        prior = prior.scaled(prior_scale)
        tables = _fitted(AdditiveProblem(rows, layout, prior, D), tables, _LAST_STEPS)
    c, fine, coarse = tables
    return c, np.asarray(fine + (layout.coarse_of @ coarse.T).T)


def additive_tilt(
    names: Sequence[str],
    sample: Sample,
    coded: Coded,
    offset: FloatArray,
    min_rows: int,
    prior_scale: float,
    n_columns: int | None = None,
) -> Tilt:
    """Return the tilt of coded rows with labels, over all classes (those without rows have -inf).

    Args:
        names: of the columns.
        sample: the rows; its labels are the classes.
        coded: states of the columns.
        offset: (n, Y) log-scores of each row from other clients' columns.
        min_rows: least rows behind an entry: states with fewer share one.
        prior_scale: as for `fit_additive`.
        n_columns: as for `fit_additive`.
    """
    labels, weights = sample.labels, sample.weights
    assert labels is not None
    present = np.unique(labels)
    shares = [
        shared_entries(np.bincount(own[own >= 0], minlength=card), is_ordered, min_rows)
        for own, card, is_ordered in zip(sample.codes.T, coded.cards, coded.ordered, strict=True)
    ]
    cards = tuple(int(entry.max(initial=0)) + 1 for entry in shares)
    codes = np.stack(
        [
            np.where(own >= 0, entry[own], -1)
            for own, entry in zip(sample.codes.T, shares, strict=True)
        ],
        axis=1,
    )
    masses = column_marginals(codes, cards, weights)
    layout = tilt_layout(cards, np.asarray(coded.ordered, dtype=bool), masses)
    rows = AdditiveRows.of(
        codes, cards, np.searchsorted(present, labels), weights, offset[:, present]
    )
    c, g = fit_additive(rows, layout, len(cards), prior_scale, n_columns)
    n_classes, tables = offset.shape[1], []
    split = np.split(g, np.cumsum(cards)[:-1], axis=1)
    for own, mass, entry in zip(split, masses, shares, strict=True):
        mean = own @ mass  # (P,): a missing cell adds nothing, so tables have mean zero over rows
        c = c + mean
        full = np.zeros((n_classes, entry.size))
        full[present] = np.where(entry >= 0, (own - mean[:, None])[:, entry], 0.0)
        tables.append(full)
    constants = np.full(n_classes, -np.inf)
    constants[present] = c
    counts = np.bincount(labels, weights, minlength=n_classes).astype(float)
    return Tilt(tuple(names), constants, tuple(tables), counts)


def shared_entries(counts: IntegerArray, is_ordered: bool, min_rows: int) -> IntArray:
    """(states,) the entry of a table that each state has, -1 for none.

    States with fewer rows than `min_rows` share an entry with others like them: the next ones
    along an axis, or all of them where there is no order. A state without rows has the entry of
    its neighbour below, or none.
    """
    entry = np.full(counts.size, -1, dtype=np.int64)
    few = np.flatnonzero((counts > 0) & (counts < min_rows))
    n_entries, pending = 0, 0
    for state in few:
        entry[state] = n_entries
        pending += int(counts[state])
        if pending >= min_rows and is_ordered:
            n_entries, pending = n_entries + 1, 0
    if 0 < pending < min_rows and n_entries > 0:
        entry[entry == n_entries] = n_entries - 1
    elif pending >= min_rows:
        n_entries += 1
    elif pending > 0:
        entry[few] = -1  # too few altogether
    many = counts >= max(min_rows, 1)
    entry[many] = n_entries + np.arange(int(many.sum()))
    if is_ordered:  # numbered along the axis
        known = np.flatnonzero(entry >= 0)
        if known.size:
            below = known[
                np.maximum(np.searchsorted(known, np.arange(counts.size), "right") - 1, 0)
            ]
            entry = entry[below]
            place = np.array([np.flatnonzero(entry == e).mean() for e in range(entry.max() + 1)])
            entry = np.argsort(np.argsort(place, kind="stable"), kind="stable")[entry]
    return entry


def _fitted(problem: AdditiveProblem, start: Tables, n_steps: int) -> Tables:
    """The tables after L-BFGS from a start."""
    found = optimize.minimize(
        problem,
        problem.pack(*start),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": n_steps, "maxcor": _MEMORY, "ftol": 1e-9, "gtol": 1e-7},
    )
    return problem.unpack(np.asarray(found.x))
