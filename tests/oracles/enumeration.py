"""All worlds of a small schema with their weights: enumeration and quadrature in one.

Every variable gets points and weights such that a sum over the points is the integral with respect
to the variable's base measure: categories, counts and atoms have weight one, an interval has
Gauss-Legendre nodes, a Lomax tail has them in y = (1 + d/s)^-1, where it is a polynomial. The
worlds are the product of the variables' points, so sum(weight * density) is the mass of a mixed
table.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

ORDER = 12
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(ORDER)


@dataclass(frozen=True)
class Points:
    """Values of one variable and their weights in the base measure.

    Attributes:
        values: original values.
        weights: (k,) 1 for a point of counting measure.
        is_point: (k,) whether the value has counting measure (a category, count or atom).
    """

    values: tuple[Any, ...]
    weights: np.ndarray
    is_point: np.ndarray

    @staticmethod
    def of_values(values: Iterable[Any]) -> Points:
        """Counting measure on some values."""
        values = tuple(values)
        return Points(values, np.ones(len(values)), np.ones(len(values), dtype=bool))

    @staticmethod
    def of_interval(edges: Sequence[float], panel: float = np.inf) -> Points:
        """Length between the lowest and the highest edge; the density may jump at the edges."""
        fine: list[float] = []
        for low, high in itertools.pairwise(sorted(set(edges))):
            pieces = max(1, int(np.ceil((high - low) / panel)))
            fine += list(np.linspace(low, high, pieces + 1)[:-1])
        ends = np.array([*fine, max(edges)])
        half = np.diff(ends) / 2
        values = (ends[:-1, None] + half[:, None] * (1 + _NODES)).reshape(-1)
        weights = (half[:, None] * _WEIGHTS).reshape(-1)
        return Points(tuple(map(float, values)), weights, np.zeros(values.size, dtype=bool))

    @staticmethod
    def of_tail(edge: float, scale: float, sign: int) -> Points:
        """Length beyond an edge, for densities that fall like a Lomax tail of that scale."""
        y = (1 + _NODES) / 2
        values = edge + sign * scale * (1 / y - 1)
        weights = _WEIGHTS / 2 * scale / y**2
        return Points(tuple(map(float, values)), weights, np.zeros(values.size, dtype=bool))

    @staticmethod
    def of_grid(atoms: Sequence[float], edges: Sequence[float], tails: Sequence[float]) -> Points:
        """The base measure of a histogram: atoms, bins, tails of a positive scale."""
        parts = [Points.of_values(map(float, atoms))]
        if len(edges) > 1:
            parts.append(Points.of_interval(list(edges)))
        if tails[0] > 0:
            parts.append(Points.of_tail(edges[0], tails[0], -1))
        if tails[1] > 0:
            parts.append(Points.of_tail(edges[-1], tails[1], 1))
        return Points.joined(parts)

    @staticmethod
    def joined(parts: Sequence[Points]) -> Points:
        """Several parts of one measure."""
        return Points(
            tuple(v for part in parts for v in part.values),
            np.concatenate([part.weights for part in parts]),
            np.concatenate([part.is_point for part in parts]),
        )


@dataclass(frozen=True)
class Worlds:
    """The product of the points of all variables.

    Attributes:
        points: by name, in the order of the columns.
    """

    points: Mapping[str, Points]

    @property
    def names(self) -> list[str]:
        """Names in order."""
        return list(self.points)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a world."""
        rows = itertools.product(*(p.values for p in self.points.values()))
        return pd.DataFrame(rows, columns=self.names)

    @cached_property
    def weights(self) -> np.ndarray:
        """(n,) weight of each world in the base measure."""
        answer = np.ones(1)
        for p in self.points.values():
            answer = (answer[:, None] * p.weights[None, :]).reshape(-1)
        return answer

    def only(self, names: Iterable[str]) -> Worlds:
        """Worlds of some variables, in the order given."""
        return Worlds({name: self.points[name] for name in names})

    @property
    def is_discrete(self) -> bool:
        """Whether every variable has counting measure throughout."""
        return all(p.is_point.all() for p in self.points.values())

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of points of each variable."""
        return tuple(len(p.values) for p in self.points.values())

    def sum_out(self, density: np.ndarray, keep: Sequence[str]) -> np.ndarray:
        """Density of `keep`, in the order of `only(keep)`, from the density of all worlds."""
        cube = np.asarray(density).reshape(self.shape)
        for axis, (name, p) in enumerate(self.points.items()):
            if name not in keep:
                along = [1] * cube.ndim
                along[axis] = -1
                cube = (cube * p.weights.reshape(along)).sum(axis=axis, keepdims=True)
        left = [n for n in self.names if n in keep]
        cube = cube.reshape([len(self.points[n].values) for n in left])
        return cube.transpose([left.index(n) for n in keep]).reshape(-1)


def matches(frame: pd.DataFrame, given: Mapping[str, Any]) -> np.ndarray:
    """(n,) rows of a frame that agree with some values."""
    agree = np.ones(len(frame), dtype=bool)
    for name, value in given.items():
        agree &= (frame[name] == value).to_numpy(dtype=bool)
    return agree
