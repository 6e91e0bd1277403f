"""What a client knows: its table, label, learner, groupings, models. Its parts inherit it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.density import Density
from fedcircuits.density.tilt import Tilt
from fedcircuits.errors import FedcircuitsError
from fedcircuits.federation.client.clustering import strata_of_label
from fedcircuits.federation.client.jobs import labels
from fedcircuits.federation.client.mailbox import Mailbox
from fedcircuits.federation.client.own_learner import OwnLearner
from fedcircuits.federation.client.rows.aligned_rows import AlignedRows
from fedcircuits.federation.client.rows.describe import describe, own_schema
from fedcircuits.federation.client.rows.parts import Parts
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import Grouping, ModelName
from fedcircuits.schema import Table

if TYPE_CHECKING:
    import pandas as pd


class ClientState:
    """The state of a client, which `Client` sets and the methods for messages read and change."""

    name: str
    _frame: pd.DataFrame  # without the ids
    _kinds: dict[str, Any]
    _missing_values: tuple[object, ...]
    _least: int  # rows of a group, by the policy; 0 without one
    _ids: pd.Series[Any] | None
    _secret: str
    _seed: int
    _label: str | None
    _label_was_sent: bool  # by its owners; else it is a column of mine
    _table: Table | None
    _learner: OwnLearner
    _aligned: AlignedRows
    _mail: Mailbox
    _parts: Parts  # rows that were together in every group so far
    _counted: dict[str, BoolArray]  # (n,) of the rows that have a name, those of sums
    _use: BoolArray | None  # rows to fit on, None for all
    _trial_clusters: dict[bytes, tuple[IntArray, IntArray]]  # of rows and strata, by request
    _groups: dict[Grouping, IntArray]  # part of every row, -1 for none
    _models: dict[ModelName, Density]
    _tilts: dict[str, Tilt]
    _tilted: dict[ModelName, tuple[Density, list[tuple[Density, float]]]]
    _normalisers_of: dict[ModelName, tuple[Density, FloatArray]]  # (Y,) each

    def _have(self) -> Table:
        """The client's table on the agreed schema."""
        if self._table is None:
            raise FedcircuitsError(f"client {self.name!r} was not sent the agreed schema yet")
        return self._table

    def _described(self, min_rows: int) -> m.Description:
        """The description of the client's columns."""
        levels = not self._learner.takes_levels
        found = describe(
            self._frame, self._kinds, self._missing_values, min_rows, sketch_levels=levels
        )
        return replace(found, tilts=self._learner.tilts, min_rows=self._least)

    def _to_cluster(self, columns: list[str]) -> Table:
        """Columns to cluster rows on; with a policy on the client's own grids.

        The server's could show one column: where a grid has one state, or the categories that rows
        have come after many others, codes of all columns would be codes of the rest.
        """
        if self._least <= 1:
            return self._have().columns(columns)
        schema = own_schema(self._described(self._least), self._label).select(columns)
        return schema.encode(
            self._frame[columns], missing_values=self._missing_values, missing_as_state=True
        )

    def _revealed_classes(self) -> IntArray:
        """(n,) groups of rows that any run reveals: classes of a label that has categories."""
        table = self._have()
        coded = self._label in table.schema and table.schema[self._label or ""].is_coded
        if not coded:
            return np.zeros(len(table), dtype=np.int64)
        codes, known = self._classes()
        return np.where(known, codes, -1)

    def _counted_of(self, name: str) -> BoolArray:
        """(n,) the rows of a name that sums are taken over."""
        self._aligned.named(name)  # an error where there is no such name
        return self._counted[name]

    def _classes(self) -> tuple[IntArray, BoolArray]:
        """(n,) class of every row, and whether it is known."""
        return labels(self._have(), self._label, self.name)

    def _strata(self, within_label: bool, *, unknown: bool = False) -> IntArray:
        """(n,) the label of every row where clusters are to be within it."""
        return (
            strata_of_label(self._have(), self._label, unknown)
            if within_label
            else np.zeros(len(self._have()), dtype=int)
        )
