"""A model that stays at its client: every hook is a message, only vectors travel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcircuits.conditioned import Conditioned
from fedcircuits.density import Density
from fedcircuits.encoding import Record
from fedcircuits.errors import StorageError
from fedcircuits.federation import messages as m
from fedcircuits.federation.server import Server
from fedcircuits.schema import Schema, Table
from fedcircuits.schema.grid import FloatArray


@dataclass(frozen=True, eq=False)
class RemoteDensity(Density):
    """A reference to a client's model.

    Attributes:
        server: who asks.
        client: where it is.
        key: its name there.
        schema: its variables.
        parameters: how many it has.
    """

    server: Server = field(repr=False)
    client: str
    key: str
    schema: Schema = field(repr=False)
    parameters: int

    def _ask(self, what: str, table: Table, order: int = 0, seed: int = 0) -> Any:
        nothing = np.zeros(0, dtype=np.int32)
        request = m.Ask(self.key, what, order, table.values, table.observed, nothing, seed)
        told = self.server.call("query", "ask", {self.client: request}, m.Answer)
        return told[self.client].values

    def log_prob_table(self, table: Table) -> FloatArray:
        return np.asarray(self._ask("log_prob", table))

    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        return np.asarray(self._ask("sample", table, seed=int(rng.integers(2**62))))

    def mpe_table(self, table: Table) -> FloatArray:
        return np.asarray(self._ask("mpe", table))

    def moment_table(self, table: Table, order: int) -> FloatArray:
        return np.asarray(self._ask("moment", table, order))

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        return np.asarray(self._ask("posterior", table, column))

    def covariance_table(self, evidence: Table, columns: list[int]) -> FloatArray:
        return np.asarray(self._ask("covariance", evidence)[np.ix_(columns, columns)])

    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Density:
        return Conditioned(self, keep, evidence)

    @property
    def n_parameters(self) -> int:
        """As the client said."""
        return self.parameters

    @property
    def mpe_is_exact(self) -> bool:
        """Not known from here."""
        return False

    def to_record(self) -> Record:
        raise StorageError(
            f"the model {self.key!r} stays at client {self.client!r} and cannot be saved here; "
            "federate with placement='gathered' to save"
        )
