"""EiNetDensity: a trained network as a `Density`, on any device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import comb
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcircuits import encoding
from fedcircuits.conditioned import Conditioned
from fedcircuits.density import Density
from fedcircuits.errors import StorageError
from fedcircuits.fit_report import FitReport
from fedcircuits.schema import Schema, Table, Variable
from fedcircuits.schema.grid import FloatArray

from . import queries
from .columns import Column, decode, encode, power_table
from .layout import Group, Layout
from .leaves import FAMILIES
from .network import Network, Parameters, make_network
from .rows import Rows
from .train import evaluate

KIND = "einet"
_LAYOUT = ("children", "owner", "root_children", "slot_variable", "slot_region")


def _numbers_of(variable: Variable, values: FloatArray) -> FloatArray:
    """Encoded values as the numbers whose moments are meant."""
    if not variable.is_coded or variable.numbers is None:
        return values
    return np.append(variable.numbers, 0.0)[values.astype(np.int64)]


@dataclass(frozen=True, eq=False)
class EiNetDensity(Density):
    """A joint distribution held as a tensorised circuit.

    Attributes:
        schema: All variables, in the order of the training table.
        network: The network over all variables but the label.
        params: Its parameters; their device is where queries run.
        columns: Coding of every variable but the label.
        label: The variable whose outcomes are the roots, if there is one.
        fit_report: Account of the fit.
        batch: Rows evaluated at once.
    """

    schema: Schema
    network: Network
    params: Parameters
    columns: tuple[Column, ...]
    label: str | None = None
    fit_report: FitReport | None = None
    batch: int = 256

    @cached_property
    def _inner(self) -> Schema:
        """The schema without the label."""
        return self.schema.select([n for n in self.schema.names if n != self.label])

    @cached_property
    def _at(self) -> NDArray[np.int64]:
        """Columns of the inner variables in the schema."""
        return np.array([self.schema.position(n) for n in self._inner.names], dtype=np.int64)

    def to(self, device: torch.device | str) -> EiNetDensity:
        """The same density with its parameters on another device."""
        return replace(self, params=self.params.to(device))

    def _coded_rows(self, table: Table) -> tuple[Rows, FloatArray]:
        """Numbers for leaves, known mask and labels; and what the coding adds to log-densities."""
        inner = Table(
            self._inner, table.values[:, self._at], table.observed[:, self._at], table.index
        )
        x, observed, gain = encode(self._inner, self.columns, inner)
        labels = None
        if self.label is not None:
            at = self.schema.position(self.label)
            codes = np.where(table.observed[:, at], table.values[:, at], -1)
            labels = codes.astype(np.int64)
        return Rows(x, observed, labels), gain

    # --- hooks ------------------------------------------------------------------------------------

    def log_prob_table(self, table: Table) -> FloatArray:
        """(n,) log-density of the observed cells of each row."""
        if not len(table):
            return np.zeros(0)
        rows, gain = self._coded_rows(table)
        whole = Rows(rows.x, None, rows.labels) if table.observed.all() else rows
        return evaluate(self.network, self.params, whole, self.batch) + gain

    def _parts(self, table: Table) -> Any:
        rows, _ = self._coded_rows(table)
        start = 0
        for part in rows.in_order(self.batch, self.params.device):
            assert part.observed is not None
            yield slice(start, start + len(part.x)), part
            start += len(part.x)

    def _joined(self, inner: Tensor, classes: Tensor) -> FloatArray:
        """Leaf values and classes as columns of the schema, still coded."""
        answer = np.zeros((len(inner), len(self.schema)))
        answer[:, self._at] = inner.cpu().numpy()
        if self.label is not None:
            answer[:, self.schema.position(self.label)] = classes.cpu().numpy()
        return answer

    def _decoded(
        self, coded: FloatArray, table: Table, rng: np.random.Generator | None
    ) -> FloatArray:
        values = coded.copy()
        values[:, self._at] = decode(self._inner, self.columns, coded[:, self._at], rng)
        return np.where(table.observed, table.values, values)

    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        """(n, D) the rows with missing cells drawn from the exact conditional."""
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        coded = np.zeros((len(table), len(self.schema)))
        for here, part in self._parts(table):
            drawn = queries.sample(
                self.network, self.params, part.x, part.observed, part.labels, generator
            )
            coded[here] = self._joined(*drawn)
        return self._decoded(coded, table, rng)

    @cached_property
    def _mode_bonus(self) -> list[Tensor | None]:
        """Log-density of a bin's mode within its bin, for blocks of grid columns."""
        found: list[Tensor | None] = []
        for block in self.network.blocks:
            if all(self.columns[v].kind != "grid" for v in block.variables):
                found.append(None)
                continue
            size = block.family.n_values
            assert size is not None
            rows = np.zeros((len(block.variables), size))
            for number, variable in enumerate(block.variables):
                grid = self._inner.variables[variable].grid
                if self.columns[variable].kind == "grid" and grid is not None:
                    rows[number] = grid.modes()[1]
            found.append(torch.as_tensor(rows, device=self.params.device))
        return found

    def mpe_table(self, table: Table) -> FloatArray:
        """(n, D) the rows with missing cells filled by max-product decoding."""
        coded = np.zeros((len(table), len(self.schema)))
        for here, part in self._parts(table):
            best = queries.decode(
                self.network, self.params, part.x, part.observed, part.labels, self._mode_bonus
            )
            coded[here] = self._joined(*best)
        return self._decoded(coded, table, None)

    def _tables(self, order: int) -> list[Tensor]:
        """E[value ** order] of every code, for each leaf block, (slots, values)."""
        found = []
        for block in self.network.blocks:
            size = block.family.n_values
            rows = np.zeros((len(block.variables), size or 0))
            for number, variable in enumerate(block.variables):
                if size is not None:
                    given = self._inner.variables[variable]
                    powers = power_table(given, self.columns[variable], order)
                    rows[number, : len(powers)] = powers
            found.append(torch.as_tensor(rows, device=self.params.device))
        return found

    def moment_table(self, table: Table, order: int) -> FloatArray:
        """(n, D) E[x_j**order | observed cells of the row]; known cells are themselves."""
        answer = np.zeros((len(table), len(self.schema)))
        shift = np.array([c.shift for c in self.columns])
        scale = np.array([c.scale for c in self.columns])
        scaled = np.array([c.kind == "scaled" for c in self.columns])
        for power in range(order + 1) if scaled.any() else (order,):
            tables = self._tables(power)
            factor = comb(order, power) * shift ** (order - power) * scale**power
            factor = np.where(scaled, factor, float(power == order))
            for here, part in self._parts(table):
                inner, classes = queries.expectations(
                    self.network, self.params, part.x, part.observed, part.labels, tables, power
                )
                answer[here, self._at] += inner.cpu().numpy() * factor
                if self.label is not None and power == order:
                    at = self.schema.position(self.label)
                    codes = np.arange(self.network.n_classes, dtype=float)
                    numbers = _numbers_of(self.schema.variables[at], codes)
                    answer[here, at] = classes.double().cpu().numpy() @ numbers**order
        for at, variable in enumerate(self.schema):
            seen = table.observed[:, at] & np.isfinite(table.values[:, at])
            answer[seen, at] = _numbers_of(variable, table.values[seen, at]) ** order
        return answer

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        """(n, k) probabilities of the outcomes of one variable; of the label in one pass."""
        if self.label is None or column != self.schema.position(self.label):
            return super().posterior_table(table, column)
        answer = np.zeros((len(table), self.network.n_classes))
        for here, part in self._parts(table):
            joint = queries.class_log_joint(self.network, self.params, part.x, part.observed)
            answer[here] = torch.softmax(joint.double(), dim=1).cpu().numpy()
        return answer

    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Density:
        """The density of `keep` given one row of evidence, the rest summed out."""
        return Conditioned(self, keep, evidence)

    @property
    def n_parameters(self) -> int:
        """Weights and leaf parameters, as stored."""
        leaves = sum(
            block.family.n_parameters(own)
            for block, own in zip(self.network.blocks, self.params.leaves, strict=True)
        )
        classes = self.network.n_classes if self.label is not None else 0
        return self.network.n_weights + leaves + classes

    @property
    def mpe_is_exact(self) -> bool:
        """Never: an EiNet's sums overlap."""
        return False

    # --- storage ----------------------------------------------------------------------------------

    def to_record(self) -> encoding.Record:
        """Header and arrays for `save`."""
        layout = self.network.layout
        families = [
            {"name": block.family.name, "settings": block.family.settings()}
            for block in self.network.blocks
        ]
        of_variable = [0] * layout.n_variables
        for number, block in enumerate(self.network.blocks):
            for variable in block.variables:
                of_variable[int(variable)] = number
        header = {
            "schema": self.schema.to_json(),
            "label": self.label,
            "columns": [[c.kind, c.n_values, c.shift, c.scale] for c in self.columns],
            "layer": self.network.layer,
            "width": self.network.width,
            "n_classes": self.network.n_classes,
            "families": families,
            "family_of": of_variable,
            "layout": {
                "n_leaves": layout.n_leaves,
                "n_regions": layout.n_regions,
                "kind": layout.kind,
                "groups": [
                    [*g.regions, *g.partitions, g.n_splits, g.arity, g.level] for g in layout.groups
                ],
            },
            "fit_report": None if self.fit_report is None else self.fit_report.to_json(),
        }
        arrays = {f"layout.{name}": getattr(layout, name) for name in _LAYOUT}
        arrays |= {
            f"params.{name}": tensor.detach().cpu().numpy()
            for name, tensor in self.params.tensors().items()
        }
        return encoding.Record(KIND, header, arrays)

    @staticmethod
    def from_record(record: encoding.Record) -> EiNetDensity:
        """The inverse of `to_record`, checked before anything is built."""
        try:
            return _rebuild(record.header, record.arrays)
        except (KeyError, TypeError, ValueError, IndexError, AssertionError) as error:
            raise StorageError(f"the EiNet in the file is damaged: {error!r}") from error


