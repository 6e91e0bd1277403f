"""What rows say about leaves, for the compiled passes: rows of tables and their scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.compiled.program import Program
from fedcircuits.circuits.leaf_group import LeafGroup
from fedcircuits.circuits.leaves.histogram import Histogram
from fedcircuits.circuits.leaves.tables import log_table
from fedcircuits.circuits.passes import leaves_within
from fedcircuits.native import Addresses, Kernels, address, addresses, kernels
from fedcircuits.schema import Table
from fedcircuits.schema.grids.grid import Grid

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit

FLUSHED = 2.0**-960  # as in circuit_values.inc
MOST_KEPT = 256  # sets of columns whose grids are laid out


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
        """Return tables with scales, made from logarithms (S, L)."""
        level = logs.max(axis=1, initial=-np.inf)
        level = np.where(np.isfinite(level), level, 0.0)
        rows = np.exp(logs - level[:, None])
        lost = ((rows < FLUSHED) & (logs > -np.inf)).any(axis=1)
        rows[rows < FLUSHED] = 0.0
        return Numbers(
            np.ascontiguousarray(rows), level, np.where(lost, FLUSHED, 0.0) if lost.any() else None
        )

    def joined(self, other: Numbers) -> Numbers:
        """Return the tables with the rows of both."""
        dropped = None
        if self.dropped is not None or other.dropped is not None:
            parts = [n.dropped if n.dropped is not None else 0 * n.level for n in (self, other)]
            dropped = np.concatenate(parts)
        return Numbers(
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.level, other.level]),
            dropped,
        )


@dataclass(frozen=True, eq=False)
class Gridded:
    """Groups whose cells are looked up on grids, in one compiled call.

    Attributes:
        at: (G,) the groups.
        column: (G,) their columns.
        grids: their grids, one a group.
        parts: (G, 7) addresses of what the call reads of them.
        others: groups that are looked up one by one.
    """

    at: NDArray[np.int64]
    column: NDArray[np.int64]
    grids: list[Grid]
    parts: Addresses
    others: list[int]

    @staticmethod
    def of(groups: Sequence[LeafGroup], by_grid: list[int], asked: NDArray[np.int64]) -> Gridded:
        """Return some of the groups that are asked for, laid out for one call."""
        grids = [grid for grid in (groups[at].grid for at in by_grid) if grid is not None]
        column = np.array([groups[at].column for at in by_grid], dtype=np.int64)
        parts = addresses(part for grid in grids for part in grid.compiled_parts)
        others = [at for at in map(int, asked) if at not in set(by_grid)]
        return Gridded(np.array(by_grid, dtype=np.int64), column, grids, parts, others)

    def look_up(
        self, native: Kernels, table: Table, cells: NDArray[np.int32], within: FloatArray
    ) -> None:
        """Write the states of a table's values and their log-densities, (groups, n) each."""
        n, G = len(table), self.at.size
        if not G:
            return
        values = np.ascontiguousarray(table.values)
        in_tails, work = np.zeros(G, dtype=np.int64), np.empty((2, n))
        native.call(
            "grids_locate",
            *(n, values.shape[1], G, values, self.column, self.at, self.parts),
            *(cells, within, in_tails, work, address(work) + 8 * n),
        )
        for g in np.flatnonzero(in_tails) if in_tails.any() else ():
            at = self.at[g]
            self.grids[g].add_tails(values[:, self.column[g]], cells[at], within[at])


class LeafTables:
    """Tables of all slots of a program, for sums or for the best induced tree.

    A slot is a leaf group or, after those, a sum over leaves of one. A group of tables has a row
    for every state, then one for a cell of which nothing is known and one for a value without a
    state.
    """

    def __init__(self, circuit: Circuit, program: Program, is_max: bool) -> None:
        """Work out the tables of the groups and of the sums over their leaves."""
        self.circuit, self.program, self.is_max = circuit, program, is_max
        groups = circuit.groups
        self.numbers = [self._of_group(group) for group in groups]
        for at, fold in enumerate(program.folds):
            base = self.numbers[fold.group]
            self.numbers.append(None if base is None else self.folded(base, at))
        self.group_of_slot = np.array([*range(len(groups)), *(f.group for f in program.folds)])
        self.fixed = numbers_at(self.numbers)  # (3, slots)
        self.columns = np.array([group.column for group in groups], dtype=np.int64)
        sizes = [0 if m is None else m.level.size - 2 for m in self.numbers[: len(groups)]]
        self.n_states = np.array(sizes, dtype=np.int32)[:, None]  # (groups, 1)
        self.coded = np.array(
            [g.grid is None and s > 0 for g, s in zip(groups, sizes, strict=True)]
        )
        self._gridded: dict[bytes, Gridded] = {}

    def gridded(self, known: NDArray[np.bool_]) -> Gridded:
        """Groups over grids of the columns (D,) that a row knows; kept, since questions repeat."""
        key = known.tobytes()
        if key not in self._gridded:
            if len(self._gridded) >= MOST_KEPT:
                self._gridded.clear()
            asked = np.flatnonzero(~self.coded & known[self.columns])
            by_grid = [
                at
                for at in map(int, asked)
                if self.numbers[at] is not None
                and type(self.circuit.groups[at].family).locate is Histogram.locate
                and _is_plain(self.circuit.groups[at].grid)
            ]
            self._gridded[key] = Gridded.of(self.circuit.groups, by_grid, asked)
        return self._gridded[key]

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

    def folded(self, base: Numbers, at: int) -> Numbers:
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


