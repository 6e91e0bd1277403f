"""The complete contract of a leaf family.

A family is stateless: its methods take the parameters of L leaves over one variable, as arrays
whose first axis is L, and the grid the leaves share if the family has one. Every family is exactly
normalised with respect to the base measure of its variable (length for continuous variables plus
counting measure on the atoms of a grid, counting measure for the others).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.leaves.within import Within
from fedcircuits.circuits.nodes import Leaf
from fedcircuits.errors import LearningError
from fedcircuits.schema.events import Region
from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.variable import Kind, Variable

Params = Mapping[str, FloatArray]


class LeafFamily(ABC):
    """One kind of univariate distribution."""

    name: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]]
    parameters: ClassVar[tuple[str, ...]]
    has_grid: ClassVar[bool] = False

    @abstractmethod
    def check(self, params: Params, variable: Variable, grid: Grid | None) -> list[str]:
        """Faults of the parameters, in words; an empty list if there are none."""

    @abstractmethod
    def log_prob(self, params: Params, grid: Grid | None, x: FloatArray) -> FloatArray:
        """(L, n) log-density of the encoded values x (n,); -inf outside the support."""

    @abstractmethod
    def sample(
        self, params: Params, grid: Grid | None, which: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        """(m,) one encoded value from each of the leaves `which` (m,)."""

    @abstractmethod
    def mode(self, params: Params, grid: Grid | None) -> tuple[FloatArray, FloatArray]:
        """(L,) an encoded value of highest density, and (L,) that log-density."""

    @abstractmethod
    def moment(
        self, params: Params, grid: Grid | None, variable: Variable, order: int
    ) -> FloatArray:
        """(L,) E[x**order] of the value as a number, where there is one: order 0 gives P(a value).

        Only "observed to be missing" is no value; elsewhere order 0 gives 1.
        """

    @abstractmethod
    def variance(self, params: Params, grid: Grid | None, variable: Variable) -> FloatArray:
        """(L,) Var[x] of the value given that there is one, without cancellation.

        A variance from raw moments would have no digit left where the mean is large (a time in
        seconds, an identifier); 0 where there is no value, and for strings.
        """

    @abstractmethod
    def support(self, params: Params, grid: Grid | None) -> FloatArray:
        """(L, s) truth values of s states that have positive mass, or (L, 2) lowest and highest."""

    @abstractmethod
    def fit(
        self, variable: Variable, x: FloatArray, weights: FloatArray | None = None, **options: Any
    ) -> Leaf:
        """The leaf of highest (smoothed) likelihood for the encoded values x (n,)."""

    @abstractmethod
    def within(
        self, params: Params, grid: Grid | None, variable: Variable, region: Region
    ) -> Within:
        """The L leaves given that the encoded value lies in a set."""

    def table_of(self, params: Params) -> FloatArray | None:
        """(L, s) probabilities of the states, where a leaf is a table of them; else None."""
        del params
        return None

    def locate(self, grid: Grid | None, x: FloatArray) -> tuple[IntArray, FloatArray | None]:
        """(n,) states of encoded values and (n,) log-densities within them, None for all 0.

        For families with a table; a state outside 0..s-1 is a value of density 0.
        """
        raise NotImplementedError(f"{self.name} leaves have no table")

    def n_parameters(self, params: Params) -> int:
        """Free parameters of all L leaves together."""
        return int(sum(params[name].size for name in self.parameters))

    @property
    def support_is_states(self) -> bool:
        """Whether `support` gives truth values per state rather than an interval."""
        return self.has_grid


def shape_faults(params: Params, names: tuple[str, ...]) -> list[str]:
    """Faults of scalar parameters that every family shares: absent, ragged or not finite."""
    faults = []
    absent = [name for name in names if name not in params]
    if absent:
        return [f"lacks the parameter(s) {', '.join(absent)}"]
    size = params[names[0]].shape[:1]
    for name in names:
        if params[name].ndim != 1 or params[name].shape != size:
            faults.append(f"{name} must be one number a leaf, found shape {params[name].shape}")
        elif not np.isfinite(params[name]).all():
            faults.append(
                f"{name} must be finite, found {params[name][~np.isfinite(params[name])][0]}"
            )
    return faults


def interval_faults(params: Params, variable: Variable) -> list[str]:
    """Return what is wrong with intervals from `low` to `high` of a variable."""
    low, high = params["low"], params["high"]
    if (low >= high).any():
        return ["low must be below high"]
    domain = variable.domain if variable.closed else None
    least, most = domain or (-np.inf, np.inf)
    if (low < least).any() or (high > most).any():
        return [f"the interval leaves the declared domain {variable.domain}"]
    return []


def weighted_rows(x: FloatArray, weights: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """(m,) the values of positive weight, and (m,) their weights; a fit needs at least one.

    A row of weight zero is a row that is not there, also for ranges and floors.
    """
    w = np.ones(x.shape[0]) if weights is None else np.asarray(weights, dtype=float)
    if w.shape != x.shape or not np.isfinite(w).all() or (w < 0).any():
        raise LearningError("weights must be finite numbers >= 0, one a row")
    if not (w > 0).any():
        raise LearningError("a leaf cannot be fitted to no rows (total weight 0)")
    return x[w > 0], w[w > 0]
