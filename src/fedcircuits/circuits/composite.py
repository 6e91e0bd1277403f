"""A circuit whose leaves are whole densities: sums and products over models of any kind.

This is what the server of a federation holds (section 3.2): client models below, sums and products
above. A part may be a circuit in this process, an EiNet, or a reference to a model that stays at
its client. Queries are in `circuits.over_parts`; here are the data, its checks and its storage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedcircuits.arrays import IntArray
from fedcircuits.circuits.assemble import Assembler
from fedcircuits.circuits.circuit import Circuit
from fedcircuits.circuits.evaluation_plan import EvaluationPlan
from fedcircuits.circuits.over_parts import OverParts
from fedcircuits.circuits.queries.restrict import embed, fold_evidence
from fedcircuits.circuits.structure import Structure, scope_bits
from fedcircuits.circuits.structure_builder import StructureBuilder
from fedcircuits.density import Density
from fedcircuits.density.fit_report import FitReport
from fedcircuits.encoding import Record
from fedcircuits.errors import MALFORMED, StorageError, StructureError
from fedcircuits.schema import Schema


@dataclass(frozen=True, eq=False, repr=False)
class Composite(OverParts):
    """Sums and products over densities.

    Attributes:
        schema: all variables.
        parts: the leaves; each over some of the names of `schema`, with the same encoding.
        structure: sums and products; leaf i is parts[i].
        fit_report: what the learner said, if there was one.
    """

    schema: Schema
    parts: tuple[Density, ...]
    structure: Structure
    fit_report: FitReport | None = None

    def __post_init__(self) -> None:
        faults = []
        if self.structure.n_leaves != len(self.parts):
            faults.append(f"{len(self.parts)} parts for {self.structure.n_leaves} leaves")
        for at, part in enumerate(self.parts):
            for variable in part.schema:
                if variable.name not in self.schema:
                    faults.append(f"part {at} is over unknown variable {variable.name!r}")
                elif not _same_encoding(variable, self.schema[variable.name]):
                    faults.append(f"part {at} encodes {variable.name!r} in another way")
        if not faults:
            faults = self.structure.faults(self._leaf_scopes, self.schema.names)
        if faults:
            raise StructureError(faults)

    @cached_property
    def columns(self) -> tuple[IntArray, ...]:
        """Positions of each part's variables in the schema."""
        return tuple(
            np.array([self.schema.position(name) for name in part.schema.names], dtype=np.int64)
            for part in self.parts
        )

    @property
    def _leaf_scopes(self) -> Any:
        leaf = np.repeat(np.arange(len(self.parts)), [c.size for c in self.columns])
        return scope_bits(np.concatenate(self.columns), leaf, len(self.parts), len(self.schema))

    @cached_property
    def plan(self) -> EvaluationPlan:
        """The order of evaluation."""
        return EvaluationPlan.of(self.structure)

    @property
    def n_parameters(self) -> int:
        """Parameters of the parts, each counted once, and weights less one for each sum."""
        distinct = {id(part): part.n_parameters for part in self.parts}
        arity = self.structure.arity[self.structure.is_sum]
        return sum(distinct.values()) + int((arity - 1).sum())

    @property
    def mpe_is_exact(self) -> bool:
        """Only where nothing is mixed above exact parts."""
        mixed = bool((self.structure.is_sum & (self.structure.arity > 1)).any())
        return not mixed and all(part.mpe_is_exact for part in self.parts)

    def __repr__(self) -> str:
        sums = int(self.structure.is_sum.sum())
        return (
            f"{type(self).__name__}({len(self.schema)} variables, {len(self.parts)} models below "
            f"{sums} sums and {self.structure.n_inner - sums} products; "
            f"{self.n_parameters} parameters)"
        )

    def _restricted(
        self,
        keep: tuple[str, ...],
        parts: list[Density],
        which: list[int],
        graph: StructureBuilder,
        root: int,
    ) -> Density:
        del which
        return compose(self.schema.select(keep), parts, graph, root)

    # --- as one circuit ---------------------------------------------------------------------------

    def merged(self) -> Circuit:
        """This distribution as one ordinary circuit, if every part is a circuit."""
        assembler = Assembler(self.schema)
        roots = []
        for at, part in enumerate(self.parts):
            inner = part.merged() if isinstance(part, Composite) else part
            if not isinstance(inner, Circuit):
                raise StructureError([f"part {at} is a {type(part).__name__}, not a circuit"])
            roots.append(embed(assembler, inner, [int(c) for c in self.columns[at]]))
        nothing = np.zeros(self.structure.n_nodes)
        root = fold_evidence(self.structure, nothing, np.array(roots, dtype=np.int64), assembler)
        return Circuit.assemble(assembler, root, self.fit_report)

    # --- storage ----------------------------------------------------------------------------------

    def to_record(self) -> Record:
        arrays = self.structure.arrays()
        parts = [
            part.to_record().put_into(arrays, f"part.{at}.") for at, part in enumerate(self.parts)
        ]
        header = {
            "schema": self.schema.to_json(),
            "parts": parts,
            "fit_report": None if self.fit_report is None else self.fit_report.to_json(),
        }
        return Record("composite", header, arrays)

    @classmethod
    def from_record(cls, record: Record, decode: Callable[[Record], Density]) -> Composite:
        """Inverse of `to_record`; `decode` rebuilds a part."""
        try:
            entries = enumerate(record.header["parts"])
            parts = [decode(record.inner(f"part.{at}.", entry)) for at, entry in entries]
            structure = Structure.from_arrays(len(parts), record.arrays)
            report = record.header["fit_report"]
            return cls(
                Schema.from_json(record.header["schema"]),
                tuple(parts),
                structure,
                None if report is None else FitReport.from_json(report),
            )
        except StorageError:
            raise
        except MALFORMED as error:
            raise StorageError(f"the model in the file is not valid: {error}") from None


def compose(schema: Schema, parts: list[Density], graph: StructureBuilder, root: int) -> Density:
    """The density below `root` of a graph whose first numbers are the parts, in order."""
    structure, kept = graph.below(root, len(parts))
    if structure.n_inner == 0:
        return parts[int(kept[0])]
    return Composite(schema, tuple(parts[at] for at in kept), structure)


def _same_encoding(a: Any, b: Any) -> bool:
    """Whether two variables encode values alike (a grid may be known to only one of them)."""
    return bool(
        a.kind == b.kind and a.categories == b.categories and a.missing_state == b.missing_state
    )
