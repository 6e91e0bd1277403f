"""A federated circuit with a head: p(x, y) = m(x) q(y | x), m its circuit's density of x.

Complete rows are exact; where a cell is missing, what is asked about or given the label is an
estimate, and says its error (`learners/hclt/head/`). Where no head is kept it is the circuit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits import Circuit
from fedcircuits.density import Density
from fedcircuits.federation.model.federated_circuit import FederatedCircuit
from fedcircuits.federation.server.heads import one_head
from fedcircuits.federation.server.tilts import class_rows
from fedcircuits.schema import Table


@dataclass(frozen=True, eq=False, repr=False)
class HeadedFederation(FederatedCircuit):
    """One density over the variables of all clients, trees pooled into the label's posterior."""

    @cached_property
    def _circuit(self) -> Circuit:
        return self.merged()

    @cached_property
    def _one(self) -> Density | None:
        from fedcircuits.learners.hclt.head.circuit_head import CircuitHead

        found = self.fitted
        if found is None or found.label is None or found.label not in self.schema:
            return self._circuit
        names = [name for name in self._circuit.schema.names if name != found.label]
        made = None
        if set(names) >= {c for head in found.heads.values() for c in head.columns}:
            made = one_head(found.heads, found.tilts, class_rows(found), names)
        if made is None:
            return self._circuit
        return CircuitHead.over(self._circuit, found.label, *made)

    @property
    def exact_part(self) -> Circuit:
        """The circuit without the trees."""
        return self._circuit

    @staticmethod
    def of(fed: FederatedCircuit) -> FederatedCircuit:
        """Return a federated circuit with the head that its fitted parts have, if any."""
        if fed.fitted is None or not fed.fitted.heads:
            return fed
        return HeadedFederation(**{each.name: getattr(fed, each.name) for each in fields(fed)})

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
        return self._whole().restrict(keep, evidence)
