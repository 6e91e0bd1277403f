"""Calls of the compiled passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.circuits.compiled.cells import LeafTables, look_up
from fedcircuits.circuits.compiled.places import FlowPlaces, Places
from fedcircuits.circuits.compiled.program import Program
from fedcircuits.native import Kernels, address, kernels
from fedcircuits.schema import Table

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit

# Rows of a chunk and bytes of its values. Of a pass up only the branch at work is read, and every
# table serves a whole chunk; of a pass down all values are, which should stay in a core's cache.
UP_ROWS, UP_BYTES = 512, 4 * 2**20
DOWN_ROWS, DOWN_BYTES = 64, 2**19
# Up to so many numbers of flows a row, these hardly count beside the pass up.
FEW_FLOWS = 4096
MOST_ROWS = 8192  # looked up at once
MOST_NUMBERS = 2**22  # flows kept at once
MOST_KEPT = 256  # sets of known columns for which the blocks to walk are kept


@dataclass(frozen=True, eq=False)
class Found:
    """What one compiled pass has computed: values of the root, flows, leaves of trees.

    Attributes:
        log_prob: (n,) value of the root.
        risky: (n,) numbers of the rows that are to be worked out again in log-space.
        flows: (n, L) flows of the leaves of the wanted columns, in the order of the leaves.
        leaf_of: (n, D) the leaf of each unknown cell in the row's tree.
    """

    log_prob: FloatArray
    risky: IntArray
    flows: FloatArray | None = None
    leaf_of: NDArray[np.int32] | None = None

    def again(self) -> Iterator[IntArray]:
        """Yield blocks of the rows that the NumPy passes are to compute again."""
        for start in range(0, self.risky.size, 64):
            yield self.risky[start : start + 64]


Asked = tuple[NDArray[np.uint64], IntArray, IntArray, BoolArray]


class Compiled:
    """A circuit prepared for compiled passes; a function of the circuit, which keeps it."""

    def __init__(self, circuit: Circuit) -> None:
        """Lay out the circuit; tables are made when first asked for."""
        self.circuit = circuit
        self.program = Program.of(circuit)

    @cached_property
    def _sums(self) -> LeafTables:
        return LeafTables(self.circuit, self.program, is_max=False)

    @cached_property
    def _maxima(self) -> LeafTables:
        return LeafTables(self.circuit, self.program, is_max=True)

    @cached_property
    def _choice(self) -> NDArray[np.int32]:
        """(n_nodes,) by position, which of a row's random numbers chooses a sum's child."""
        slots = self.circuit.choice_slots
        choice = np.zeros(slots.size, dtype=np.int32)
        choice[self.program.position] = slots
        return choice

    @cached_property
    def _column_of(self) -> NDArray[np.int32]:
        return self.circuit.leaf_column.astype(np.int32)

    @cached_property
    def _fixed(self) -> list[int]:
        program = self.program
        fixed = (program.ops, program.args, program.weights, program.scopes, program.op_of)
        return [_address(array) for array in fixed]

    @cached_property
    def _none_above(self) -> BoolArray:
        return np.zeros(self.program.n_ops, dtype=bool)

    @cached_property
    def _places_before(self) -> dict[tuple[bytes, bool], tuple[Places, FlowPlaces]]:
        return {}

    def _places(self, above: BoolArray, walk: bool) -> tuple[Places, FlowPlaces]:
        """Where values and flows lie, given the blocks that flows go through; kept."""
        key = above.tobytes(), walk
        if key not in self._places_before:
            if len(self._places_before) >= MOST_KEPT:
                self._places_before.clear()
            places = Places.own(self.program) if walk else Places.shared(self.program, above)
            self._places_before[key] = places, FlowPlaces.of(self.program, above)
        return self._places_before[key]

    @cached_property
    def _asked_before(self) -> dict[tuple[int, ...], Asked]:
        return {}

    @cached_property
    def _active_before(self) -> dict[bytes, NDArray[np.bool_]]:
        return {}

    def _asked(self, columns: tuple[int, ...]) -> Asked:
        """Columns as bits, first leaf and size of every group over them, the blocks above them."""
        if columns not in self._asked_before:
            groups = [g for at in columns for g in self.circuit.groups if g.column == at]
            firsts = np.array([g.first for g in groups], dtype=np.int64)
            sizes = np.array([g.size for g in groups], dtype=np.int64)
            wanted = np.zeros((1, len(self.circuit.schema)), dtype=bool)
            wanted[0, list(columns)] = True
            bits = _bits(wanted)
            above = np.asarray((self.program.scopes & bits).any(axis=1))
            self._asked_before[columns] = bits, firsts, sizes, above
        return self._asked_before[columns]

    def _active(self, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(n_ops,) blocks below which something is known; kept, since questions repeat."""
        key = known.tobytes()
        if key not in self._active_before:
            if len(self._active_before) >= MOST_KEPT:
                self._active_before.clear()
            scopes = self.program.scopes & _bits(known[None])
            self._active_before[key] = np.asarray(scopes.any(axis=1))
        return self._active_before[key]

    def __call__(
        self,
        native: Kernels,
        table: Table,
        *,
        is_max: bool = False,
        wanted: list[int] | None = None,
        walk: bool = False,
        uniform: FloatArray | None = None,
    ) -> Found:
        """One pass up, and what else is asked for.

        Args:
            native: the compiled loops.
            table: n rows.
            is_max: the best induced tree instead of the sum of all.
            wanted: columns whose leaves' flows are wanted.
            walk: find one induced tree a row, at its unknown cells.
            uniform: (n, choices) numbers that choose it; the likeliest child of each sum if not
                given.
        """
        circuit, program = self.circuit, self.program
        n, n_nodes = len(table), circuit.n_nodes
        tables = self._maxima if is_max else self._sums
        found = look_up(tables, table)
        active = self._active(found.known)
        asked = firsts = sizes = leaf_flows = None
        above = self._none_above
        if wanted is not None:
            asked, firsts, sizes, above = self._asked(tuple(wanted))
            leaf_flows = np.empty((n, int(sizes.sum())))
        places, flows = self._places(above, walk)
        goes_down = walk or flows.width > FEW_FLOWS
        most, most_bytes = (DOWN_ROWS, DOWN_BYTES) if goes_down else (UP_ROWS, UP_BYTES)
        a_row = 8 * (places.width + flows.width + 2 * places.n_seats)
        chunk = max(1, min(most_bytes // a_row, most, n), min(8, n))
        log_prob, risky = np.empty(n), np.zeros(n, dtype=np.uint8)
        leaf_of = unknown = None
        if walk:
            unknown = _bits(~table.observed)
            leaf_of = np.full(table.values.shape, -1, dtype=np.int32)
        # One piece of memory for all the work: values, flows, scales and losses, a gather, ratios,
        # shares, exponents, a stack.
        flow_rows = 0 if wanted is None else chunk
        spans = [chunk * places.width, flow_rows * flows.width, *2 * [places.n_seats * chunk]]
        spans += [program.widest, *2 * [flow_rows * program.widest], program.widest]
        spans += [len(circuit.schema) + program.widest + 8]
        ends = list(accumulate(spans))
        work = np.empty(ends[-1])
        start = address(work)
        by_slot = np.empty((5, tables.group_of_slot.size), dtype=np.uintp)
        by_slot[[0, 1, 4]] = found.fixed
        by_slot[2] = address(found.cells) + 4 * n * tables.group_of_slot
        by_slot[3] = address(found.within) + 8 * n * tables.group_of_slot
        first, step = address(by_slot), by_slot.strides[0]
        given: list[NDArray[Any] | None]
        given = [active, self._choice if walk else None, self._column_of, log_prob, risky]
        given += [asked, firsts, sizes, leaf_flows, unknown, uniform, leaf_of]
        pointers = [*self._fixed, *(first + i * step for i in range(5)), *map(_address, given)]
        pointers += [start + 8 * (end - span) for end, span in zip(ends, spans, strict=True)]
        pointers += [address(places.place), address(places.seat), address(flows.place)]
        numbers = [n, chunk, n_nodes, program.n_ops, program.scopes.shape[1]]
        numbers += [len(circuit.schema), int(is_max), circuit.n_choices]
        numbers += [0, 0] if sizes is None else [sizes.size, int(sizes.sum())]
        numbers += [places.width, flows.width]
        native.call(
            "circuit_rows", np.array(numbers, dtype=np.int64), np.array(pointers, dtype=np.uintp)
        )
        return Found(log_prob, np.flatnonzero(risky), leaf_flows, leaf_of)


def compiled(circuit: Circuit) -> tuple[Compiled, Kernels] | None:
    """The compiled passes of a circuit, or None where its passes in NumPy are to be used."""
    native = kernels()
    if native is None or not circuit.compiled.program.pays:
        return None
    return circuit.compiled, native


def row_blocks(table: Table, width: int = 1) -> Iterator[tuple[slice, Table]]:
    """Blocks of rows of which `width` numbers a row are kept."""
    return table.chunks(max(64, min(MOST_NUMBERS // max(width, 1), MOST_ROWS)))


def _address(array: NDArray[Any] | None) -> int:
    return 0 if array is None else address(array)


def _bits(columns: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """(n, words) truth values (n, D) as bits, as scopes are written."""
    n, d = columns.shape
    words = (d + 63) // 64
    padded = np.zeros((n, 64 * words), dtype=bool)
    padded[:, :d] = columns
    return np.packbits(padded, axis=1, bitorder="little").view("<u8")
