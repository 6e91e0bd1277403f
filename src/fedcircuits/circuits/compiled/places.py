"""Where a compiled pass keeps what it computes of each block of a program."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcircuits.arrays import BoolArray, IntArray
from fedcircuits.circuits.compiled.program import (
    ARGS,
    ARITY,
    FOLDED,
    KIND,
    LEAF,
    OUT,
    PRODUCT,
    SIZE,
    SUM,
    Program,
)


class Places(NamedTuple):
    """Where numbers and scales of blocks lie.

    Attributes:
        place: (n_ops,) where the numbers of a block begin in a row of values.
        seat: (n_ops,) which of the scales are its own.
        width: numbers in a row of values.
        n_seats: scales of a row.
    """

    place: IntArray
    seat: IntArray
    width: int
    n_seats: int

    @staticmethod
    def own(program: Program) -> Places:
        """Return places of their own, for walks."""
        seat = np.arange(program.n_ops)
        return Places(program.ops[:, OUT].copy(), seat, program.position.size, program.n_ops)

    @staticmethod
    def shared(program: Program, above: BoolArray | None = None) -> Places:
        """Return places that are used again once nobody will read them.

        The values of a branch then stay in the cache, however many branches there are. Blocks that
        are looked up in tables need none.

        Args:
            program: of a circuit.
            above: (n_ops,) blocks that flows go down through: what they and those below them have
                computed stays.
        """
        ops = program.ops.tolist()
        below = [_blocks_below(program, op) for op in ops]
        stays = np.zeros(program.n_ops, dtype=bool) if above is None else above.copy()
        for block in np.flatnonzero(stays).tolist():
            stays[below[block]] = True
        last_use = np.full(program.n_ops, -1, dtype=np.int64)
        for at, blocks in enumerate(below):
            last_use[blocks] = at
        place = np.zeros(program.n_ops, dtype=np.int64)
        seat = np.zeros_like(place)
        free: dict[int, list[int]] = {}  # by size
        free_seats: list[int] = []
        width = n_seats = 0
        for at, op in enumerate(ops):
            if _is_in_table(op):
                continue
            same_size = free.setdefault(op[SIZE], [])
            if not same_size:
                same_size.append(width)
                width += op[SIZE]
            place[at] = same_size.pop()
            if not free_seats:
                free_seats.append(n_seats)
                n_seats += 1
            seat[at] = free_seats.pop()
            for block in below[at]:  # only now: a block does not write where it reads
                if last_use[block] == at and not (stays[block] or _is_in_table(ops[block])):
                    free[ops[block][SIZE]].append(int(place[block]))
                    free_seats.append(int(seat[block]))
        return Places(place, seat, max(width, 1), max(n_seats, 1))


class FlowPlaces(NamedTuple):
    """Where flows lie.

    Attributes:
        place: (n_ops,) where those of a block begin in a row of flows; of blocks that have some.
        width: numbers in a row of flows.
    """

    place: IntArray
    width: int

    @staticmethod
    def of(program: Program, above: BoolArray) -> FlowPlaces:
        """Return places for the blocks that flows go down through."""
        sizes = np.where(above, program.ops[:, SIZE], 0)
        return FlowPlaces(np.cumsum(sizes) - sizes, max(int(sizes.sum()), 1))


def _is_in_table(op: list[int]) -> bool:
    return op[KIND] == LEAF or op[FOLDED] >= 0


def _blocks_below(program: Program, op: list[int]) -> list[int]:
    """The blocks that a block reads, each once."""
    if _is_in_table(op):
        return []
    start = op[ARGS]
    if op[KIND] == SUM:
        edges = program.args[start : start + op[SIZE] * (1 + 2 * op[ARITY])]
        blocks = edges.reshape(op[SIZE], -1)[:, 1::2]
    else:
        n_slots = op[ARITY] if op[KIND] == PRODUCT else 1
        blocks = program.args[start : start + 3 * n_slots : 3]
    return [int(block) for block in np.unique(blocks)]
