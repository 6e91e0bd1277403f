"""`Factorised`: learn every column independently; a baseline, and enough for tiny tables."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedcircuits.circuits import Circuit, build
from fedcircuits.density.fit_report import FitReport
from fedcircuits.errors import LearningError
from fedcircuits.schema import Table


@dataclass(frozen=True)
class Factorised:
    """Learns a product with one leaf for each column.

    Attributes:
        smoothing: pseudo-count of every category or state.
        n_bins: quantile bins of a continuous column (default: by rows).
        agreed_schema: whether the schema was agreed with other clients and stays as it is.
    """

    smoothing: float = 0.1
    n_bins: int | None = None
    agreed_schema: bool = False

    def for_agreed_schema(self) -> Self:
        """Return the learner that leaves columns, categories and grids as they were agreed."""
        return replace(self, agreed_schema=True)

    def fit(self, table: Table, rng: np.random.Generator) -> Circuit:
        """Fit each column's leaf to its observed cells."""
        del rng  # nothing here is random
        start = time.perf_counter()
        if len(table) == 0:
            raise LearningError("cannot learn from a table without rows")
        schema = table.schema.with_grids(table, self.n_bins)
        leaves = []
        for at, variable in enumerate(schema):
            seen = table.observed[:, at]
            if not seen.any():
                if not self.agreed_schema:
                    raise LearningError(f"variable {variable.name!r}: not one value is observed")
                leaves.append(build.all_alike(variable))
                continue
            weights = None if table.weights is None else table.weights[seen]
            leaves.append(
                build.fit_leaf(variable, table.values[seen, at], weights, smoothing=self.smoothing)
            )
        root = leaves[0] if len(leaves) == 1 else build.product(leaves)
        circuit = build.circuit(schema, root)
        report = FitReport("factorised", time.perf_counter() - start, {"leaves": len(leaves)})
        return Circuit(circuit.schema, circuit.groups, circuit.structure, report)
