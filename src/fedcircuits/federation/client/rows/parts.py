"""Parts of a client's rows: groups that the server chooses are unions of them, each of enough rows.

The server chooses groups of rows: it names them, has fits leave them out, sends classes of them,
asks for clusters. Two groups that differ in one row reveal that row by the difference of their
models, tables or counts. A client therefore keeps *parts*: rows that were together in every group
so far. Of each part a group takes as many rows as leave enough both inside and outside, or all, or
none of them. Whatever is computed from all groups is then about parts, each of enough rows.

Parts outlive the client's process (`memory.py`). One that begins anew has its groups again where
the same ones are asked for in the same order; any other must not part what was kept together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from fedcircuits.arrays import BoolArray, IntArray
from fedcircuits.federation.client.memory import Memory
from fedcircuits.federation.wire.ids import fingerprint

PARTS = "parts"
Rows = TypeVar("Rows", BoolArray, IntArray)


class Parts:
    """Rows that were together in every group of rows that the server chose.

    Args:
        least: rows of a part; with one or none every group is taken as it is.
        memory: of the client; by default one of this process.
    """

    def __init__(self, least: int = 0, memory: Memory | None = None) -> None:
        self._least = least
        self._memory = Memory() if memory is None else memory
        # (n,) by the groups that were asked for since the client was made; those in the memory
        # are parts of these.
        self._parts: IntArray = np.zeros(0, dtype=np.int64)
        self._name = ""

    def begin(self, name: bytes, strata: IntArray) -> None:
        """Begin a run, or go on with an earlier one: its groups still count.

        Args:
            name: of the run; a name that was used before is the same run.
            strata: (n,) groups that are revealed in any case: the classes of the label.
        """
        self._name = fingerprint(b"parts", name)
        self._parts = np.unique(strata, return_inverse=True)[1].reshape(-1)

    def chosen(self, wanted: BoolArray) -> BoolArray:
        """(n,) which of the wanted rows (n,) may be used; few are left out, none is added."""
        return self._taken(wanted, self._chosen)

    def _chosen(self, wanted: BoolArray, parts: IntArray) -> BoolArray:
        n_parts = int(parts.max(initial=-1)) + 1
        inside = np.bincount(parts[wanted], minlength=n_parts)
        outside = np.bincount(parts, minlength=n_parts) - inside
        # As many are left out as the rows outside lack; where too few would remain, all of them.
        kept = np.where(outside > 0, inside - np.clip(self._least - outside, 0, None), inside)
        kept = np.where(kept < self._least, 0, kept)
        rows = np.flatnonzero(wanted)
        rows = rows[np.argsort(parts[rows], kind="stable")]
        starts = np.cumsum(inside) - inside
        place = np.arange(rows.size) - starts[parts[rows]]  # of each row in its part
        answer = np.zeros(wanted.size, dtype=bool)
        answer[rows[place < kept[parts[rows]]]] = True
        return answer

    def grouped(self, wanted: IntArray) -> IntArray:
        """(n,) the group of every row: the wanted one where enough rows of its part share it.

        The other rows of a part are put in the group that most of its rows want.
        """
        return self._taken(wanted, self._grouped)

    def _grouped(self, wanted: IntArray, parts: IntArray) -> IntArray:
        groups, at = np.unique(wanted, return_inverse=True)
        n_groups = groups.size
        pair = parts * n_groups + at.reshape(-1)
        n_parts = int(parts.max(initial=-1)) + 1
        counts = np.bincount(pair, minlength=n_parts * n_groups).reshape(n_parts, n_groups)
        most = counts.argmax(axis=1)
        to = np.where(counts >= self._least, np.arange(n_groups), most[:, None])
        answer: IntArray = groups[to.reshape(-1)[pair]]
        return answer

    def _taken(self, wanted: Rows, adapt: Callable[[Rows, IntArray], Rows]) -> Rows:
        """(n,) the wanted groups as parts allow them; the rows are parted by them from now on."""
        if self._least <= 1 or wanted.size != self._parts.size:
            return wanted
        answer = adapt(wanted, self._parts)
        with self._memory.of(self._name) as kept:
            parts = kept.get(PARTS, self._parts)
            if parts.size != wanted.size:  # of another table
                parts = self._parts
            if not _together(answer, parts):
                answer = adapt(wanted, parts)
            split = _split(parts, answer)
            if not np.array_equal(split, kept.get(PARTS, [])):
                kept[PARTS] = split
        self._parts = _split(self._parts, answer)
        return answer


def _split(parts: IntArray, groups: IntArray | BoolArray) -> IntArray:
    """Parts (n,) of rows that are together in others and in groups (n,)."""
    numbers = groups.astype(np.int64)
    numbers = numbers - numbers.min(initial=0)
    pairs = parts * (int(numbers.max(initial=0)) + 1) + numbers
    return np.unique(pairs, return_inverse=True)[1].reshape(-1)


def _together(groups: IntArray | BoolArray, parts: IntArray) -> bool:
    """Whether every part lies in one group."""
    return int(_split(parts, groups).max(initial=-1)) == int(parts.max(initial=-1))
