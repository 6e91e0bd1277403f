"""What rows say about leaves, for the compiled passes: rows of tables and their scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.compiled.program import Program
from fedcircuits.circuits.leaf_group import LeafGroup
from fedcircuits.circuits.leaves.tables import log_table
from fedcircuits.circuits.passes import leaves_within
from fedcircuits.schema import Table

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit

FLUSHED = 2.0**-960  # as in circuit_pass.inc


@dataclass(frozen=True, eq=False)
class Numbers:
    """Rows of numbers with a scale each: value = number * e^level.

    Attributes:
        rows: (S, L), at most 1.
        level: (S,).
        dropped: (S,) bound of what underflow has dropped in a row; None where nothing.
    """

    rows: FloatArray
    level: FloatArray
    dropped: FloatArray | None

    @staticmethod
    def of_logs(logs: FloatArray) -> Numbers:
        """From logarithms (S, L)."""
        level = logs.max(axis=1, initial=-np.inf)
        level = np.where(np.isfinite(level), level, 0.0)
        rows = np.exp(logs - level[:, None])
        lost = ((rows < FLUSHED) & (logs > -np.inf)).any(axis=1)
        rows[rows < FLUSHED] = 0.0
        return Numbers(
            np.ascontiguousarray(rows), level, np.where(lost, FLUSHED, 0.0) if lost.any() else None
        )

    def joined(self, other: Numbers) -> Numbers:
        """The rows of both."""
        dropped = None
        if self.dropped is not None or other.dropped is not None:
            parts = [n.dropped if n.dropped is not None else 0 * n.level for n in (self, other)]
            dropped = np.concatenate(parts)
        return Numbers(
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.level, other.level]),
            dropped,
        )


class LeafTables:
    """Tables of all slots of a program, for sums or for the best induced tree.

    A table group has a row for every state, then one for a cell of which nothing is known and one
    for a value without a state.
    """

    def __init__(self, circuit: Circuit, program: Program, is_max: bool) -> None:
        """Work out the tables of the groups and of the sums over their leaves."""
        self.circuit, self.program, self.is_max = circuit, program, is_max
        self.groups = [self._of_group(group) for group in circuit.groups]
        self.folds = [
            None if (base := self.groups[fold.group]) is None else self._folded(base, at)
            for at, fold in enumerate(program.folds)
        ]

    def unknown(self, group: LeafGroup) -> FloatArray:
        """(L,) log-value of a cell of which nothing is known."""
        if self.is_max:
            return group.family.mode(group.params, group.grid)[1]
        return np.zeros(group.size)

    def _of_group(self, group: LeafGroup) -> Numbers | None:
        table = group.family.table_of(group.params)  # (L, S)
        if table is None:
            return None
        none = np.full(group.size, -np.inf)
        logs = np.concatenate([log_table(table).T, self.unknown(group)[None], none[None]])
        return Numbers.of_logs(logs)

    def _folded(self, base: Numbers, at: int) -> Numbers:
        """Numbers of a sum over leaves, from those of the leaves."""
        fold = self.program.folds[at]
        inside = base.rows[:, fold.leaves]  # (S, r)
        if self.is_max:
            rows = np.zeros((len(inside), fold.weights.shape[1]))
            for j, weight in enumerate(fold.weights):
                np.maximum(rows, inside[:, j, None] * weight, out=rows)
        else:
            rows = inside @ fold.weights
        return Numbers(np.ascontiguousarray(rows), base.level, base.dropped)


@dataclass(frozen=True, eq=False)
class Cells:
    """The rows of a table at the slots of a program.

    Attributes:
        numbers: of every slot; None where its column is known in no row.
        cells: (n,) of every slot, row of its numbers.
        within: (n,) of every slot, added to the scale, or None.
        known: (D,) columns of which a row knows something.
    """

    numbers: list[Numbers | None]
    cells: list[NDArray[np.int32] | None]
    within: list[FloatArray | None]
    known: NDArray[np.bool_]


def look_up(tables: LeafTables, table: Table) -> Cells:
    """Find the rows of the tables that a table's cells pick."""
    circuit, program = tables.circuit, tables.program
    known: NDArray[np.bool_] = np.asarray(table.observed.any(axis=0))
    if table.events is not None:
        known = np.asarray(known | table.known.any(axis=0))
    if tables.is_max:
        known = np.ones_like(known)
    numbers: list[Numbers | None] = [None] * len(circuit.groups)
    cells: list[NDArray[np.int32] | None] = [None] * len(circuit.groups)
    within: list[FloatArray | None] = [None] * len(circuit.groups)
    events: dict[int, Numbers] = {}
    for at, group in enumerate(circuit.groups):
        if not known[group.column]:
            continue
        base = tables.groups[at]
        seen = table.observed[:, group.column]
        x = table.values[:, group.column]
        if base is None:
            numbers[at] = _by_row(tables, group, table)
            cells[at] = np.arange(len(table), dtype=np.int32)
            continue
        n_states = len(base.level) - 2
        states, log_within = group.family.locate(group.grid, x)
        states = np.where((states < 0) | (states >= n_states), n_states + 1, states)
        if log_within is not None:
            lost = ~np.isfinite(log_within)
            if lost.any():
                states[lost & (log_within < 0)] = n_states + 1
                log_within = np.where(lost, 0.0, log_within)
        if not seen.all():
            states = np.where(seen, states, n_states)
            if log_within is not None:
                log_within = np.where(seen, log_within, 0.0)
        extra: list[FloatArray] = []
        for region, rows in table.regions_at(group.column):
            states[rows] = len(base.level) + len(extra)
            inside = leaves_within(circuit, group, region)
            extra.append(inside.mode()[1] if tables.is_max else inside.log_mass)
        if extra:
            events[at] = Numbers.of_logs(np.stack(extra))
            base = base.joined(events[at])
        numbers[at], cells[at] = base, states.astype(np.int32)
        within[at] = log_within
    for at, fold in enumerate(program.folds):
        own = tables.folds[at]
        if own is not None and fold.group in events:
            own = own.joined(tables._folded(events[fold.group], at))
        numbers.append(own if numbers[fold.group] is not None else None)
        cells.append(cells[fold.group])
        within.append(within[fold.group])
    return Cells(numbers, cells, within, known)


def _by_row(tables: LeafTables, group: LeafGroup, table: Table) -> Numbers:
    """Numbers of a group without a table: a row of them for every row of data."""
    seen = table.observed[:, group.column]
    logs = group.family.log_prob(group.params, group.grid, table.values[:, group.column]).T.copy()
    logs[~seen] = tables.unknown(group)
    for region, rows in table.regions_at(group.column):
        inside = leaves_within(tables.circuit, group, region)
        logs[rows] = inside.mode()[1] if tables.is_max else inside.log_mass
    return Numbers.of_logs(logs)
