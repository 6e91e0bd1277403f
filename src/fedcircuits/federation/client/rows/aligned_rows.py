"""The aligned rows of a client's table, by name, and the label that was sent for them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from scipy import sparse

from fedcircuits.arrays import Bytes, IntArray
from fedcircuits.density.tilt import state_values
from fedcircuits.errors import FedcircuitsError
from fedcircuits.federation.client.mailbox import Expected, Mailbox
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.packing import unpack_choice, unpack_codes
from fedcircuits.schema import Schema, Table


class AlignedRows:
    """Rows of one client that other clients hold too.

    Attributes:
        rows: (m,) their positions in the client's table, in the agreed order.

    Args:
        client: its name, for errors.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self.rows: IntArray = np.zeros(0, dtype=np.int64)
        self._named: dict[str, IntArray] = {}

    def set(self, rows: IntArray, n_rows: int) -> None:
        """Set the aligned rows; names given to earlier ones no longer hold.

        Args:
            rows: (m,) distinct positions: a row named many times would pass for a large group.
            n_rows: of the client's table.
        """
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise FedcircuitsError("aligned rows are a list of positions")
        if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < n_rows:
            raise FedcircuitsError(f"aligned rows are positions from 0 to {n_rows - 1}")
        if np.unique(rows).size < rows.size:
            raise FedcircuitsError("aligned rows are distinct; some are named twice")
        self.rows, self._named = rows.astype(np.int64), {}

    def chosen(self, choice: Bytes) -> IntArray:
        """Return the rows that a packed choice selects."""
        return self.rows[unpack_choice(choice, self.rows.size)]

    def name(self, name: str, choice: Bytes, draw: m.Draw | None = None) -> None:
        """Give a choice of rows, or those of them that are drawn, a name for later messages."""
        rows = self.chosen(choice)
        self._named[name] = rows if draw is None else rows[draw.of(rows.size)]

    def named(self, name: str) -> IntArray:
        """Return the rows that were given a name."""
        if name not in self._named:
            raise FedcircuitsError(f"client {self._client!r} has no rows of the name {name!r}")
        return self._named[name]

    def with_label(self, table: Table, label: str, sent: m.TakeLabel, mail: Mailbox) -> Table:
        """The client's table with a label that others sent: missing for rows they do not hold.

        Args:
            table: without the label.
            label: its name.
            sent: sealed states of aligned rows, of one owner or several.
            mail: that opens them.
        """
        variable = Schema.from_json(sent.schema)[label]
        if variable.is_coded:
            variable = replace(variable, closed=True, declared=True)
        a_value = state_values(variable)  # a number is known by its state
        n_codes = a_value.size
        values, observed = np.zeros(len(table)), np.zeros(len(table), dtype=bool)
        chosen = [self.chosen(each.choice) for each in sent.pieces]
        expected = [
            Expected(
                each.piece,
                m.LABEL_PIECE,
                str(rows.size),
                partial(unpack_codes, n=rows.size, n_codes=n_codes + 1),
            )
            for each, rows in zip(sent.pieces, chosen, strict=True)
        ]
        for rows, codes in zip(chosen, mail.open(m.LABEL_PIECE, expected), strict=True):
            fresh = (codes < n_codes) & ~observed[rows]
            values[rows[fresh]], observed[rows[fresh]] = a_value[codes[fresh]], True
        return table.with_column(variable, values, observed)

    def shared_out(self, request: m.Branch, mapped: IntArray) -> sparse.csr_matrix:
        """(n, R) how much of every row of the table belongs to every class.

        Args:
            request: about aligned rows.
            mapped: (n,) class of every row of the table, -1 for none: a row that the request is
                not about stays in the class it was mapped to, if that one is still there.
        """
        chosen = self.chosen(request.choice)
        per_row = unpack_codes(request.per_row, chosen.size, request.n_classes + 1)
        classes = unpack_codes(request.classes, int(per_row.sum()), request.n_classes)
        rest = np.setdiff1d(np.flatnonzero(mapped >= 0), chosen)
        present = np.bincount(classes, minlength=request.n_classes) > 0
        rest = rest[present[mapped[rest]]]
        rows = np.concatenate([np.repeat(chosen, per_row), rest])
        columns = np.concatenate([classes, mapped[rest]])
        weights = np.concatenate([request.weights.astype(float), np.ones(rest.size)])
        return sparse.csr_matrix((weights, (rows, columns)), shape=(mapped.size, request.n_classes))
