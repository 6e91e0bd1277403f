"""`Circuit`: a probabilistic circuit as a frozen value, and a Density."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.assemble import Assembler
from fedcircuits.circuits.compiled.run import Compiled
from fedcircuits.circuits.evaluation_plan import EvaluationPlan, Index, as_index
from fedcircuits.circuits.leaf_group import LeafGroup
from fedcircuits.circuits.leaves import family_named
from fedcircuits.circuits.leaves.within import Within
from fedcircuits.circuits.queries.covariance import covariance
from fedcircuits.circuits.queries.determinism import is_deterministic
from fedcircuits.circuits.queries.likelihood import log_prob
from fedcircuits.circuits.queries.moments import moments, variances
from fedcircuits.circuits.queries.mpe import mpe
from fedcircuits.circuits.queries.posterior import masses, posterior
from fedcircuits.circuits.queries.restrict import restrict
from fedcircuits.circuits.queries.sampling import sample
from fedcircuits.circuits.queries.tilt import tilt
from fedcircuits.circuits.queries.walk import choice_slots
from fedcircuits.circuits.structure import Structure, floats, scope_bits
from fedcircuits.density import Density
from fedcircuits.density.fit_report import FitReport
from fedcircuits.density.queries.cells import grid_cells
from fedcircuits.encoding import Record
from fedcircuits.errors import MALFORMED, StorageError, StructureError
from fedcircuits.schema import Grid, Schema, Table
from fedcircuits.schema.events import Region
from fedcircuits.schema.grids.decimals import grid_from_json
from fedcircuits.schema.grids.quantiles import quantiles_on


@dataclass(frozen=True, eq=False)
class Circuit(Density):
    """A smooth, decomposable, normalised circuit over the variables of a schema.

    Made by `fedcircuits.circuits.build`, by learners, or by `load`; the constructor checks
    everything once and lists every violation. There is nothing to set afterwards.

    Attributes:
        schema: the variables.
        groups: the leaves, by variable and family.
        structure: sums and products.
        fit_report: what the learner said, if there was one.
    """

    schema: Schema
    groups: tuple[LeafGroup, ...]
    structure: Structure
    fit_report: FitReport | None = None

    def __post_init__(self) -> None:
        faults = []
        for group in self.groups:
            variable = self.schema.variables[group.column]
            family = group.family
            found = family.check(group.params, variable, group.grid)
            if variable.kind not in family.kinds:
                found.append(f"does not fit a {variable.kind} variable")
            if group.size == 0:
                found.append("is a group without a leaf")
            faults += [f"{family.name} leaf over {variable.name!r}: {fault}" for fault in found]
        faults += self._measure_faults()
        faults += self.structure.faults(self._leaf_scopes, self.schema.names)
        if faults:
            raise StructureError(faults)
        for array in (*self.structure.arrays().values(), *self._leaf_arrays().values()):
            array.setflags(write=False)

    def _measure_faults(self) -> list[str]:
        """Continuous variables whose leaves do not share one base measure.

        At an atom of one leaf another's density would be added to a point mass: the circuit would
        not have mass one.
        """
        atoms: dict[int, set[bytes]] = {}
        for group in self.groups:
            if self.schema.variables[group.column].kind == "continuous":
                found = b"" if group.grid is None else group.grid.atoms.tobytes()
                atoms.setdefault(group.column, set()).add(found)
        return [
            f"leaves over {self.schema.names[column]!r} have different atoms (point masses), so "
            "they are not densities of one measure; put them on one grid"
            for column, found in atoms.items()
            if len(found) > 1
        ]

    @cached_property
    def leaf_column(self) -> IntArray:
        """(n_leaves,) the column of each leaf."""
        return np.repeat(
            np.array([g.column for g in self.groups], dtype=np.int64),
            np.array([g.size for g in self.groups], dtype=np.int64),
        )

    def leaves_over(self, column: int) -> Index:
        """Where the leaves of one column are among all leaves."""
        return self._leaves_by_column[column]

    def n_leaves_over(self, column: int) -> int:
        """Number of leaves of one column."""
        return sum(group.size for group in self.groups if group.column == column)

    @cached_property
    def _leaves_by_column(self) -> list[Index]:
        columns = range(len(self.schema))
        return [as_index(np.flatnonzero(self.leaf_column == at)) for at in columns]

    @cached_property
    def node_scopes(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """(n_nodes, words) the columns below each node, as bits."""
        return self.structure.scopes(self._leaf_scopes)

    @property
    def _leaf_scopes(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        n = self.structure.n_leaves
        return scope_bits(self.leaf_column, np.arange(n), n, len(self.schema))

    def covers(self, column: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """(n_nodes,) whether a node's scope holds the column."""
        bit = np.left_shift(np.uint64(1), np.uint64(column % 64))
        answer: np.ndarray[tuple[int], np.dtype[np.bool_]]
        answer = (self.node_scopes[:, column // 64] & bit) != 0
        return answer

    @cached_property
    def within_cache(self) -> dict[tuple[int, Region], Within]:
        """Leaves given events, by first leaf of the group and event (see `passes`)."""
        return {}

    @cached_property
    def outcome_masses(self) -> dict[int, FloatArray]:
        """Masses of outcomes at the leaves, by column (see `queries/posterior.py`)."""
        return {}

    @cached_property
    def modes(self) -> list[tuple[FloatArray, FloatArray]]:
        """Of every group, (L,) modes and (L,) log-densities there."""
        return [g.family.mode(g.params, g.grid) for g in self.groups]

    @cached_property
    def choice_slots(self) -> IntArray:
        """(n_nodes,) by sum, which of a row's random numbers chooses its child in sampling."""
        return choice_slots(self.structure, self.leaf_column)

    @cached_property
    def n_choices(self) -> int:
        """How many random numbers sampling takes for one row."""
        return int(self.choice_slots.max(initial=-1)) + 1

    @cached_property
    def plan(self) -> EvaluationPlan:
        """The steps of evaluation, computed once."""
        return EvaluationPlan.of(self.structure)

    @cached_property
    def compiled(self) -> Compiled:
        """The circuit laid out for compiled passes, worked out once."""
        return Compiled(self)

    def __getstate__(self) -> dict[str, Any]:
        """For copies: all but what holds addresses of this process."""
        return {name: value for name, value in self.__dict__.items() if name != "compiled"}

    @property
    def n_nodes(self) -> int:
        """Number of leaves, sums and products."""
        return self.structure.n_nodes

    @property
    def n_edges(self) -> int:
        """Number of edges from sums and products to children."""
        return self.structure.n_edges

    @property
    def depth(self) -> int:
        """Longest path from the root to a leaf."""
        return int(self.structure.levels[-1])

    @property
    def n_parameters(self) -> int:
        """Number of free parameters: weights of each sum less one, and those of the leaves."""
        arity = self.structure.arity[self.structure.is_sum]
        leaves = sum(g.family.n_parameters(g.params) for g in self.groups)
        return int((arity - 1).sum()) + leaves

    def __repr__(self) -> str:
        sums = int(self.structure.is_sum.sum())
        return (
            f"Circuit({len(self.schema)} variables, {self.n_nodes} nodes: {sums} sums, "
            f"{self.structure.n_inner - sums} products, {self.structure.n_leaves} leaves; "
            f"{self.n_edges} edges, {self.n_parameters} parameters)"
        )

    def draw(self, path: str | Path) -> None:
        """Write a picture of the circuit: its nodes, or of a large one its dependences.

        A circuit of up to 150 nodes is drawn node by node, sums as + and products as x; for more
        see `Density.draw`.
        """
        from fedcircuits.report import networks  # matplotlib takes a second to import

        if self.n_nodes > networks.MOST_NODES:
            super().draw(path)
            return
        colours = networks.COLOURS
        texts = [("", "")] * self.structure.n_leaves
        for group in self.groups:
            name, colour = self.schema.names[group.column], colours[group.column % len(colours)]
            texts[group.nodes] = [(name[:18], colour)] * group.size
        nodes = networks.network(self.structure, texts, merge=False)
        title = f"circuit of {len(self.schema)} variables: {self.n_nodes} nodes"
        networks.save(
            path, networks.network_size(nodes), title, lambda on: networks.paint_network(on, nodes)
        )

    # --- the hooks of Density: one file a query ---------------------------------------------------

    def log_prob_table(self, table: Table) -> FloatArray:
        return log_prob(self, table)

    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        return sample(self, table, rng)

    def mpe_table(self, table: Table) -> FloatArray:
        return mpe(self, table)

    def moment_table(self, table: Table, order: int) -> FloatArray:
        return moments(self, table, order)

    def moment_of(self, table: Table, column: int, order: int) -> FloatArray:
        raw = moments(self, table, order, [column])[:, 0]
        if not self.schema.variables[column].missing_state:
            return raw
        with np.errstate(invalid="ignore"):
            return np.asarray(raw / moments(self, table, 0, [column])[:, 0])

    def variance_table(self, table: Table) -> FloatArray:
        return variances(self, table)

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        return posterior(self, table, column)

    def masses_table(self, table: Table, column: int, regions: list[Region]) -> FloatArray:
        return masses(self, table, column, regions)

    def quantile_table(self, table: Table, column: int, shares: FloatArray) -> FloatArray | None:
        grid = self.schema.variables[column].grid
        groups = [group for group in self.groups if group.column == column]
        if grid is None or any(g.family.name != "histogram" or g.grid != grid for g in groups):
            return None
        cells = grid_cells(grid)  # first the atoms, then the other states
        rest = np.setdiff1d(np.arange(grid.n_states), grid.atom_states)
        masses = np.empty((len(table), grid.n_states))
        masses[:, np.append(grid.atom_states, rest)] = self.masses_table(table, column, cells)
        return quantiles_on(grid, masses, shares)

    def covariance_table(self, evidence: Table, columns: list[int]) -> FloatArray:
        return covariance(self, evidence, columns)

    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Circuit:
        return Circuit.assemble(*restrict(self, keep, evidence))

    def tilted(self, factors: Mapping[str, FloatArray]) -> tuple[Circuit, float]:
        """Return p(x) exp(sum_j g_j(x_j)) / Z and log Z; `factors` has (states,) g by column."""
        assembler, root, log_z = tilt(self, factors)
        return Circuit.assemble(assembler, root), log_z

    @staticmethod
    def assemble(assembler: Assembler, root: int, fit_report: FitReport | None = None) -> Circuit:
        """Return the circuit below `root` of the nodes an assembler has collected."""
        groups, structure = assembler.parts(root)
        return Circuit(assembler.schema, groups, structure, fit_report)

    @cached_property
    def mpe_is_exact(self) -> bool:
        """Whether the circuit is deterministic (provably, by the supports of its leaves)."""
        return is_deterministic(self)

    @property
    def answers_events(self) -> bool:
        """Always: every leaf family has the probability of a set."""
        return True

    # --- storage ----------------------------------------------------------------------------------

    def _leaf_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        return {
            f"leaf.{at}.{name}": group.params[name]
            for at, group in enumerate(self.groups)
            for name in group.family.parameters
        }

    def to_record(self) -> Record:
        header = {
            "schema": self.schema.to_json(),
            "n_leaves": self.structure.n_leaves,
            "groups": [
                {
                    "family": group.family.name,
                    "column": group.column,
                    "grid": _grid_json(group.grid, self.schema.variables[group.column].grid),
                }
                for group in self.groups
            ],
            "fit_report": None if self.fit_report is None else self.fit_report.to_json(),
        }
        return Record("circuit", header, {**self.structure.arrays(), **self._leaf_arrays()})

    @staticmethod
    def from_record(record: Record) -> Circuit:
        """Inverse of `to_record`; anything that is not as it should be is a `StorageError`."""
        try:
            return _from_record(record.header, record.arrays)
        except StorageError:
            raise
        except MALFORMED as error:
            raise StorageError(f"the circuit in the file is not valid: {error}") from None


def _grid_json(grid: Grid | None, of_variable: Grid | None) -> Any:
    """A leaf's grid; "variable" where it is the schema's, which is then not written twice."""
    if grid is None:
        return None
    return "variable" if grid == of_variable else grid.to_json()


def _from_record(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Circuit:
    schema = Schema.from_json(header["schema"])
    groups, first = [], 0
    for at, entry in enumerate(header["groups"]):
        family = family_named(entry["family"])
        column = entry["column"]
        if type(column) is not int or not 0 <= column < len(schema):
            raise StorageError(f"leaf group {at} is over column {column!r} of {len(schema)}")
        params = {name: floats(arrays, f"leaf.{at}.{name}") for name in family.parameters}
        grid = entry["grid"]
        if grid == "variable":
            grid = schema.variables[column].grid
        elif grid is not None:
            grid = grid_from_json(grid)
        group = LeafGroup(family, column, first, params, grid)
        groups.append(group)
        first += group.size
    n_leaves = header["n_leaves"]
    if not isinstance(n_leaves, int) or n_leaves != first:
        raise StorageError(f"the header says {n_leaves!r} leaves, the arrays hold {first}")
    report = header["fit_report"]
    return Circuit(
        schema,
        tuple(groups),
        Structure.from_arrays(first, arrays),
        None if report is None else FitReport.from_json(report),
    )
