"""A federated circuit with a head: p(x, y) = m(x) q(y | x), m its circuit's density of x.

Complete rows are exact; where a cell is missing, what is asked about or given the label is an
estimate, and states its error (`learners/hclt/head/`). Where no head is kept it is the circuit.

Where columns are split and a client leaves, its columns are summed out of density and head alike:
the rest is the marginal of what was there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits import Circuit
from fedcircuits.density import Density
from fedcircuits.density.conditioned import Conditioned
from fedcircuits.encoding import Record
from fedcircuits.federation.model.federated_circuit import FederatedCircuit
from fedcircuits.federation.server.fitted_parts import FittedParts
from fedcircuits.federation.server.heads import one_head
from fedcircuits.federation.server.heads_across import head_across
from fedcircuits.federation.server.tilts import class_rows
from fedcircuits.schema import Table


@dataclass(frozen=True, eq=False, repr=False)
class HeadedFederation(FederatedCircuit):
    """One density over the variables of all clients, trees pooled into the label's posterior.

    Attributes:
        before: the federation whose marginal this is, where clients have left with their columns.
    """

    before: HeadedFederation | None = None

    @cached_property
    def _circuit(self) -> Circuit:
        return self.merged()

    @cached_property
    def _one(self) -> Density | None:
        from fedcircuits.learners.hclt.head.headed.circuit_head import CircuitHead

        found = self.fitted
        if self.before is not None:
            whole = self.before._whole()
            return whole.restrict(self.schema.names, Table.empty(whole.schema, 1))
        if found is None or found.label is None or found.label not in self.schema:
            return self._circuit
        names = [name for name in self._circuit.schema.names if name != found.label]
        made = None
        if set(names) >= {c for head in found.heads.values() for c in head.columns}:
            made = self._trees_and_pool(found, names)
        if made is None:
            return self._circuit
        return CircuitHead.over(self._circuit, found.label, *made)

    def _trees_and_pool(self, found: FittedParts, names: list[str]) -> Any:
        """Trees and pool of all clients, None where there are none."""
        rows = class_rows(found)
        if not found.heads or (rows == 0).any():
            return None
        if any(head.n_together for head in found.heads.values()):
            return head_across(found.heads, found.tilts, names)
        return one_head(found.heads, found.tilts, found.head_scores, rows, names)

    @property
    def exact_part(self) -> Circuit:
        """The circuit without the trees."""
        return self._circuit

    def without_parts(self, away: Mapping[str, str]) -> Self:
        rest = super().without_parts(away)
        if self.setting != "vertical" or self.is_exact:
            return rest
        return replace(rest, before=self.before or self)

    @staticmethod
    def of(fed: FederatedCircuit, left: Sequence[str] = ()) -> FederatedCircuit:
        """Return a federated circuit with the head that its fitted parts have, if any.

        Args:
            fed: as it is stored.
            left: clients that have left it since.
        """
        if fed.fitted is None or not fed.fitted.heads:
            return fed
        found = HeadedFederation(**{each.name: getattr(fed, each.name) for each in fields(fed)})
        return found.without(left) if left else found

    def _whole(self) -> Density:
        assert self._one is not None
        return self._one

    @property
    def is_exact(self) -> bool:
        return self._whole().is_exact

    @property
    def mpe_is_exact(self) -> bool:
        return self._whole().mpe_is_exact

    @property
    def answers_events(self) -> bool:
        return True

    def mpe_table(self, table: Table) -> FloatArray:
        return self._whole().mpe_table(table)

    def completed_table(self, table: Table) -> tuple[FloatArray, FloatArray]:
        return self._whole().completed_table(table)

    def covariance_table(self, evidence: Table, columns: list[int]) -> FloatArray:
        return self._whole().covariance_table(evidence, columns)

    def posterior_with_error(self, table: Table, column: int) -> tuple[FloatArray, FloatArray]:
        return self._whole().posterior_with_error(table, column)

    def moment_of(self, table: Table, column: int, order: int) -> FloatArray:
        return self._whole().moment_of(table, column, order)

    def moment_error(self, table: Table, column: int, order: int) -> FloatArray:
        return self._whole().moment_error(table, column, order)

    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Density:
        found = self._whole().restrict(keep, evidence)
        # What is not a circuit by itself is stored with the federation that it comes from.
        return found if isinstance(found, Circuit) else Conditioned(self, keep, evidence)

    def to_record(self) -> Record:
        """As `FederatedCircuit.to_record`; of a marginal the whole, and who left."""
        if self.before is None:
            return super().to_record()
        record = self.before.to_record()
        record.header["federation"]["left"] = sorted(set(self.before.clients) - set(self.clients))
        return record