def _is_plain(grid: Grid | None) -> bool:
    """Whether the compiled look-up is this grid's own (grids of decimals scale values first)."""
    return grid is not None and type(grid).locate is Grid.locate


def numbers_at(numbers: list[Numbers | None]) -> Addresses:
    """(3, slots) addresses of rows, levels and what was dropped."""
    parts = [(None, None, None) if m is None else (m.rows, m.level, m.dropped) for m in numbers]
    return addresses(array for part in parts for array in part).reshape(-1, 3).T.copy()


@dataclass(frozen=True, eq=False)
class Cells:
    """The rows of a table at the slots of a program.

    Attributes:
        fixed: (3, slots) addresses of rows, levels and what was dropped.
        cells: (groups, n) row of the numbers; not to be read where a column is not known.
        within: (groups, n) added to the scale.
        known: (D,) columns of which a row knows something.
        kept: what the addresses point to.
    """

    fixed: Addresses
    cells: NDArray[np.int32]
    within: FloatArray
    known: NDArray[np.bool_]
    kept: list[Numbers]


def look_up(tables: LeafTables, table: Table) -> Cells:
    """Find the rows of the tables that a table's cells pick."""
    groups, n, columns = tables.circuit.groups, len(table), tables.columns
    known: NDArray[np.bool_] = np.asarray(table.observed.any(axis=0))
    if table.events is not None:
        known = np.asarray(known | table.known.any(axis=0))
    if tables.is_max:
        known = np.ones_like(known)
    cells = np.zeros((len(groups), n), dtype=np.int32)
    within = np.zeros((len(groups), n))
    if tables.coded.any():
        cells[tables.coded] = table.values.T[columns[tables.coded]]
    by_row: dict[int, Numbers] = {}
    native, gridded = kernels(), tables.gridded(known)
    if native is None:
        one_by_one = sorted([*gridded.others, *map(int, gridded.at)])
    else:
        one_by_one = gridded.others
        gridded.look_up(native, table, cells, within)
    for at in one_by_one:
        group = groups[at]
        if tables.numbers[at] is None:
            by_row[at] = _by_row(tables, group, table)
            cells[at] = np.arange(n)
        else:
            found = group.family.locate(group.grid, table.values[:, group.column])
            cells[at] = found[0]
            if found[1] is not None:
                within[at] = found[1]
    has_table = tables.n_states[:, 0] > 0
    lost = (cells < 0) | (cells >= tables.n_states) | (within == -np.inf)
    lost[~has_table] = False
    unknown = ~table.observed.T[columns]
    unknown[~has_table] = False
    if lost.any():
        cells = np.where(lost, tables.n_states + 1, cells)
        within[lost] = 0.0
    if unknown.any():
        cells = np.where(unknown, tables.n_states, cells)
        within[unknown] = 0.0
    if not by_row and table.events is None:
        return Cells(tables.fixed, cells, within, known, [])
    return _with_own_rows(tables, table, Cells(tables.fixed, cells, within, known, []), by_row)


def _with_own_rows(
    tables: LeafTables, table: Table, found: Cells, own: dict[int, Numbers]
) -> Cells:
    """The cells with numbers of this table's own: events, and groups without a table."""
    events: dict[int, Numbers] = {}
    for at, group in enumerate(tables.circuit.groups):
        base = tables.numbers[at]
        if base is None:
            continue
        logs: list[FloatArray] = []
        for region, rows in table.regions_at(group.column):
            found.cells[at, rows] = base.level.size + len(logs)
            inside = leaves_within(tables.circuit, group, region)
            logs.append(inside.mode()[1] if tables.is_max else inside.log_mass)
        if logs:
            events[at] = Numbers.of_logs(np.stack(logs))
            own[at] = base.joined(events[at])
    for at, fold in enumerate(tables.program.folds):
        base = tables.numbers[len(tables.circuit.groups) + at]
        if base is not None and fold.group in events:
            slot = len(tables.circuit.groups) + at
            own[slot] = base.joined(tables.folded(events[fold.group], at))
    fixed = tables.fixed.copy()
    fixed[:, list(own)] = numbers_at(list(own.values()))
    return replace(found, fixed=fixed, kept=list(own.values()))


def _by_row(tables: LeafTables, group: LeafGroup, table: Table) -> Numbers:
    """Numbers of a group without a table: a row of them for every row of data."""
    seen = table.observed[:, group.column]
    logs = group.family.log_prob(group.params, group.grid, table.values[:, group.column]).T.copy()
    logs[~seen] = tables.unknown(group)
    for region, rows in table.regions_at(group.column):
        inside = leaves_within(tables.circuit, group, region)
        logs[rows] = inside.mode()[1] if tables.is_max else inside.log_mass
    return Numbers.of_logs(logs)
