"""A Gaussian mixture by scikit-learn, as a circuit: a sum over products of one leaf a column.

Numbers without atoms have normal leaves with a diagonal covariance; categories, counts and columns
with a state for missing values have tables, weighted by the components' responsibilities. With a
label every class has components of its own. No component stands on fewer than five rows, so that
its mean is not one row's value.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits import Circuit, build
from fedcircuits.circuits.nodes import Node
from fedcircuits.density.fit_report import FitReport
from fedcircuits.errors import LearningError
from fedcircuits.schema import Schema, Table

LEAST_ROWS = 5.0
LEAST_SHARE_OF_SD = 0.01  # of the column's: the narrowest a component may be


@dataclass(frozen=True)
class GaussianMixture:
    """Learns a mixture whose numeric columns have normal leaves.

    Attributes:
        label: column to be predicted well; each of its classes is a mixture of its own.
        n_components: of each class; None gives one for every 100 rows, up to 8.
        smoothing: pseudo-count of every category or state.
    """

    label: str | None = None
    n_components: int | None = None
    smoothing: float = 0.5

    def fit(self, table: Table, rng: np.random.Generator) -> Circuit:
        """Fit one mixture, or one for each class."""
        start = time.perf_counter()
        if len(table) == 0:
            raise LearningError("cannot learn from a table without rows")
        schema = table.schema.with_grids(table)
        weights = table.row_weights
        groups = [weights]
        if self.label is not None and self.label in schema:
            at = schema.position(self.label)
            codes = np.where(table.observed[:, at], table.values[:, at], -1.0)
            groups = [weights * (codes == code) for code in np.unique(codes[codes >= 0])] or groups
        products: list[Node] = []
        masses: list[float] = []
        for group in groups:
            for part in self._responsibilities(table, schema, group, rng):
                products.append(self._product(table, schema, part, weights))
                masses.append(float(part.sum()))
        root = products[0] if len(products) == 1 else build.sum(products, shares(masses))
        made = build.circuit(schema, root)
        sizes = {"components": len(products)}
        report = FitReport("gaussian-mixture", time.perf_counter() - start, sizes)
        return Circuit(made.schema, made.groups, made.structure, report)

    def _responsibilities(
        self, table: Table, schema: Schema, weights: FloatArray, rng: np.random.Generator
    ) -> list[FloatArray]:
        """(n,) weight of every row in each component of one class."""
        from sklearn.mixture import GaussianMixture as Scikit

        rows = np.flatnonzero(weights > 0)
        numeric = [at for at, v in enumerate(schema) if not v.is_coded]
        k = self.n_components or int(np.clip(rows.size // 100, 1, 8))
        k = min(k, int(rows.size // LEAST_ROWS))
        if k < 2 or not numeric:
            return [weights]
        x = np.stack([_filled(table, at)[rows] for at in numeric], axis=1)
        x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-12)
        seed = int(rng.integers(2**31 - 1))
        model = Scikit(k, covariance_type="diag", reg_covar=1e-3, random_state=seed).fit(x)
        share = model.predict_proba(x) * weights[rows, None]
        enough = share.sum(axis=0) >= LEAST_ROWS
        if not enough.any():
            return [weights]
        answer = []
        for component in np.flatnonzero(enough):
            whole = np.zeros(len(table))
            whole[rows] = share[:, component]
            answer.append(whole)
        return answer

    def _product(self, table: Table, schema: Schema, part: FloatArray, weights: FloatArray) -> Node:
        """One leaf a column; one with few values in the component takes that of all rows."""
        leaves: list[Node] = []
        for at, variable in enumerate(schema):
            seen = table.observed[:, at] & (part > 0)
            mine = part
            if part[seen].sum() < LEAST_ROWS:
                seen, mine = table.observed[:, at] & (weights > 0), weights
            if not seen.any():
                leaves.append(build.all_alike(variable))
                continue
            x, w = table.values[seen, at], mine[seen]
            atoms = variable.grid is not None and variable.grid.atoms.size > 0
            if variable.kind != "continuous" or variable.missing_state or atoms:
                leaves.append(build.fit_leaf(variable, x, w, smoothing=self.smoothing))
                continue
            mean = float(np.average(x, weights=w))
            sd = float(np.sqrt(np.average((x - mean) ** 2, weights=w)))
            every = table.values[table.observed[:, at], at]
            floor = LEAST_SHARE_OF_SD * float(every.std())
            leaves.append(build.gaussian(variable.name, mean, max(sd, floor) or 1.0))
        return leaves[0] if len(leaves) == 1 else build.product(leaves)


def _filled(table: Table, at: int) -> FloatArray:
    """(n,) a numeric column with its mean where there is no value."""
    x = table.values[:, at]
    there = table.observed[:, at] & np.isfinite(x)
    mean = x[there].mean() if there.any() else 0.0
    return np.where(there, x, mean)


def shares(masses: list[float]) -> list[float]:
    """Return weights that sum to one in proportion to masses."""
    total = float(np.sum(masses))
    return [mass / total for mass in masses]
