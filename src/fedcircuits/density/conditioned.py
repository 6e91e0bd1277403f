"""A conditional of any density, without looking inside it: p(x | e) = p(x, e) / p(e)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.density.density import Density
from fedcircuits.encoding import Record
from fedcircuits.errors import StorageError
from fedcircuits.schema import Schema, Table


@dataclass(frozen=True, eq=False)
class Conditioned(Density):
    """Some variables of a density given fixed values of others; the rest is summed out.

    Attributes:
        base: the joint.
        keep: names of the variables that remain.
        evidence: one row of the base's schema.
    """

    base: Density
    keep: tuple[str, ...]
    evidence: Table

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
        """Rows of the base: the evidence, and the table's cells where they are kept."""
        values = np.repeat(self.evidence.values, len(table), axis=0)
        observed = np.repeat(self.evidence.observed, len(table), axis=0)
        values[:, self._columns] = table.values
        observed[:, self._columns] = table.observed
        return Table(self.base.schema, values, observed, table.index)

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
        return self.base.posterior_table(self._full(table), int(self._columns[column]))

    def covariance_table(self, evidence: Table, columns: list[int]) -> FloatArray:
        inside = [int(self._columns[c]) for c in columns]
        return self.base.covariance_table(self._full(evidence), inside)

    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Density:
        return Conditioned(self.base, keep, self._full(evidence))

    @property
    def n_parameters(self) -> int:
        """Those of the base."""
        return self.base.n_parameters

    @property
    def mpe_is_exact(self) -> bool:
        """Only where nothing was summed out of an exact base."""
        known = len(self.keep) + int(self.evidence.observed.sum())
        return self.base.mpe_is_exact and known == len(self.base.schema)

    def to_record(self) -> Record:
        base = self.base.to_record()
        header = {"kind": base.kind, "header": base.header, "keep": list(self.keep)}
        arrays = {f"base.{name}": array for name, array in base.arrays.items()}
        arrays |= {"values": self.evidence.values, "observed": self.evidence.observed}
        return Record("conditioned", header, arrays)

    @staticmethod
    def from_record(record: Record, decode: Callable[[Record], Density]) -> Conditioned:
        """Inverse of `to_record`; `decode` rebuilds the base."""
        try:
            arrays = {
                name.removeprefix("base."): array
                for name, array in record.arrays.items()
                if name.startswith("base.")
            }
            header = record.header
            base = decode(Record(header["kind"], header["header"], arrays))
            values, observed = record.arrays["values"], record.arrays["observed"]
            keep = tuple(header["keep"])
            shape = (1, len(base.schema))
            if values.shape != shape or observed.shape != shape or observed.dtype != np.bool_:
                raise StorageError("the evidence of the conditional in the file does not fit it")
            base.schema.select(keep)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise StorageError(f"the conditional in the file is not valid: {error}") from None
        evidence = Table(base.schema, values.astype(float), observed, pd.RangeIndex(1))
        return Conditioned(base, keep, evidence)
