"""A head over any circuit of density and label: p(x, y) = m(x) q(y | x) (`headed_circuit.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedcircuits.circuits import Circuit
from fedcircuits.encoding import Record
from fedcircuits.errors import StorageError
from fedcircuits.learners.hclt.head.headed.circuit_pass import CircuitPass
from fedcircuits.learners.hclt.head.headed.completions import Completer
from fedcircuits.learners.hclt.head.headed.headed_circuit import HeadedCircuit
from fedcircuits.learners.hclt.head.pool import Pool
from fedcircuits.learners.hclt.head.trees.across_trees import AcrossTrees
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees


@dataclass(frozen=True, eq=False, repr=False)
class CircuitHead(HeadedCircuit):
    """Boosted trees pooled into the posterior of the label of a circuit.

    Attributes:
        circuit: the density of x, and the posterior t; leaves are tables of states.
    """

    circuit: Circuit | None = None

    @staticmethod
    def over(
        circuit: Circuit, label: str, trees: BoostedTrees | AcrossTrees, pool: Pool
    ) -> CircuitHead:
        """Return the head over a circuit."""
        nothing: Any = None
        return CircuitHead(nothing, circuit.schema, label, trees, pool, None, circuit)

    @cached_property
    def base(self) -> Circuit:
        """The circuit without the trees."""
        assert self.circuit is not None
        return self.circuit

    def to_record(self) -> Record:
        """Never: it is stored as what it was made of."""
        raise StorageError("a head over a circuit is stored with its federation: save that")

    @cached_property
    def _completer(self) -> Completer:
        passes = CircuitPass(self.base, self.label)
        return Completer(passes, self.trees, self.pool, self.schema, self.label)
