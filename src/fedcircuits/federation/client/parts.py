"""Which rows of a client no request has told apart: parts of enough rows each.

The server chooses groups of rows: it names them, has fits leave them out, sends classes of them,
asks for clusters. Two groups that differ in one row tell that row by the difference of their
models, tables or counts. A client therefore keeps *parts*: rows that were together in every group
so far. A group takes so many rows of a part that those inside and those outside are enough, or all,
or none of them. Whatever is computed from all groups is then about parts, each of enough rows.
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
        """Begin a run, or take it up where it was: what it told is not forgotten.

        Args:
            name: of the run: the same once more is the same run.
            strata: (n,) groups that are told anyway: the classes of the label.
        """
        if self._name:
            self._earlier[self._name] = self._parts
        self._name = name
        self._parts = self._earlier.get(name, np.zeros(0, dtype=np.int64))
        if self._parts.size != strata.size:
            self._parts = np.unique(strata, return_inverse=True)[1].reshape(-1)

    def chosen(self, wanted: BoolArray) -> BoolArray:
        """(n,) the rows of a choice (n,) that may be computed with: none is added, few are not."""
        if self._least <= 1 or wanted.size != self._parts.size:
            return wanted
        n_parts = int(self._parts.max(initial=-1)) + 1
        inside = np.bincount(self._parts[wanted], minlength=n_parts)
        outside = np.bincount(self._parts, minlength=n_parts) - inside
        # As many are given up as those outside lack; where too few would be left, all of them.
        kept = np.where(outside > 0, inside - np.clip(self._least - outside, 0, None), inside)
        kept = np.where(kept < self._least, 0, kept)
        rows = np.flatnonzero(wanted)
        rows = rows[np.argsort(self._parts[rows], kind="stable")]
        starts = np.cumsum(inside) - inside
        place = np.arange(rows.size) - starts[self._parts[rows]]  # of each row in its part
        answer = np.zeros(wanted.size, dtype=bool)
        answer[rows[place < kept[self._parts[rows]]]] = True
        self._tell(answer.astype(np.int64))
        return answer

    def grouped(self, wanted: IntArray) -> IntArray:
        """(n,) the group of every row: as wanted with enough others of its part, else most's."""
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
        self._tell(answer)
        return answer

    def _tell(self, groups: IntArray) -> None:
        """Note that the groups (n,) of rows are told apart from now on."""
        pairs = np.stack([self._parts, groups], axis=1)
        self._parts = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
