"""A tilt: what each state of each column adds to the log-odds of the classes of a label.

    p(x, y) = (1/Z) m(x) exp(c_y + sum_j g_yj(x_j))

Tables live on the agreed states of a schema (codes of categories, states of grids), so tilts of
different clients can be added, averaged and sent as plain tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.schema import Table, Variable

StatesOfRows = dict[str, tuple[IntArray, IntArray]]  # by column: rows with a value, states


@dataclass(frozen=True, eq=False)
class Tilt:
    """Class constants and a table for each column.

    Attributes:
        columns: names.
        c: (Y,) class constants; -inf for a class that whoever fitted it has not seen.
        tables: for every column (Y, states) g.
        counts: (Y,) rows of each class that it was fitted to.
    """

    columns: tuple[str, ...]
    c: FloatArray
    tables: tuple[FloatArray, ...]
    counts: FloatArray

    @property
    def n_classes(self) -> int:
        """Number of classes Y."""
        return int(self.c.size)

    @property
    def widths(self) -> list[int]:
        """Number of states of each column."""
        return [table.shape[1] for table in self.tables]

    @property
    def flat(self) -> FloatArray:
        """(Y, W) the tables side by side."""
        empty = np.zeros((self.n_classes, 0))
        return np.concatenate([empty, *self.tables], axis=1)

    def of(self, name: str) -> FloatArray:
        """(Y, states) the table of one column."""
        return self.tables[self.columns.index(name)]

    def select(self, names: Sequence[str]) -> Tilt:
        """Return the tilt of some of the columns."""
        kept = [at for at, name in enumerate(self.columns) if name in names]
        return Tilt(
            tuple(self.columns[at] for at in kept),
            self.c,
            tuple(self.tables[at] for at in kept),
            self.counts,
        )

    def scores(self, table: Table, found: StatesOfRows | None = None) -> FloatArray:
        """(n, Y) sum of the tables' entries at the states of the rows; a missing cell adds 0.

        Args:
            table: rows.
            found: their states by column so far, for several tilts of the same rows.
        """
        answer = np.zeros((len(table), self.n_classes))
        found = {} if found is None else found
        for name, entries in zip(self.columns, self.tables, strict=True):
            if name not in found:
                at = table.schema.position(name)
                seen = np.flatnonzero(table.observed[:, at])
                states = states_of(table.schema.variables[at], table.values[seen, at])
                found[name] = seen, states
            seen, states = found[name]
            answer[seen] += entries.T[states]
        return answer

    @staticmethod
    def from_flat(
        columns: Sequence[str], widths: Sequence[int], c: FloatArray, g: FloatArray, n: FloatArray
    ) -> Tilt:
        """Return the tilt whose tables lie side by side in g (Y, W), `widths` states each."""
        return Tilt(tuple(columns), c, tuple(by_column(g, widths)), n)


def by_column(flat: FloatArray, widths: Sequence[int]) -> list[FloatArray]:
    """Split arrays of states side by side, (..., W), by column: `widths` states each, or none."""
    return np.split(flat, np.cumsum(widths, dtype=np.int64), axis=-1)[:-1]


def states_of(variable: Variable, values: FloatArray) -> IntArray:
    """(n,) state of each encoded value of one variable: its code, or the state of its grid."""
    if variable.is_coded:
        return values.astype(np.int64)
    assert variable.grid is not None
    return variable.grid.encode(values)


def state_values(variable: Variable) -> FloatArray:
    """(S,) a value of each state of a variable: its code, or a likeliest value of the grid's."""
    if variable.is_coded:
        return np.arange(variable.n_codes, dtype=float)
    assert variable.grid is not None
    return variable.grid.modes()[0]


def log_within_states(variable: Variable, values: FloatArray) -> FloatArray:
    """(n,) log-density of values given their states; 0 for codes."""
    if variable.is_coded:
        return np.zeros(values.size)
    assert variable.grid is not None
    return variable.grid.log_within(values)


def n_states_of(variable: Variable) -> int:
    """Number of states of a variable; 0 where it has neither codes nor a grid."""
    if variable.is_coded:
        return variable.n_codes
    return 0 if variable.grid is None else variable.grid.n_states


def spread_over_states(variable: Variable, rows: FloatArray) -> FloatArray:
    """(S, S) which share of the rows counted in each state has which state: itself, for codes.

    A state of a number in which no row is counted may have had too few to be sent: they were
    counted in a neighbour. The nearest state with rows leaves it half as many as the rarest one
    has, or an even share of its own.
    """
    shares = np.eye(rows.size)
    seen, absent = np.flatnonzero(rows > 0), np.flatnonzero(rows <= 0)
    if variable.is_coded or not seen.size:
        return shares
    after = np.clip(np.searchsorted(seen, absent), 1, max(seen.size - 1, 1))
    pairs = seen[np.minimum(np.stack([after - 1, after]), seen.size - 1)]  # (2, absent)
    nearest = pairs[np.abs(pairs - absent).argmin(axis=0), np.arange(absent.size)]
    n_joined = np.bincount(nearest, minlength=rows.size) + 1.0
    few = np.minimum(rows[seen].min() / 2 / np.maximum(rows, 1e-300), 1 / n_joined)
    shares[nearest, absent] = few[nearest]
    shares[seen, seen] -= shares[seen][:, absent].sum(axis=1)
    return shares


def log_softmax(logits: FloatArray) -> FloatArray:
    """(..., Y) logs of the normalised exponentials."""
    return np.asarray(logits - np.logaddexp.reduce(logits, axis=-1)[..., None])


def by_class(outputs: FloatArray) -> FloatArray:
    """(n, Y) one output of trees a class: a single one is the log-odds of the second class."""
    if outputs.shape[1] > 1:
        return outputs
    return np.concatenate([np.zeros_like(outputs), outputs], axis=1)


def one_less(logits: FloatArray) -> FloatArray:
    """(n, L) the log-odds of two classes, or the logits of more with mean zero in each row."""
    if logits.shape[1] == 2:
        return logits[:, 1:] - logits[:, :1]
    return np.asarray(logits - logits.mean(axis=1, keepdims=True))
