"""A circuit whose leaves are whole densities: sums and products over models of any kind.

This is what federation puts on the network side (section 3.2): client models below, sums and
products above. A part may be a circuit in this process, an EiNet, or a reference to a model that
stays at its client; the passes are the same, with a part's answers in place of a leaf's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.assemble import Assembler
from fedcircuits.circuits.circuit import Circuit
from fedcircuits.circuits.graph import Graph
from fedcircuits.circuits.passes import down, max_product, sum_product, up
from fedcircuits.circuits.plan import Plan
from fedcircuits.circuits.queries.covariance import carry_up
from fedcircuits.circuits.queries.moments import total_variance
from fedcircuits.circuits.queries.mpe import better_of
from fedcircuits.circuits.queries.restrict import embed, fold_evidence
from fedcircuits.circuits.queries.walk import at_random, choice_slots, likeliest, walk
from fedcircuits.circuits.structure import Structure, scope_bits
from fedcircuits.density import Density
from fedcircuits.density.fit_report import FitReport
from fedcircuits.encoding import Record
from fedcircuits.errors import StorageError, StructureError
from fedcircuits.schema import Schema, Table

ROWS_PER_CHUNK = 4096


@dataclass(frozen=True, eq=False, repr=False)
class Composite(Density):
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
    def plan(self) -> Plan:
        """The order of evaluation."""
        return Plan.of(self.structure)

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

    # --- hooks ------------------------------------------------------------------------------------

    def part_table(self, at: int, table: Table) -> Table:
        """The columns of one part."""
        columns = self.columns[at]
        return replace(
            table,
            schema=self.parts[at].schema,
            values=table.values[:, columns],
            observed=table.observed[:, columns],
        )

    def _values(self, rows: Table) -> FloatArray:
        """(n_nodes, n) log-density of the evidence below every node."""
        values = np.zeros((self.structure.n_nodes, len(rows)))
        for at, part in enumerate(self.parts):
            mine = self.part_table(at, rows)
            if mine.observed.any():
                values[at] = part.log_prob_table(mine)
        up(self.plan, values, sum_product)
        return values

    def log_prob_table(self, table: Table) -> FloatArray:
        answer = np.empty(len(table))
        for where, rows in table.chunks(ROWS_PER_CHUNK):
            answer[where] = self._values(rows)[-1]
        return answer

    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        # Trees chunk by chunk, each part's values for all rows at once: see `queries.sampling`.
        lowest = np.array([columns.min() for columns in self.columns])
        slots = choice_slots(self.structure, lowest)
        visits: list[list[IntArray]] = [[] for _ in self.parts]
        for where, rows in table.chunks(ROWS_PER_CHUNK):
            choose = at_random(slots, len(rows), rng)
            leaves, leaf_rows = walk(self.plan, self._values(rows), choose)
            for at in np.unique(leaves):
                visits[at].append(where.start + np.sort(leaf_rows[leaves == at]))
        answer = table.values.copy()
        for at, part in enumerate(self.parts):
            if visits[at]:
                mine = np.concatenate(visits[at])
                drawn = part.sample_table(self.part_table(at, table.rows(mine)), rng)
                answer[np.ix_(mine, self.columns[at])] = drawn
        return answer

    def mpe_table(self, table: Table) -> FloatArray:
        """The better, row by row, of the two decodings of `queries.mpe` above the parts' own."""
        answer = table.values.copy()
        for where, rows in table.chunks(ROWS_PER_CHUNK):
            values = np.zeros((self.structure.n_nodes, len(rows)))
            completed = []
            for at, part in enumerate(self.parts):
                mine = self.part_table(at, rows)
                filled = part.mpe_table(mine)
                completed.append(filled)
                known = np.ones(filled.shape, dtype=bool)
                values[at] = part.log_prob_table(replace(mine, values=filled, observed=known))
            up(self.plan, values, max_product)
            best = self._joined(rows, values, completed)
            if not self.mpe_is_exact:
                other = self._joined(rows, self._values(rows), completed)
                best = better_of(self, rows, best, other)
            answer[where] = best
        return answer

    def _joined(self, rows: Table, values: FloatArray, completed: list[FloatArray]) -> FloatArray:
        """(n, D) the parts' completions along the likeliest tree by values (n_nodes, n)."""
        leaves, leaf_rows = walk(self.plan, values, likeliest)
        answer = rows.values.copy()
        for at, filled in enumerate(completed):
            mine = leaf_rows[leaves == at]
            answer[np.ix_(mine, self.columns[at])] = filled[mine]
        return answer

    def _flows(self, rows: Table, column: int | None = None) -> FloatArray:
        """(n_parts, n) posterior probability of each part."""
        values = self._values(rows)
        flows = np.zeros_like(values)
        flows[-1] = values[-1] > -np.inf
        wanted = None
        if column is not None:
            bits = self.structure.scopes(self._leaf_scopes)
            wanted = (bits[:, column // 64] >> np.uint64(column % 64)) & np.uint64(1) != 0
        down(self.plan, values, flows, wanted)
        return flows[: len(self.parts)]

    def moment_table(self, table: Table, order: int) -> FloatArray:
        answer = np.zeros((len(table), len(self.schema)))
        for where, rows in table.chunks(ROWS_PER_CHUNK):
            flows = self._flows(rows)
            total = np.zeros((len(rows), len(self.schema)))
            for at, part in enumerate(self.parts):
                live = np.flatnonzero(flows[at] > 0)
                if live.size:
                    found = part.moment_table(self.part_table(at, rows.rows(live)), order)
                    with np.errstate(invalid="ignore"):  # infinite to both sides: no such moment
                        total[np.ix_(live, self.columns[at])] += flows[at, live, None] * found
            answer[where] = total
        return answer

    def variance_table(self, table: Table) -> FloatArray:
        """By the law of total variance over the parts."""
        answer = np.zeros((len(table), len(self.schema)))
        in_a_row = len(self.parts) * len(self.schema)
        for where, rows in table.chunks(max(1, min(ROWS_PER_CHUNK, 2**20 // in_a_row))):
            shape = (len(self.parts), len(rows), len(self.schema))
            weights, means, variances = np.zeros(shape), np.zeros(shape), np.zeros(shape)
            flows = self._flows(rows)
            for at, part in enumerate(self.parts):
                live = np.flatnonzero(flows[at] > 0)
                if live.size:
                    mine = self.part_table(at, rows.rows(live))
                    place = np.ix_(np.array([at]), live, self.columns[at])
                    weights[place] = flows[at, live, None] * part.moment_table(mine, 0)
                    means[place] = part.mean_table(mine)
                    variances[place] = np.nan_to_num(part.variance_table(mine), posinf=np.inf)
            for column in range(len(self.schema)):
                spread = (each[:, :, column] for each in (weights, means, variances))
                answer[where, column] = total_variance(*spread)
        return answer

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        variable = self.schema.variables[column]
        if not variable.is_coded or variable.missing_state:
            # Parts leave different mass outside the outcomes, so each joint is needed.
            return super().posterior_table(table, column)
        observed = table.observed.copy()
        observed[:, column] = False
        table = replace(table, observed=observed)
        answer = np.zeros((len(table), len(variable.categories)))
        for where, rows in table.chunks(ROWS_PER_CHUNK):
            flows = self._flows(rows, column)
            total = np.zeros((len(rows), answer.shape[1]))
            for at, part in enumerate(self.parts):
                own = np.flatnonzero(self.columns[at] == column)
                live = np.flatnonzero(flows[at] > 0)
                if own.size and live.size:
                    mine = self.part_table(at, rows.rows(live))
                    total[live] += flows[at, live, None] * part.posterior_table(mine, int(own[0]))
            answer[where] = total
        with np.errstate(invalid="ignore"):
            return np.asarray(answer / answer.sum(axis=1, keepdims=True))

    def covariance_table(self, evidence: Table, columns: list[int]) -> FloatArray:
        """Means and cross-moments of the parts, carried up about the overall means.

        (Where "missing" is a state, its value counts as the mean of its part.)
        """
        d, structure = len(columns), self.structure
        log_prob = self._values(evidence)[:, 0]
        centre = self.mean_table(evidence)[0]
        mean = np.zeros((structure.n_nodes, d))
        cross = np.zeros((structure.n_nodes, d, d))
        for at, part in enumerate(self.parts):
            mine = self.part_table(at, evidence)
            place = {int(column): i for i, column in enumerate(self.columns[at])}
            held = [(i, place[column]) for i, column in enumerate(columns) if column in place]
            if not held or np.isneginf(log_prob[at]):
                continue
            own = [i for i, _ in held]
            first = part.mean_table(mine)[0, [j for _, j in held]]
            mean[at, own] = first - centre[[columns[i] for i in own]]
            inner = part.covariance_table(mine, [j for _, j in held])
            cross[np.ix_([at], own, own)] = inner + np.outer(mean[at, own], mean[at, own])
        return carry_up(self.plan, log_prob, mean, cross)

    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Density:
        log_prob = self._values(evidence)[:, 0]
        graph, parts, new = Graph(), [], np.full(len(self.parts), -1, dtype=np.int64)
        for at, part in enumerate(self.parts):
            kept = tuple(name for name in part.schema.names if name in keep)
            if not kept or np.isneginf(log_prob[at]):
                continue
            mine = self.part_table(at, evidence)
            whole = len(kept) == len(part.schema) and not mine.observed.any()
            parts.append(part if whole else part.restrict(kept, mine))
            new[at] = graph.number(1)[0]
        root = fold_evidence(self.structure, log_prob, new, graph)
        return compose(self.schema.select(keep), parts, graph, root)

    # --- as one circuit ---------------------------------------------------------------------------

    def merged(self) -> Circuit:
        """The same distribution as one ordinary circuit, if every part is one."""
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
        parts = []
        for at, part in enumerate(self.parts):
            record = part.to_record()
            parts.append({"kind": record.kind, "header": record.header})
            arrays |= {f"part.{at}.{name}": array for name, array in record.arrays.items()}
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
            parts = []
            for at, entry in enumerate(record.header["parts"]):
                prefix = f"part.{at}."
                arrays = {
                    name[len(prefix) :]: array
                    for name, array in record.arrays.items()
                    if name.startswith(prefix)
                }
                parts.append(decode(Record(entry["kind"], entry["header"], arrays)))
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
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise StorageError(f"the model in the file is not valid: {error}") from None


def compose(schema: Schema, parts: list[Density], graph: Graph, root: int) -> Density:
    """The density below `root` of a graph whose first numbers are the parts, in order."""
    alive = graph.reached(root)
    kept = np.flatnonzero(alive[: len(parts)])
    new = np.full(alive.size, -1, dtype=np.int64)
    new[kept] = np.arange(kept.size)
    chosen = tuple(parts[i] for i in kept)
    if len(chosen) == 1 and root == kept[0]:
        return chosen[0]
    return Composite(schema, chosen, graph.structure(alive, new, kept.size))


def _same_encoding(a: Any, b: Any) -> bool:
    """Whether two variables encode values alike (a grid may be known to only one of them)."""
    return bool(
        a.kind == b.kind and a.categories == b.categories and a.missing_state == b.missing_state
    )
