"""Priors of the tilt: a fine and a coarse table per column, each with a strength of its own.

g is the sum of a fine table (a number per state, ridge) and, for ordered columns, a coarse one (at
most 16 groups of neighbouring states, penalised for differences between neighbours). An effect that
neighbouring states share is cheap through the coarse table, a sharp one at a single state is still
possible through the fine one. No single strength serves all columns (the atoms of a capital gain
want almost none, the noise of a sampling weight wants a lot), so the strengths are estimated per
column from the fit itself (MacKay's update): strength = effective parameters / penalised square.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedcircuits.arrays import FloatArray

Indices = npt.NDArray[np.int64]

N_COARSE = 16
# Share of plain ridge inside the coarse penalty: keeps its level identified.
COARSE_RIDGE = 0.07
_STRENGTHS = (0.05, 1000.0)


@dataclass(frozen=True)
class TiltPrior:
    """Strengths of the penalties per column, in units of one row.

    Attributes:
        fine: (D,) on the squares of the fine table.
        coarse: (D,) on squared differences of neighbouring coarse groups (and a little ridge).
    """

    fine: FloatArray
    coarse: FloatArray

    def scaled(self, factor: float) -> TiltPrior:
        """The same with all strengths multiplied."""
        return TiltPrior(factor * self.fine, factor * self.coarse)


def constant_prior(n_columns: int, fine: float = 1.0, coarse: float = 3.0) -> TiltPrior:
    """The same strengths for every column."""
    return TiltPrior(np.full(n_columns, fine), np.full(n_columns, coarse))


def between(one: TiltPrior, other: TiltPrior) -> TiltPrior:
    """Geometric means of the strengths of two priors."""
    return TiltPrior(np.sqrt(one.fine * other.fine), np.sqrt(one.coarse * other.coarse))


@dataclass(frozen=True)
class TiltLayout:
    """How the fine and coarse tables of the tilt are laid out.

    Attributes:
        column_of: (W,) column of every fine state.
        coarse_of: (W, C) sparse map: fine state to its coarse group (no entry: no coarse table).
        coarse_column: (C,) column of every coarse group; a column's groups are adjacent, in order.
    """

    column_of: Indices
    coarse_of: sparse.csr_matrix
    coarse_column: Indices

    @cached_property
    def coarse_index(self) -> npt.NDArray[np.int32]:
        """(W,) coarse group of every fine state, -1 for none."""
        answer = np.full(self.n_fine, -1, dtype=np.int32)
        entries = self.coarse_of.tocoo()
        answer[entries.row] = entries.col
        return answer

    @property
    def n_fine(self) -> int:
        """Number W of entries of the fine tables."""
        return len(self.column_of)

    @property
    def n_coarse(self) -> int:
        """Number C of entries of the coarse tables."""
        return len(self.coarse_column)


def tilt_layout(
    cards: tuple[int, ...], ordered: npt.NDArray[np.bool_], masses: list[FloatArray]
) -> TiltLayout:
    """Return the layout of fine and coarse tables for coded columns.

    Args:
        cards: Number of states of each column.
        ordered: (D,) whether neighbouring states are neighbouring values.
        masses: D arrays (card_j,) with the share of rows in each state; groups hold equal shares.
    """
    rows: list[Indices] = []
    groups: list[Indices] = []
    owners: list[int] = []
    start = 0
    for column, (card, is_ordered) in enumerate(zip(cards, ordered, strict=True)):
        if is_ordered and card > 2:
            group = _groups(masses[column])
            rows.append(np.arange(start, start + card))
            groups.append(len(owners) + group)
            owners.extend([column] * (int(group.max()) + 1))
        start += card
    empty = np.zeros(0, dtype=np.int64)
    all_rows = np.concatenate(rows) if rows else empty
    all_groups = np.concatenate(groups) if groups else empty
    return TiltLayout(
        column_of=np.repeat(np.arange(len(cards)), cards),
        coarse_of=sparse.csr_matrix(
            (np.ones(len(all_rows)), (all_rows, all_groups)), shape=(start, len(owners))
        ),
        coarse_column=np.asarray(owners, dtype=np.int64),
    )


def _groups(mass: FloatArray) -> Indices:
    """Coarse group of every state: one each where they are few, else about equal shares of rows."""
    if len(mass) <= N_COARSE:
        return np.arange(len(mass))
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    group = np.minimum((middle * N_COARSE).astype(np.int64), N_COARSE - 1)
    return np.unique(group, return_inverse=True)[1]


def fine_penalty(
    fine: FloatArray, prior: TiltPrior, layout: TiltLayout
) -> tuple[float, FloatArray]:
    """Penalty of the fine table (Y, W) and its gradient."""
    gradient = prior.fine[layout.column_of] * fine
    return 0.5 * float((gradient * fine).sum()), gradient


def coarse_penalty(
    coarse: FloatArray, prior: TiltPrior, layout: TiltLayout
) -> tuple[float, FloatArray]:
    """Penalty of the coarse table (Y, C) and its gradient."""
    strength = prior.coarse[layout.coarse_column]
    gradient = _coarse_roughness(coarse, layout) * strength
    return 0.5 * float((gradient * coarse).sum()), gradient


def _coarse_roughness(coarse: FloatArray, layout: TiltLayout) -> FloatArray:
    """S g for the coarse penalty g' S g / 2 with unit strength, (Y, C)."""
    same = layout.coarse_column[1:] == layout.coarse_column[:-1]
    step = np.diff(coarse, axis=1) * same
    result = COARSE_RIDGE * coarse
    result[:, 1:] += step
    result[:, :-1] -= step
    return result


def updated_prior(
    fine: FloatArray,
    coarse: FloatArray,
    curvature: FloatArray,
    prior: TiltPrior,
    layout: TiltLayout,
) -> TiltPrior:
    """MacKay's update of every strength.

    Args:
        fine: (Y, W) fitted fine table.
        coarse: (Y, C) fitted coarse table.
        curvature: (Y, W) sum over rows in the state of p(y | x)(1 - p(y | x)).
        prior: Strengths the tables were fitted with.
        layout: The layout of the tables.
    """
    D = len(prior.fine)
    strength = prior.fine[layout.column_of]
    effective = np.bincount(
        layout.column_of, (curvature / (curvature + strength)).sum(axis=0), minlength=D
    )
    square = np.bincount(layout.column_of, np.square(fine).sum(axis=0), minlength=D)
    new_fine = np.clip(effective / np.maximum(square, 1e-9), *_STRENGTHS)

    new_coarse = prior.coarse.copy()
    grouped = np.asarray((layout.coarse_of.T @ curvature.T).T)  # (Y, C)
    energy = np.bincount(
        layout.coarse_column,
        (coarse * _coarse_roughness(coarse, layout)).sum(axis=0),
        minlength=D,
    )
    for column in np.unique(layout.coarse_column):
        mine = layout.coarse_column == column
        size = int(mine.sum())
        steps = np.diff(np.eye(size), axis=0)
        roughness = steps.T @ steps + COARSE_RIDGE * np.eye(size)
        degrees = 0.0
        for h in grouped[:, mine]:
            # trace((H + s S)^-1 H) with H diagonal.
            degrees += float(
                np.trace(np.linalg.solve(np.diag(h) + prior.coarse[column] * roughness, np.diag(h)))
            )
        new_coarse[column] = np.clip(degrees / max(float(energy[column]), 1e-9), *_STRENGTHS)
    return TiltPrior(new_fine, new_coarse)
