"""Rows that are looked at in batches: a table in memory, or a Parquet file or dataset beyond it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pandas as pd

from fedcircuits.arrays import IntArray
from fedcircuits.errors import FedcircuitsWarning, SchemaError
from fedcircuits.schema.identifiers import identifiers, warn_of_left_out
from fedcircuits.schema.infer import Domain
from fedcircuits.schema.reading.parquet import ParquetFile, batch_rows
from fedcircuits.schema.schema import Schema
from fedcircuits.schema.table import Table
from fedcircuits.schema.variable import Kind, Variable


class RowBatches(Protocol):
    """Encoded rows that may be more than fit into memory."""

    @property
    def schema(self) -> Schema:
        """Of all rows, without grids that were not given."""
        ...

    def __len__(self) -> int: ...

    def take(self, rows: IntArray) -> Table:
        """Return some rows, their numbers ascending."""
        ...

    def batches(self) -> Iterator[Table]:
        """Yield all rows in order, a batch after another."""
        ...


@dataclass(frozen=True)
class TableBatches:
    """A table in memory, batch by batch."""

    table: Table

    @property
    def schema(self) -> Schema:
        """The schema of the table."""
        return self.table.schema

    def __len__(self) -> int:
        return len(self.table)

    def take(self, rows: IntArray) -> Table:
        """Return some rows."""
        return self.table.rows(rows)

    def batches(self) -> Iterator[Table]:
        """Yield all rows in order."""
        for _, part in self.table.chunks(batch_rows(len(self.schema))):
            yield part


@dataclass(frozen=True)
class ParquetBatches:
    """A Parquet file or dataset as encoded rows."""

    file: ParquetFile
    schema: Schema
    missing_values: tuple[object, ...] = ()

    def __len__(self) -> int:
        return self.file.n_rows

    def take(self, rows: IntArray) -> Table:
        """Return some rows."""
        return self._encoded(self.file.take(rows, self.schema.names), 0)

    def batches(self) -> Iterator[Table]:
        """Yield all rows in order."""
        start = 0
        for frame in self.file.frames(self.schema.names):
            yield self._encoded(frame, start)
            start += len(frame)

    def _encoded(self, frame: pd.DataFrame, start: int) -> Table:
        frame.index = pd.RangeIndex(start, start + len(frame))
        return self.schema.encode(frame, missing_values=self.missing_values)


def infer_schema(
    file: ParquetFile,
    drop: Sequence[str],
    some: pd.DataFrame,
    kinds: Mapping[str, Kind],
    domains: Mapping[str, Domain] | None,
    units: Mapping[str, str] | None,
    missing_values: Sequence[object],
) -> Schema:
    """Guess the schema of a file: of every batch, and all of them united.

    Args:
        file: the rows.
        drop: columns to leave out.
        some: random rows, by which identifiers are known.
        kinds: as in `Schema.infer`.
        domains: as in `Schema.infer`.
        units: as in `Schema.infer`.
        missing_values: as in `Schema.infer`.
    """
    declared = {*kinds, *(domains or {})}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedcircuitsWarning)
        keys = identifiers(some, declared, missing_values)
        text_ids = {name for name in keys if some[name].dtype.kind not in "iu"}
    kept = [name for name in file.names if name not in text_ids and name not in drop]
    found: Schema | None = None
    n_before = 0
    for frame in file.frames(kept):
        there = frame.loc[:, frame.notna().any()]
        named = {name: kind for name, kind in kinds.items() if name in there.columns}
        within = {name: d for name, d in (domains or {}).items() if name in there.columns}
        measured = {name: u for name, u in (units or {}).items() if name in there.columns}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedcircuitsWarning)
            part = Schema.infer(there, named, within, units=measured, missing_values=missing_values)
        try:
            found = part if found is None else Schema.merge({"0": found, "1": part})
        except SchemaError as error:
            raise SchemaError(
                f"{file.path}: rows from {n_before} on differ from those before ('0' and '1' in "
                f"what follows): {error}"
            ) from None
        n_before += len(frame)
    if found is None:
        raise SchemaError(f"{file.path} has no row, so no schema can be guessed from it")
    ids = {v.name for v in found if _numbers_rows(v, some, file.n_rows, declared)}
    texts = dict.fromkeys(
        sorted(text_ids), "another text in every row looked at, as an identifier has"
    )
    numbers = dict.fromkeys(sorted(ids), "consecutive whole numbers, as an identifier has")
    warn_of_left_out({**texts, **numbers})
    if not [name for name in kept if name not in ids]:
        raise SchemaError(f"{file.path}: every column looks like an identifier")
    return found.select([name for name in kept if name in found and name not in ids])


def _numbers_rows(variable: Variable, some: pd.DataFrame, n_rows: int, declared: set[str]) -> bool:
    """Whether a column holds consecutive whole numbers, another one in every row."""
    if variable.name in declared or variable.kind != "count" or variable.domain is None:
        return False
    low, high = variable.domain
    column = some[variable.name].dropna()
    return high - low == n_rows - 1 and column.is_unique and column.dtype.kind in "iu"
