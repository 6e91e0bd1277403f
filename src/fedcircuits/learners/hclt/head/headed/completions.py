"""Completions of rows with missing cells, drawn from the circuit or listed, with q and t of each.

Draws depend on the cells of the row alone. Within a state of a grid a value is one of 32 drawn
once for the model, so that a completion is a few table lookups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.density.tilt import log_softmax
from fedcircuits.learners.hclt.features import feature
from fedcircuits.learners.hclt.head.headed.circuit_pass import CircuitPass
from fedcircuits.learners.hclt.head.headed.class_pass import (
    ClassPass,
    Seeds,
    copies_of,
    row_seeds,
    uniform,
)
from fedcircuits.learners.hclt.head.headed.estimates import TypicalChange, by_row
from fedcircuits.learners.hclt.head.pool import Pool
from fedcircuits.learners.hclt.head.trees.across_trees import AcrossTrees
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees
from fedcircuits.learners.hclt.head.trees.number_trees import NumberTrees
from fedcircuits.learners.prepare import column_codes
from fedcircuits.schema import Schema, Table

Outputs = BoostedTrees | NumberTrees | AcrossTrees

# Completions of a row, fewer with many classes or a number, whose passes cost more; up to LISTED
# they are all taken instead of drawn.
DRAWN, DRAWN_MANY_CLASSES, MANY_CLASSES, LISTED = 24, 8, 4, 16
_VALUES_PER_STATE = 32
_BYTES_PER_CHUNK = 2**26
_CLASS_SLOT = -1
# Rows of the model's own and completions of each that tell how much q - t varies between them.
_TYPICAL_ROWS, _TYPICAL_DRAWS = 48, 8


@dataclass(frozen=True)
class Completions:
    """Completed rows: all of a row's (`listed`), or draws from the conditional of its cells.

    Attributes:
        row: (N,) the row each completes.
        weight: (N,) share of each in its row: m(x | observed), or one over their number.
        listed: (n,) whether all completions of a row are there.
        log_tilt: (N, Y) log t(y | x).
        log_head: (N, Y) log q(y | x).
        codes: (N, D) states, the label's column apart.
        within: (N, D) which of its state's values each drawn cell has.
    """

    row: IntArray
    weight: FloatArray
    listed: BoolArray
    log_tilt: FloatArray
    log_head: FloatArray
    codes: IntArray
    within: IntArray


class Completer:
    """What q needs to know about rows of one model: states, intervals of the trees, completions."""

    def __init__(
        self,
        passes: ClassPass | CircuitPass,
        trees: Outputs,
        pool: Pool,
        schema: Schema,
        label: str,
    ) -> None:
        """Prepare passes for the columns of `schema` without the label."""
        self.columns = [at for at, name in enumerate(schema.names) if name != label]
        self.schema, self.trees, self.pool = schema, trees, pool
        self.passes = passes
        self.n_drawn = DRAWN if passes.n_classes <= MANY_CLASSES else DRAWN_MANY_CLASSES

    @cached_property
    def values(self) -> list[FloatArray]:
        """For every column (states, k) values of each state, all equally likely."""
        rng = np.random.default_rng(0)
        answer = []
        for at in self.columns:
            variable = self.schema.variables[at]
            if variable.is_coded:
                answer.append(np.arange(variable.n_codes, dtype=float)[:, None])
                continue
            assert variable.grid is not None
            states = np.repeat(np.arange(variable.grid.n_states), _VALUES_PER_STATE)
            drawn = variable.grid.sample_within(states, rng)
            answer.append(drawn.reshape(-1, _VALUES_PER_STATE))
        return answer

    @cached_property
    def _bins(self) -> list[IntArray]:
        """For every column (states, k) intervals of the trees that the values lie in."""
        return [
            self.trees.column_bins(j, self._feature(j, values.reshape(-1))).reshape(values.shape)
            for j, values in enumerate(self.values)
        ]

    @cached_property
    def _n_values(self) -> IntArray:
        """(D,) how many completions a missing cell has; 0 where they cannot be listed."""
        answer = []
        for values in self.values:
            same = bool((values == values[:, :1]).all())
            answer.append(len(values) if same else 0)
        return np.array(answer, dtype=np.int64)

    @cached_property
    def typical(self) -> TypicalChange:
        """How much q - t varies between the completions of rows of the model's own, half hidden."""
        rng = np.random.default_rng(0)
        rows = Table.empty(self.schema, _TYPICAL_ROWS)
        values = self.sampled(rows, None, rng)
        observed = rng.random(values.shape) < 0.5
        every = np.arange(len(values))  # a cell of every row is missing for certain
        observed[every, np.array(self.columns)[every % len(self.columns)]] = False
        rows = replace(rows, values=values, observed=observed)
        changes, spreads, posteriors = [], [], []
        for _, log_tilt, found in self.completed(rows, n_drawn=_TYPICAL_DRAWS):
            change = np.exp(found.log_head) - np.exp(found.log_tilt)  # (N, Y)
            mean = by_row(found, change, len(log_tilt))
            # The spread about a mean of few draws is smaller than about the mean itself.
            few = np.where(found.listed, 1.0, _TYPICAL_DRAWS / (_TYPICAL_DRAWS - 1))
            changes.append(change - mean[found.row])
            spreads.append(found.weight * few[found.row])
            posteriors.append(np.exp(log_tilt))
        return TypicalChange(*map(np.concatenate, (changes, spreads, posteriors)))

    def _feature(self, j: int, values: FloatArray) -> FloatArray:
        return feature(self.schema.variables[self.columns[j]], values)

    def codes(self, table: Table) -> IntArray:
        """(n, D) states, -1 where missing, the label's column apart."""
        codes = np.full((len(table), len(self.columns)), -1, dtype=np.int64)
        for j, at in enumerate(self.columns):
            seen = table.observed[:, at]
            if seen.any():
                codes[seen, j] = column_codes(self.schema.variables[at], table.values[seen, at])
        return codes

    def bins(self, table: Table) -> np.ndarray[tuple[int, int], np.dtype[np.uint16]]:
        """(D, n) intervals of the trees; anything where missing."""
        answer = np.zeros((len(self.columns), len(table)), dtype=np.uint16)
        for j, at in enumerate(self.columns):
            answer[j] = self.trees.column_bins(j, self._feature(j, table.values[:, at]))
        return answer

    def complete(self, table: Table) -> tuple[FloatArray, FloatArray]:
        """(n, Y) log t(y | x) and log q(y | x) of rows in which all but the label is known."""
        outputs = self.trees.outputs_of_bins(self.bins(table))
        return self._both(self._log_joint(table), outputs)

    def _both(self, log_joint: FloatArray, outputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        log_tilt = log_softmax(log_joint)
        return log_tilt, self.pool.log_posterior(log_tilt, outputs)

    def _rows_per_chunk(self, copies: int) -> int:
        return int(np.clip(_BYTES_PER_CHUNK // (self.passes.bytes_per_row * copies), 8, 4096))

    def _log_joint(self, table: Table) -> FloatArray:
        """(n, Y) log m(observed cells, y) up to a number of the row, missing cells summed out."""
        complete = bool(table.observed[:, list(self.columns)].all())
        if complete and isinstance(self.passes, CircuitPass):
            return self.passes.given_complete(table, self.codes)
        log_joint = np.empty((len(table), self.passes.n_classes))
        for part, rows in table.chunks(self._rows_per_chunk(1)):
            log_joint[part] = self.passes.upward(self.codes(rows)).log_joint
        return log_joint

    def log_tilt(self, table: Table) -> FloatArray:
        """(n, Y) log t(y | observed cells) of rows."""
        return np.asarray(log_softmax(self._log_joint(table)))

    def completed(
        self, table: Table, label: IntArray | None = None, n_drawn: int | None = None
    ) -> Iterator[tuple[slice, FloatArray, Completions]]:
        """Completions of rows with missing cells, chunk by chunk.

        Args:
            table: the rows; its label is not looked at.
            label: (n,) class given which cells are drawn; drawn by t itself if not given.
            n_drawn: how many completions are drawn for a row.

        Yields:
            The rows' slice, (m, Y) log t(y | observed cells), and their completions; listed ones
            are weighted by m(x | observed cells), whatever the label.
        """
        n_drawn = n_drawn or self.n_drawn
        for part, rows in table.chunks(self._rows_per_chunk(1 + n_drawn // 2)):
            up = self.passes.upward(self.codes(rows))
            log_tilt = log_softmax(up.log_joint)
            given = None if label is None else label[part]
            yield part, log_tilt, self._completions(rows, up, log_tilt, given, n_drawn)

    def _completions(
        self, rows: Table, up: Any, log_tilt: FloatArray, label: IntArray | None, n_drawn: int
    ) -> Completions:
        missing = up.codes < 0
        count = np.where(missing, self._n_values, 1).astype(float).prod(axis=1)
        listed = (count > 0) & (count <= LISTED)
        every = np.flatnonzero(listed)
        drawn = np.repeat(np.flatnonzero(~listed), n_drawn)
        seeds = copies_of(row_seeds(up.codes[np.flatnonzero(~listed)]), n_drawn)
        given = None if label is None else label[drawn]
        listed_row, listed_codes = _all_completions(up.codes, every, self._n_values)
        row = np.concatenate([listed_row, drawn])
        codes = np.concatenate(
            [listed_codes, self._drawn(up, drawn, seeds, log_tilt, given, n_drawn)]
        )
        within = np.zeros(codes.shape, dtype=np.int64)
        slots = self.passes.n_slots + np.arange(len(self.columns))
        drawn_within = uniform(seeds[:, None], slots) * _VALUES_PER_STATE
        within[len(listed_row) :] = drawn_within.astype(np.int64)
        log_joint = self.passes.again(up, row, codes)
        tilt, head = self._both(
            log_joint,
            self.trees.outputs_of_bins(self._completed_bins(rows, row, missing, codes, within)),
        )
        weight = np.full(row.size, 1.0 / n_drawn)
        log_m = np.logaddexp.reduce(log_joint[: len(listed_row)], axis=1)
        log_observed = np.logaddexp.reduce(up.log_joint, axis=1)[listed_row]
        with np.errstate(invalid="ignore"):
            weight[: len(listed_row)] = np.exp(log_m - log_observed)
        return Completions(row, weight, listed, tilt, head, codes, within)

    def _drawn(
        self,
        up: Any,
        row: IntArray,
        seeds: Seeds,
        log_tilt: FloatArray,
        label: IntArray | None,
        n_drawn: int,
    ) -> IntArray:
        """(N, D) drawn codes of rows (N,) that each come `n_drawn` times in a row.

        `label` (N,) is the class each is drawn from, if given.
        """
        if label is not None:
            return self.passes.draw(up, row, seeds, label)
        # Evenly spaced numbers for the class: every class has its share of the draws.
        first = np.repeat(uniform(seeds[::n_drawn], _CLASS_SLOT), n_drawn)
        place = np.arange(row.size) % n_drawn
        u = (first + place) / n_drawn
        rising = np.cumsum(np.exp(log_tilt), axis=1)[row]
        classes = (rising <= (u * rising[:, -1])[:, None]).sum(axis=1)
        return self.passes.draw(up, row, seeds, np.minimum(classes, rising.shape[1] - 1))

    def _completed_bins(
        self,
        rows: Table,
        row: IntArray,
        missing: BoolArray,
        codes: IntArray,
        within: IntArray,
    ) -> np.ndarray[tuple[int, int], np.dtype[np.uint16]]:
        """(D, N) intervals: of the row's own value where it has one, else of the completion's."""
        bins = self.bins(rows)[:, row]
        for j, table in enumerate(self._bins):
            gaps = np.flatnonzero(missing[row, j])
            bins[j, gaps] = table[codes[gaps, j], within[gaps, j] % table.shape[1]]
        return bins

    def sampled(self, table: Table, label: IntArray | None, rng: np.random.Generator) -> FloatArray:
        """(n, D of the schema) rows with missing cells drawn by the circuit; the label stays.

        Args:
            table: the rows; its label is not looked at.
            label: (n,) class given which cells are drawn; drawn by t itself if not given.
            rng: where the draws come from.
        """
        if label is None and isinstance(self.passes, CircuitPass) and self.passes.is_compiled:
            return self.passes.sampled(table, rng)
        codes = self.codes(table)
        distinct, back = np.unique(codes, axis=0, return_inverse=True)
        back = back.reshape(-1)
        order = np.argsort(back, kind="stable")
        size = self._rows_per_chunk(1)
        drawn = np.empty_like(codes)
        for start in range(0, len(distinct), size):
            up = self.passes.upward(distinct[start : start + size])
            log_tilt = log_softmax(up.log_joint)
            first, last = np.searchsorted(back[order], [start, start + len(up.codes)])
            mine = order[first:last]
            seeds = rng.integers(0, 2**64, size=mine.size, dtype=np.uint64, endpoint=False)
            given = None if label is None else label[mine]
            drawn[mine] = self._drawn(up, back[mine] - start, seeds, log_tilt, given, 1)
        values = table.values.copy()
        for j, at in enumerate(self.columns):
            gaps = np.flatnonzero(codes[:, j] < 0)
            grid = self.schema.variables[at].grid
            states = drawn[gaps, j]
            values[gaps, at] = states if grid is None else grid.sample_within(states, rng)
        return values

    def numbers(self, found: Completions, j: int) -> FloatArray:
        """(N,) encoded values of one column of completions."""
        values = self.values[j]
        return np.asarray(values[found.codes[:, j], found.within[:, j] % values.shape[1]])


def _all_completions(
    codes: IntArray, rows: IntArray, n_values: IntArray
) -> tuple[IntArray, IntArray]:
    """Every completion of some rows: (N,) the row and (N, D) the codes."""
    found_rows, found = [np.zeros(0, dtype=np.int64)], [np.zeros((0, codes.shape[1]), np.int64)]
    patterns, which = np.unique(codes[rows] < 0, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        mine = rows[which.reshape(-1) == number]
        gaps = np.flatnonzero(pattern)
        grids = (
            np.indices(tuple(n_values[gaps].tolist())).reshape(gaps.size, -1).T
        )  # (completions, gaps)
        filled = np.repeat(codes[mine], len(grids), axis=0)
        filled[:, gaps] = np.tile(grids, (mine.size, 1))
        found_rows.append(np.repeat(mine, len(grids)))
        found.append(filled)
    return np.concatenate(found_rows), np.concatenate(found)
