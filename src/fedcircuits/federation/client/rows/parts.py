"""Parts of a client's rows: groups that the server chooses are unions of them, each of enough rows.

The server chooses groups of rows: it names them, has fits leave them out, sends classes of them,
asks for clusters. Two groups that differ in one row reveal that row by the difference of their
models, tables or counts. A client therefore keeps *parts*: rows that were together in every group
so far. Of each part a group takes as many rows as leave enough both inside and outside, or all, or
none of them. Whatever is computed from all groups is then about parts, each of enough rows.
"""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import BoolArray, IntArray


class Parts:
    """Rows that were together in every group of rows that the server chose.

    Args:
        least: rows of a part; with one or none every group is taken as it is.
    """

    def __init__(self, least: int = 0) -> None:
        self._least = least
        self._parts: IntArray = np.zeros(0, dtype=np.int64)  # (n,)
        self._earlier: dict[bytes, IntArray] = {}
        self._name = b""

    def begin(self, name: bytes, strata: IntArray) -> None:
        """Begin a run, or go on with an earlier one: its groups still count.

        Args:
            name: of the run; a name that was used before is the same run.
            strata: (n,) groups that are revealed in any case: the classes of the label.
        """
        if self._name:
            self._earlier[self._name] = self._parts
        self._name = name
        self._parts = self._earlier.get(name, np.zeros(0, dtype=np.int64))
        if self._parts.size != strata.size:
            self._parts = np.unique(strata, return_inverse=True)[1].reshape(-1)

    def chosen(self, wanted: BoolArray) -> BoolArray:
        """(n,) which of the wanted rows (n,) may be used; few are left out, none is added."""
        if self._least <= 1 or wanted.size != self._parts.size:
            return wanted
        n_parts = int(self._parts.max(initial=-1)) + 1
        inside = np.bincount(self._parts[wanted], minlength=n_parts)
        outside = np.bincount(self._parts, minlength=n_parts) - inside
        # As many are left out as the rows outside lack; where too few would remain, all of them.
        kept = np.where(outside > 0, inside - np.clip(self._least - outside, 0, None), inside)
        kept = np.where(kept < self._least, 0, kept)
        rows = np.flatnonzero(wanted)
        rows = rows[np.argsort(self._parts[rows], kind="stable")]
        starts = np.cumsum(inside) - inside
        place = np.arange(rows.size) - starts[self._parts[rows]]  # of each row in its part
        answer = np.zeros(wanted.size, dtype=bool)
        answer[rows[place < kept[self._parts[rows]]]] = True
        self._split(answer.astype(np.int64))
        return answer

    def grouped(self, wanted: IntArray) -> IntArray:
        """(n,) the group of every row: the wanted one where enough rows of its part share it.

        The other rows of a part are put in the group that most of its rows want.
        """
        if self._least <= 1 or wanted.size != self._parts.size:
            return wanted
        groups, at = np.unique(wanted, return_inverse=True)
        n_groups = groups.size
        pair = self._parts * n_groups + at.reshape(-1)
        n_parts = int(self._parts.max(initial=-1)) + 1
        counts = np.bincount(pair, minlength=n_parts * n_groups).reshape(n_parts, n_groups)
        most = counts.argmax(axis=1)
        to = np.where(counts >= self._least, np.arange(n_groups), most[:, None])
        answer: IntArray = groups[to.reshape(-1)[pair]]
        self._split(answer)
        return answer

    def _split(self, groups: IntArray) -> None:
        """Part the rows further by the groups (n,) that were used."""
        pairs = np.stack([self._parts, groups], axis=1)
        self._parts = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
