"""EiNetDensity: a trained network as a `Density`, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import comb
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcircuits import encoding
from fedcircuits.arrays import FloatArray
from fedcircuits.circuits import Circuit
from fedcircuits.circuits.queries.moments import total_variance
from fedcircuits.density import Density, powers
from fedcircuits.density.conditioned import Conditioned
from fedcircuits.density.fit_report import FitReport
from fedcircuits.errors import MALFORMED, StorageError
from fedcircuits.learners.einet.density import tensor_queries
from fedcircuits.learners.einet.density.climbing import Question, most_probable
from fedcircuits.learners.einet.density.columns import Column, decode, encode, power_table
from fedcircuits.learners.einet.density.spreads import Spread, covariances, leaf_spreads, variances
from fedcircuits.learners.einet.density.unroll import MAX_UNROLLED, unrolled_circuit
from fedcircuits.learners.einet.network.answering_device import placed
from fedcircuits.learners.einet.network.layout import region_graph
from fedcircuits.learners.einet.network.network import Network, Parameters
from fedcircuits.learners.einet.network.network_record import pack_network, unpack_network
from fedcircuits.learners.einet.structures.regions import RegionGraph
from fedcircuits.learners.einet.training.rows import Batch, Rows
from fedcircuits.learners.einet.training.train import evaluate
from fedcircuits.schema import Schema, Table, Variable
from fedcircuits.schema.events import Region
from fedcircuits.schema.images import pixel_places

KIND = "einet"
MOST_ROWS = 65_536  # of a batch, in a file


def _numbers_of(variable: Variable, values: FloatArray) -> FloatArray:
    """Encoded values as the numbers whose moments are meant."""
    if not variable.is_coded or variable.numbers is None:
        return values
    return np.append(variable.numbers, 0.0)[values.astype(np.int64)]


@dataclass(frozen=True, eq=False, repr=False)
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
    def inner_columns(self) -> NDArray[np.int64]:
        """Columns of the inner variables in the schema."""
        return np.array([self.schema.position(n) for n in self._inner.names], dtype=np.int64)

    @cached_property
    def region_graph(self) -> RegionGraph:
        """The structure: which sets of variables have nodes, and how they split."""
        return region_graph(self.network.layout)

    def draw(self, path: str | Path) -> None:
        """Writes a picture of the region graph; PNG, SVG or PDF by the file's ending.

        For images a second panel shows where on the image the regions lie.
        """
        # Here, because matplotlib takes long to import.
        from fedcircuits.learners.einet.structures.drawing import Picture, draw

        network, kind = self.network, self.network.layout.kind
        title = (
            f"{kind}, {network.layer} layers of width {network.width}: "
            f"{len(self.region_graph.scopes):,} regions, "
            f"{len(self.region_graph.partitions):,} partitions, {self.n_parameters:,} parameters"
        )
        picture = Picture(self.region_graph, self._inner.names, pixel_places(self._inner))
        try:
            draw(picture, title).savefig(path)
        except (ValueError, OSError) as error:
            raise StorageError(f"the picture {path} cannot be written: {error}") from error

    def to(self, device: torch.device | str) -> EiNetDensity:
        """The same density with its parameters on another device."""
        return replace(self, params=self.params.to(device))

    def _coded_rows(self, table: Table) -> tuple[Rows, FloatArray]:
        """Numbers for leaves, known mask and labels; and what the coding adds to log-densities."""
        inner = Table(
            self._inner,
            table.values[:, self.inner_columns],
            table.observed[:, self.inner_columns],
            table.index,
        )
        x, observed, gain = encode(self._inner, self.columns, inner)
        labels = None
        if self.label is not None:
            at = self.schema.position(self.label)
            codes = np.where(table.observed[:, at], table.values[:, at], -1)
            labels = codes.astype(np.int64)
        return Rows(x, observed, labels), gain

    @cached_property
    def unrolled(self) -> Circuit:
        """The same distribution as a circuit, in double precision; events are asked there."""
        return unrolled_circuit(self.network, self.params, self.schema, self.columns, self.label)

    @property
    def answers_events(self) -> bool:
        """Where the network is small enough to be unrolled."""
        return self.network.n_weights <= MAX_UNROLLED

    # --- hooks ------------------------------------------------------------------------------------

    def log_prob_table(self, table: Table) -> FloatArray:
        """(n,) log-density of the observed cells of each row."""
        if not len(table):
            return np.zeros(0)
        if table.events is not None:
            return self.unrolled.log_prob_table(table)
        rows, gain = self._coded_rows(table)
        whole = Rows(rows.x, None, rows.labels) if table.observed.all() else rows
        return evaluate(self.network, self.params, whole, self.batch) + gain

    def _parts(self, table: Table) -> Iterator[tuple[slice, Batch, Tensor, Parameters]]:
        """Batches of a table: where they are, rows, what is known, and parameters to ask."""
        rows, _ = self._coded_rows(table)
        start, params = 0, placed(self.params)
        for part in rows.in_order(self.batch, params.device):
            assert part.observed is not None
            yield slice(start, start + len(part.x)), part, part.observed, params
            start += len(part.x)

    def _joined(self, inner: Tensor, classes: Tensor) -> FloatArray:
        """Leaf values and classes as columns of the schema, still coded."""
        answer = np.zeros((len(inner), len(self.schema)))
        answer[:, self.inner_columns] = inner.cpu().numpy()
        if self.label is not None:
            answer[:, self.schema.position(self.label)] = classes.cpu().numpy()
        return answer

    def _decoded(
        self, coded: FloatArray, table: Table, rng: np.random.Generator | None
    ) -> FloatArray:
        values = coded.copy()
        values[:, self.inner_columns] = decode(
            self._inner, self.columns, coded[:, self.inner_columns], rng
        )
        return np.where(table.observed, table.values, values)

    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        """(n, D) the rows with missing cells drawn from the exact conditional."""
        if table.events is not None:
            return self.unrolled.sample_table(table, rng)
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        coded = np.zeros((len(table), len(self.schema)))
        for here, part, known, params in self._parts(table):
            drawn = tensor_queries.sample(
                self.network, params, part.x, known, part.labels, generator
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
        """(n, D) the rows with missing cells filled by the best of several climbed decodings."""
        if table.events is not None:
            return self.unrolled.mpe_table(table)
        coded = np.zeros((len(table), len(self.schema)))
        for here, part, known, params in self._parts(table):
            asked = Question(self.network, params, part.x, known, part.labels, self._mode_bonus)
            coded[here] = self._joined(*most_probable(asked))
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
        if table.events is not None:
            return self.unrolled.moment_table(table, order)
        answer = np.zeros((len(table), len(self.schema)))
        shift = np.array([c.shift for c in self.columns])
        scale = np.array([c.scale for c in self.columns])
        scaled = np.array([c.kind == "scaled" for c in self.columns])
        for power in range(order + 1) if scaled.any() else (order,):
            tables = self._tables(power)
            factor = comb(order, power) * shift ** (order - power) * scale**power
            factor = np.where(scaled, factor, float(power == order))
            for here, part, known, params in self._parts(table):
                inner, classes = tensor_queries.expectations(
                    self.network, params, part.x, known, part.labels, tables, power
                )
                answer[here, self.inner_columns] += inner.cpu().numpy() * factor
                if self.label is not None and power == order:
                    at = self.schema.position(self.label)
                    codes = np.arange(self.network.n_classes, dtype=float)
                    numbers = _numbers_of(self.schema.variables[at], codes)
                    answer[here, at] = classes.double().cpu().numpy() @ numbers**order
        for at, variable in enumerate(self.schema):
            seen = table.observed[:, at] & np.isfinite(table.values[:, at])
            answer[seen, at] = _numbers_of(variable, table.values[seen, at]) ** order
        return answer

    @cached_property
    def _spreads(self) -> list[Spread]:
        """Means and variances of the leaves."""
        return leaf_spreads(self.network, self.params, self._inner.variables, self.columns)

    def _class_values(self) -> tuple[FloatArray, FloatArray]:
        """The label's outcomes as numbers, and 1 where an outcome is a value, (classes,)."""
        assert self.label is not None
        codes = np.arange(self.network.n_classes, dtype=float)
        variable = self.schema[self.label]
        real = (codes < len(variable.categories)).astype(float)
        return _numbers_of(variable, codes), real

    def variance_table(self, table: Table) -> FloatArray:
        """(n, D) Var[x_j | observed cells of the row]; 0 of a known cell, NaN of a missing one."""
        if table.events is not None:
            return self.unrolled.variance_table(table)
        answer = np.zeros((len(table), len(self.schema)))
        for here, part, known, params in self._parts(table):
            spreads = [spread.to(params.device) for spread in self._spreads]
            inner, classes = variances(self.network, params, spreads, part.x, known, part.labels)
            answer[here, self.inner_columns] = inner.cpu().numpy()
            if self.label is not None:
                numbers, real = self._class_values()
                share = classes.double().cpu().numpy() * real  # (rows, classes)
                spread = total_variance(share.T, numbers[:, None], np.zeros((len(numbers), 1)))
                answer[here, self.schema.position(self.label)] = spread
        for at, variable in enumerate(self.schema):
            seen = table.observed[:, at]
            has_value = powers(variable, table.values[seen, at], 0) > 0
            answer[seen, at] = np.where(has_value, 0.0, np.nan)
        return answer

    def covariance_table(self, evidence: Table, columns: list[int]) -> FloatArray:
        """(d, d) covariance of some columns given one row of evidence."""
        if evidence.events is not None:
            return self.unrolled.covariance_table(evidence, columns)
        (_, part, known, params), *_ = self._parts(evidence)
        spreads = [spread.to(params.device) for spread in self._spreads]
        place = {int(column): at for at, column in enumerate(self.inner_columns)}
        inner = [at for at, column in enumerate(columns) if column in place]
        chosen = np.array([place[columns[at]] for at in inner], dtype=np.int64)
        matrix, classes, means = (
            tensor.cpu().numpy()
            for tensor in covariances(
                self.network, params, spreads, part.x, known, part.labels, chosen, self.batch,
            )
        )  # fmt: skip
        answer = np.zeros((len(columns), len(columns)))
        answer[np.ix_(inner, inner)] = matrix
        if len(inner) < len(columns):  # the label is asked about as well
            (at,) = set(range(len(columns))) - set(inner)
            numbers, real = self._class_values()
            share = classes * real
            away = numbers - share @ numbers / max(share.sum(), 1e-300)  # (classes,)
            answer[at, inner] = answer[inner, at] = (share * away) @ means
            answer[at, at] = share @ away**2
        return answer

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        """(n, k) probabilities of the outcomes of one variable; of the label in one pass."""
        if table.events is not None:
            return self.unrolled.posterior_table(table, column)
        if self.label is None or column != self.schema.position(self.label):
            return super().posterior_table(table, column)
        answer = np.zeros((len(table), self.network.n_classes))
        for here, part, known, params in self._parts(table):
            joint = tensor_queries.class_log_joint(self.network, params, part.x, known)
            answer[here] = torch.softmax(joint.double(), dim=1).cpu().numpy()
        return answer

    def masses_table(self, table: Table, column: int, regions: list[Region]) -> FloatArray:
        """(n, k) probability of sets of values of one variable, by the unrolled circuit."""
        return self.unrolled.masses_table(table, column, regions)

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
        header, arrays = pack_network(self.network, self.params)
        header |= {
            "schema": self.schema.to_json(),
            "label": self.label,
            "batch": self.batch,  # answers of other batches differ in their last digits
            "columns": [[c.kind, c.n_values, c.shift, c.scale] for c in self.columns],
            "fit_report": None if self.fit_report is None else self.fit_report.to_json(),
        }
        return encoding.Record(KIND, header, arrays)

    @staticmethod
    def from_record(record: encoding.Record) -> EiNetDensity:
        """The inverse of `to_record`, checked before anything is built."""
        header = record.header
        try:
            columns = tuple(
                Column(kind, int(n), float(shift), float(scale))
                for kind, n, shift, scale in header["columns"]
            )
            network, params = unpack_network(header, record.arrays, len(columns))
            report, batch = header["fit_report"], int(header.get("batch", 256))
            if not 1 <= batch <= MOST_ROWS:
                raise ValueError(f"a batch of {batch} rows")
            return EiNetDensity(
                Schema.from_json(header["schema"]), network, params, columns, header["label"],
                None if report is None else FitReport.from_json(report), batch,
            )  # fmt: skip
        except (*MALFORMED, AssertionError) as error:
            raise StorageError(f"the EiNet in the file is damaged: {error!r}") from error


def unroll(density: EiNetDensity) -> Circuit:
    """Return the distribution of a small EiNet as a circuit, in double precision."""
    return density.unrolled
