"""Columns: how a table's variables become numbers for leaves, and back.

A category is its code, a pixel its level, any other number the state of a grid; a continuous
column may instead be standardised for Gaussian leaves. Whatever a number loses on the way (the
density within a bin, the unit of a standardised column) comes back as a term of the log-density, so
densities stay those of the schema's own values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import FloatArray
from fedcircuits.schema import Schema, Table, Variable

ColumnKind = Literal["code", "level", "grid", "scaled"]


@dataclass(frozen=True)
class Column:
    """One variable's coding.

    Attributes:
        kind: "code", "level", "grid" or "scaled".
        n_values: Number of values of a discrete coding, else 0.
        shift: What is subtracted from a scaled column.
        scale: What it is then divided by.
    """

    kind: ColumnKind
    n_values: int = 0
    shift: float = 0.0
    scale: float = 1.0


def is_level(variable: Variable) -> bool:
    """Whether a variable is a pixel: a count declared to lie in 0 .. top."""
    domain = variable.domain
    return (
        variable.kind == "count"
        and variable.closed
        and domain is not None
        and domain[0] == 0
        and 1 <= domain[1] <= 1023
        and not variable.missing_state
    )


def column_of(variable: Variable, values: FloatArray, gaussian: bool) -> Column:
    """The coding of a variable; `values` are its observed training values."""
    if variable.is_coded:
        return Column("code", variable.n_codes)
    if is_level(variable):
        assert variable.domain is not None
        return Column("level", int(variable.domain[1]) + 1)
    if gaussian and variable.kind == "continuous" and not variable.missing_state:
        spread = float(values.std()) if values.size else 1.0
        centre = float(values.mean()) if values.size else 0.0
        return Column("scaled", 0, centre, spread if spread > 0 else 1.0)
    assert variable.grid is not None
    return Column("grid", variable.grid.n_states)


def encode(
    schema: Schema, columns: Sequence[Column], table: Table
) -> tuple[NDArray[np.generic], NDArray[np.bool_], FloatArray]:
    """Return the values of a table as the numbers that leaves take.

    Returns:
        Values (n, D), int16 if all columns are discrete; which are known (n, D); and what each
        row's log-density gains by the coding (n,), -inf where a value has no state at all.
    """
    n = len(table)
    discrete = all(column.kind != "scaled" for column in columns)
    x = np.zeros((n, len(columns)), dtype=np.int16 if discrete else np.float64)
    gain = np.zeros(n)
    for at, (variable, column) in enumerate(zip(schema, columns, strict=True)):
        seen = table.observed[:, at]
        raw = table.values[seen, at]
        if column.kind == "grid":
            assert variable.grid is not None
            states, within = variable.grid.locate(raw)
            legal = states >= 0
            x[seen, at] = np.where(legal, states, 0)
            gain[seen] += np.where(legal, within, -np.inf)
        elif column.kind == "scaled":
            x[seen, at] = (raw - column.shift) / column.scale
            gain[seen] -= np.log(column.scale)
        else:
            x[seen, at] = raw
    return x, table.observed, gain


def decode(
    schema: Schema, columns: Sequence[Column], coded: FloatArray, rng: np.random.Generator | None
) -> FloatArray:
    """Values of the schema from leaf values (n, D): drawn within bins, or their modes."""
    values = np.empty(coded.shape)
    for at, (variable, column) in enumerate(zip(schema, columns, strict=True)):
        if column.kind == "grid":
            assert variable.grid is not None
            states = coded[:, at].astype(np.int64)
            if rng is None:
                values[:, at] = variable.grid.modes()[0][states]
            else:
                values[:, at] = variable.grid.sample_within(states, rng)
        elif column.kind == "scaled":
            values[:, at] = coded[:, at] * column.scale + column.shift
        else:
            values[:, at] = coded[:, at]
    return values


def power_table(variable: Variable, column: Column, order: int) -> FloatArray:
    """E[value ** order] given each code, (values,)."""
    if column.kind == "grid":
        assert variable.grid is not None
        return variable.grid.moments(order)
    if column.kind == "code" and variable.numbers is not None:
        powers = variable.numbers**order
        return np.concatenate([powers, np.zeros(variable.n_codes - len(powers))])
    return np.arange(column.n_values, dtype=float) ** order
