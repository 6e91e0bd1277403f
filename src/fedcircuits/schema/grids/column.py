"""What is known of a column when its grid is made, and whether zero is its natural floor."""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, inf, sqrt

import numpy as np

from fedcircuits.arrays import FloatArray

# Zero is a floor of a column without a number below it ...
FLOOR_ROWS = 50  # ... of so many rows or more ...
AT_FLOOR = 5  # ... where so many are zero, or ...
EXPECTED_BELOW = 5.0  # ... a normal of the rows' mean and spread would have so many below, or ...
HARDLY_APART = 1e-6  # (of their size: such values are one, and a floor is nowhere near)
HARDLY_BELOW = 3e-5  # ... no more than this share, so that a floor changes next to nothing.


@dataclass(frozen=True)
class Points:
    """The values of a column that are no atoms, in order, or means of groups of neighbours.

    Attributes:
        values: (m,) increasing.
        rows: (m,) rows behind each.
        spreads: (m,) standard deviation of the rows behind each.
    """

    values: FloatArray
    rows: FloatArray
    spreads: FloatArray


@dataclass(frozen=True)
class Column:
    """What is known of a column.

    Attributes:
        atoms: (k,) values with a point mass.
        atom_rows: (k,) rows behind each.
        points: the others.
        ends: lowest and highest value, or those of the groups' means.
        known: whether `ends` are the range of the rows, lower and upper.
        scales: scale of the tails beyond the range.
        n_rows: rows with a value.
        outer: least rows of an open tail, lower and upper: groups of rows stay whole there.
        never_below: what no row is below, -inf where nothing is known of that.
    """

    atoms: FloatArray
    atom_rows: FloatArray
    points: Points
    ends: tuple[float, float]
    known: tuple[bool, bool]
    scales: tuple[float, float]
    n_rows: float
    outer: tuple[float, float] = (0.0, 0.0)
    never_below: float = -inf

    @property
    def moments(self) -> tuple[float, float, float]:
        """The largest size of a value, and the mean and the standard deviation in that unit."""
        values = np.concatenate([self.atoms, self.points.values])
        rows = np.concatenate([self.atom_rows, self.points.rows])
        within = np.concatenate([np.zeros(self.atoms.size), self.points.spreads])
        size = float(np.abs(values).max()) or 1.0  # squares are taken of numbers up to 1
        mean = float(rows @ (values / size)) / self.n_rows
        squares = (values / size - mean) ** 2 + (within / size) ** 2
        return size, mean, sqrt(float(rows @ squares) / self.n_rows)

    @property
    def floor(self) -> float:
        """Where the lower tail ends by nature: `never_below`, unless that may be by chance; -inf.

        A number with a sign is above zero in all the rows where its mean is a few spreads above,
        and the next row may be below. The more rows there are, the less that is by chance.
        """
        if self.never_below == -inf or self.n_rows < FLOOR_ROWS:
            return -inf
        if self.atom_rows[self.atoms == self.never_below].sum() >= AT_FLOOR:
            return self.never_below
        size, mean, spread = self.moments
        if spread < HARDLY_APART:
            return -inf
        away = mean - self.never_below / size
        below = 0.5 * erfc(away / (spread * sqrt(2)))
        by_nature = below <= HARDLY_BELOW or below * self.n_rows >= EXPECTED_BELOW
        return self.never_below if by_nature else -inf