def _rebuild(header: dict[str, Any], arrays: dict[str, Any]) -> EiNetDensity:
    schema = Schema.from_json(header["schema"])
    columns = tuple(
        Column(kind, int(n), float(shift), float(scale))
        for kind, n, shift, scale in header["columns"]
    )
    plan = header["layout"]
    layout = Layout(
        n_variables=len(columns),
        n_leaves=int(plan["n_leaves"]),
        n_regions=int(plan["n_regions"]),
        groups=tuple(
            Group((a, b), (c, d), n_splits, arity, level)
            for a, b, c, d, n_splits, arity, level in plan["groups"]
        ),
        kind=str(plan["kind"]),
        **{name: np.asarray(arrays[f"layout.{name}"], dtype=np.int64) for name in _LAYOUT},
    )
    made = [FAMILIES[f["name"]](**f["settings"]) for f in header["families"]]
    families = [made[int(number)] for number in header["family_of"]]
    network = make_network(
        layout, families, int(header["width"]), header["layer"], int(header["n_classes"])
    )
    params = Parameters.from_tensors(
        {
            name[7:]: torch.from_numpy(np.array(array))
            for name, array in arrays.items()
            if name.startswith("params.")
        }
    )
    edges = (network.width,) * (1 if network.layer == "cp" else 2)
    if tuple(params.weights.shape) != (layout.n_partitions, network.width, *edges):
        raise ValueError(f"weights have shape {tuple(params.weights.shape)}")
    if int(layout.children.max(initial=0)) > layout.n_regions or (layout.children < 0).any():
        raise ValueError("a child region does not exist")
    report = header["fit_report"]
    return EiNetDensity(
        schema, network, params, columns, header["label"],
        None if report is None else FitReport.from_json(report),
    )  # fmt: skip
