"""What a client knows: its table, label, learner, groupings, models. Its parts inherit it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedcircuits.arrays import BoolArray, IntArray
from fedcircuits.density import Density
from fedcircuits.density.tilt import Tilt
from fedcircuits.errors import FedcircuitsError
from fedcircuits.federation.client.aligned_rows import AlignedRows
from fedcircuits.federation.client.jobs import labels
from fedcircuits.federation.client.mailbox import Mailbox
from fedcircuits.federation.client.own_learner import OwnLearner
from fedcircuits.federation.wire.names import Grouping, ModelName
from fedcircuits.schema import Table

if TYPE_CHECKING:
    import pandas as pd


class ClientState:
    """The state of a client, which `Client` sets and the methods for messages read and change."""

    name: str
    _ids: pd.Series[Any] | None
    _secret: str
    _seed: int
    _label: str | None
    _label_was_sent: bool  # by its owners; else it is a column of mine
    _table: Table | None
    _learner: OwnLearner
    _aligned: AlignedRows
    _mail: Mailbox
    _use: BoolArray | None  # rows to fit on, None for all
    _groups: dict[Grouping, IntArray]  # part of every row, -1 for none
    _models: dict[ModelName, Density]
    _tilts: dict[str, Tilt]
    _tilted: dict[ModelName, tuple[Density, list[tuple[Density, float]]]]

    def _have(self) -> Table:
        """The client's table on the agreed schema."""
        if self._table is None:
            raise FedcircuitsError(f"client {self.name!r} was not sent the agreed schema yet")
        return self._table

    def _classes(self) -> tuple[IntArray, BoolArray]:
        """(n,) class of every row, and whether it is known."""
        return labels(self._have(), self._label, self.name)
