"""The part of a learner that boosts trees across clients (`LearnsCodes`)."""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import Arrays, BoolArray, FloatArray, IntArray
from fedcircuits.density.contracts import SaidCodes
from fedcircuits.density.row_codes import N_LEAVES, level_width, levels
from fedcircuits.learners.hclt.head.fit_across import options_of, said_numbers, say, see
from fedcircuits.learners.hclt.head.headed.completions import as_features
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees
from fedcircuits.learners.hclt.sample import Sample
from fedcircuits.schema import Table


class LearningAcross:
    """Boosts trees whose codes other clients see, and trees that see others' codes."""

    def say_codes(
        self,
        table: Table,
        classes: IntArray,
        known: BoolArray,
        held: BoolArray,
        min_rows: int,
        seed: int,
        given: tuple[Arrays, float] | None,
    ) -> SaidCodes:
        """Boost trees over a client's own columns and say the codes of its rows.

        Args:
            table: rows over the columns the trees may ask about.
            classes: (n,) class of every row.
            known: (n,) whether it is known.
            held: (n,) rows left out of the trees that are scored.
            min_rows: least rows behind a leaf.
            seed: of the boosting.
            given: small tree and width of a level of a client with the same columns.
        """
        rows, n_codes = _sample(table, classes, np.zeros((len(table), 0)))
        leaf = None if given is None else BoostedTrees.from_arrays(given[0], len(n_codes), 1)
        options = options_of(n_codes, min_rows, int(known.sum()))
        said = say(rows, known, held, options, seed, leaf)
        width = level_width(said.outputs) if given is None else given[1]
        return SaidCodes(
            said.trees.arrays(),
            said.leaf.arrays(),
            width,
            levels(said.outputs, width),
            np.clip(said.leaves, 0, N_LEAVES - 1),
            said.outputs,
        )

    def see_codes(
        self,
        table: Table,
        codes: FloatArray,
        classes: IntArray,
        held: BoolArray,
        min_rows: int,
        seed: int,
    ) -> tuple[Arrays, FloatArray]:
        """Boost trees over a client's own columns and codes of others.

        Args:
            table: rows over the columns the trees may ask about.
            codes: (n, senders * Y) scores and leaf of every sender, NaN where it has not the row.
            classes: (n,) class of every row, all from 0 to the highest among them.
            held: (n,) rows left out of the trees that are scored.
            min_rows: least rows behind a leaf.
            seed: of the boosting.

        Returns:
            The trees of all rows as arrays, and (held, K) outputs of trees of the others.
        """
        rows, n_codes = _sample(table, classes, codes)
        trees, outputs = see(rows, held, options_of(n_codes, min_rows, len(table)), seed)
        return trees.arrays(), outputs

    def trees_of_numbers(
        self, table: Table, numbers: FloatArray, min_rows: int, seed: int
    ) -> Arrays:
        """Boost trees that say numbers of a client's rows, and return them as arrays.

        Args:
            table: rows over the columns the trees may ask about.
            numbers: (n, K) to say.
            min_rows: least rows behind a leaf.
            seed: of the boosting.
        """
        n = len(table)
        rows, n_codes = _sample(table, np.zeros(n, dtype=np.int64), np.zeros((n, 0)))
        return said_numbers(rows, numbers, options_of(n_codes, min_rows, n), seed).arrays()


def _sample(table: Table, classes: IntArray, codes: FloatArray) -> tuple[Sample, IntArray]:
    """Rows as trees take them, codes last, and the number of categories of every column."""
    n_codes = [len(v.categories) if v.is_coded else 0 for v in table.schema]
    per = int(classes.max(initial=1)) + 1
    n_codes += ([0] * (per - 1) + [N_LEAVES]) * (codes.shape[1] // per)
    weights = np.ones(len(table)) if table.weights is None else table.weights
    values = np.concatenate([as_features(table, list(range(len(table.schema)))), codes], axis=1)
    nothing = np.zeros((len(table), 0), dtype=np.int32)
    return Sample(nothing, weights, classes, values), np.array(n_codes, dtype=np.int64)
