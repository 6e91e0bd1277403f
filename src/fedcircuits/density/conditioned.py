"""A conditional of any density, without looking inside it: p(x | e) = p(x, e) / p(e)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from fedcircuits.arrays import Array, FloatArray, IntArray
from fedcircuits.density.density import Density
from fedcircuits.density.hooks import outcome_codes
from fedcircuits.encoding import Record
from fedcircuits.errors import MALFORMED, StorageError
from fedcircuits.schema import Schema, Table
from fedcircuits.schema.events import Region
from fedcircuits.schema.events.region import region_from_json
from fedcircuits.schema.shown import some
from fedcircuits.schema.table import Events


@dataclass(frozen=True, eq=False, repr=False)
class Conditioned(Density):
    """Some variables of a density given values or events; the rest is summed out.

    Attributes:
        base: the joint.
        keep: names of the variables that remain; an event about one of them limits its values.
        evidence: one row of the base's schema.
    """

    base: Density
    keep: tuple[str, ...]
    evidence: Table

    def __repr__(self) -> str:
        schema = self.base.schema
        row = schema.decode(self.evidence.values, self.evidence.index).iloc[0]
        seen = zip(schema.names, self.evidence.observed[0], strict=True)
        given = [f"{name} = {row[name]}" for name, known in seen if known]
        limited = [
            f"{name} within an event"
            for column, name in enumerate(schema.names)
            if self.evidence.regions_at(column)
        ]
        return f"Conditioned({some(self.keep)}; given {some([*given, *limited])})"

    @cached_property
    def schema(self) -> Schema:  # type: ignore[override]
        return self.base.schema.select(self.keep)

    @cached_property
    def _columns(self) -> IntArray:
        return np.array([self.base.schema.position(name) for name in self.keep], dtype=np.int64)

    @cached_property
    def _log_evidence(self) -> float:
        return float(self.base.log_prob_table(self.evidence)[0])

    def _full(self, table: Table) -> Table:
        """Rows of the base: the evidence, and the table's cells where they are kept.

        A value outside an event of the evidence leaves a row of probability zero.
        """
        full = replace(self.evidence.rows(np.zeros(len(table), dtype=np.int64)), index=table.index)
        values, observed = full.values.copy(), full.observed.copy()
        values[:, self._columns] = table.values
        observed[:, self._columns] = table.observed
        full = replace(full, values=values, observed=observed)
        if table.events is not None:
            which = np.full(values.shape, -1, dtype=np.int64)
            which[:, self._columns] = table.events.which
            full = replace(full, events=Events(table.events.regions, which))
        elif self.evidence.events is None:
            return full
        else:
            full = replace(full, events=None)
        for column in range(len(self.base.schema)):
            for region, _ in self.evidence.regions_at(column):
                full = full.meeting(column, [region])
        return full

    def _own_region(self, column: int) -> list[Region]:
        """The event of the evidence about a column that is kept, if there is one."""
        return [region for region, _ in self.evidence.regions_at(int(self._columns[column]))]

    def log_prob_table(self, table: Table) -> FloatArray:
        return self.base.log_prob_table(self._full(table)) - self._log_evidence

    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        return self.base.sample_table(self._full(table), rng)[:, self._columns]

    def mpe_table(self, table: Table) -> FloatArray:
        # The base also fills what was summed out: a decoding of the larger question.
        return self.base.mpe_table(self._full(table))[:, self._columns]

    def moment_table(self, table: Table, order: int) -> FloatArray:
        return self.base.moment_table(self._full(table), order)[:, self._columns]

    def variance_table(self, table: Table) -> FloatArray:
        return self.base.variance_table(self._full(table))[:, self._columns]

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        return self.posterior_with_error(table, column)[0]

    def posterior_with_error(self, table: Table, column: int) -> tuple[FloatArray, FloatArray]:
        full = self._full(table.hide(column))
        posterior, error = self.base.posterior_with_error(full, int(self._columns[column]))
        for region in self._own_region(column):
            inside = region.contains(outcome_codes(self.schema.variables[column]))
            posterior, error = np.where(inside, posterior, 0.0), np.where(inside, error, 0.0)
            with np.errstate(invalid="ignore"):
                total = posterior.sum(axis=1, keepdims=True)
                posterior, error = posterior / total, error / total
        return posterior, error

    def masses_table(self, table: Table, column: int, regions: list[Region]) -> FloatArray:
        full, at = self._full(table.hide(column)), int(self._columns[column])
        for own in self._own_region(column):
            met = [own.meet(region) for region in regions]
            masses = self.base.masses_table(full, at, [own, *met])
            with np.errstate(invalid="ignore"):
                return np.asarray(masses[:, 1:] / masses[:, :1])
        return self.base.masses_table(full, at, regions)

    def covariance_table(self, evidence: Table, columns: list[int]) -> FloatArray:
        inside = [int(self._columns[c]) for c in columns]
        return self.base.covariance_table(self._full(evidence), inside)

    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Density:
        return Conditioned(self.base, keep, self._full(evidence))

    @property
    def n_parameters(self) -> int:
        """Number of parameters of the density that was conditioned."""
        return self.base.n_parameters

    @property
    def is_exact(self) -> bool:
        """Whether answers are exact: as the density that was conditioned."""
        return self.base.is_exact

    @property
    def mpe_is_exact(self) -> bool:
        """Only where nothing was summed out of an exact base."""
        known = len(self.keep) + int(self.evidence.observed.sum())
        return self.base.mpe_is_exact and known == len(self.base.schema)

    @property
    def answers_events(self) -> bool:
        return self.base.answers_events

    def to_record(self) -> Record:
        arrays: dict[str, Array] = {
            "values": self.evidence.values,
            "observed": self.evidence.observed,
        }
        header = self.base.to_record().put_into(arrays, "base.") | {"keep": list(self.keep)}
        if self.evidence.events is not None:
            header["events"] = {
                self.base.schema.names[column]: region.to_json()
                for column in range(len(self.base.schema))
                for region, _ in self.evidence.regions_at(column)
            }
        return Record("conditioned", header, arrays)

    @staticmethod
    def from_record(record: Record, decode: Callable[[Record], Density]) -> Conditioned:
        """Inverse of `to_record`; `decode` rebuilds the base."""
        try:
            header = record.header
            base = decode(record.inner("base.", header))
            values, observed = record.arrays["values"], record.arrays["observed"]
            keep = tuple(header["keep"])
            shape = (1, len(base.schema))
            if values.shape != shape or observed.shape != shape or observed.dtype != np.bool_:
                raise StorageError("the evidence of the conditional in the file does not fit it")
            base.schema.select(keep)
            evidence = Table(base.schema, values.astype(float), observed, pd.RangeIndex(1))
            for name, region in header.get("events", {}).items():
                column = base.schema.position(name)
                evidence = evidence.meeting(column, [region_from_json(region)])
        except MALFORMED as error:
            raise StorageError(f"the conditional in the file is not valid: {error}") from None
        return Conditioned(base, keep, evidence)
