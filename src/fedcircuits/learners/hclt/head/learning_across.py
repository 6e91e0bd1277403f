"""The part of a learner that boosts trees across clients.

Arguments and results of its methods: `LearnsCodes` in `density/contracts.py`.
"""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import Arrays, BoolArray, FloatArray, IntArray
from fedcircuits.density.contracts import RowCodes
from fedcircuits.density.row_codes import N_LEAVES, level_width, levels
from fedcircuits.learners.hclt.features import as_features
from fedcircuits.learners.hclt.head.fit_across import (
    fit_code_trees,
    fit_trees_on_codes,
    options_of,
    trees_of_numbers,
)
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees
from fedcircuits.learners.hclt.sample import Sample
from fedcircuits.schema import Table


class LearningAcross:
    """Boosts trees whose codes of rows are sent, and trees over columns and codes of others."""

    def fit_code_trees(
        self,
        table: Table,
        classes: IntArray,
        known: BoolArray,
        held: BoolArray,
        min_rows: int,
        seed: int,
        given: tuple[Arrays, float] | None,
    ) -> RowCodes:
        """Return trees over a client's own columns, and the codes of its rows."""
        rows, n_codes = _sample(table, classes, np.zeros((len(table), 0)))
        leaf = None if given is None else BoostedTrees.from_arrays(given[0], len(n_codes), 1)
        options = options_of(n_codes, min_rows, int(known.sum()))
        made = fit_code_trees(rows, known, held, options, seed, leaf)
        width = level_width(made.outputs) if given is None else given[1]
        return RowCodes(
            made.trees.arrays(),
            made.leaf.arrays(),
            width,
            levels(made.outputs, width),
            np.clip(made.leaves, 0, N_LEAVES - 1),
            made.outputs,
        )

    def fit_trees_on_codes(
        self,
        table: Table,
        codes: FloatArray,
        classes: IntArray,
        held: BoolArray,
        min_rows: int,
        seed: int,
    ) -> tuple[Arrays, FloatArray]:
        """Return trees over columns and codes of others, and outputs of left-out rows."""
        rows, n_codes = _sample(table, classes, codes)
        trees, outputs = fit_trees_on_codes(
            rows, held, options_of(n_codes, min_rows, len(table)), seed
        )
        return trees.arrays(), outputs

    def trees_of_numbers(
        self, table: Table, numbers: FloatArray, min_rows: int, seed: int
    ) -> Arrays:
        """Return trees whose outputs are close to numbers of a client's rows, as arrays."""
        n = len(table)
        rows, n_codes = _sample(table, np.zeros(n, dtype=np.int64), np.zeros((n, 0)))
        return trees_of_numbers(rows, numbers, options_of(n_codes, min_rows, n), seed).arrays()


def _sample(table: Table, classes: IntArray, codes: FloatArray) -> tuple[Sample, IntArray]:
    """Rows as trees take them, codes last, and the number of categories of every column."""
    n_codes = [len(v.categories) if v.is_coded else 0 for v in table.schema]
    per = int(classes.max(initial=1)) + 1
    n_codes += ([0] * (per - 1) + [N_LEAVES]) * (codes.shape[1] // per)
    values = np.concatenate([as_features(table, list(range(len(table.schema)))), codes], axis=1)
    nothing = np.zeros((len(table), 0), dtype=np.int32)
    return Sample(nothing, table.row_weights, classes, values), np.array(n_codes, dtype=np.int64)
