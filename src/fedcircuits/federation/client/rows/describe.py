"""What a client sends about its table in the handshake: schema, counts and sketches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from fedcircuits.arrays import Arrays
from fedcircuits.errors import SchemaError
from fedcircuits.federation.wire import requests as m
from fedcircuits.schema import Kind, Schema, Sketch
from fedcircuits.schema.identifiers import FEW_ROWS, identifiers
from fedcircuits.schema.images import pixel_columns, pixel_variable
from fedcircuits.schema.schema import variable_grid
from fedcircuits.schema.variable import is_often_missing

SKETCH_PARTS = (
    *("heavy", "heavy_rows", "points", "point_rows", "point_spreads", "ends"),
    "never_below",
)


def describe(
    frame: pd.DataFrame,
    kinds: Mapping[str, Kind],
    missing_values: tuple[object, ...],
    min_rows: int,
    *,
    sketch_levels: bool = True,
) -> m.Description:
    """Names, kinds, domains, counts; of numbers nothing that fewer than min_rows rows share.

    Args:
        frame: rows.
        kinds: kinds that the user declared.
        missing_values: spellings of a missing value besides those pandas knows.
        min_rows: the smallest group of rows that a sketch may describe.
        sketch_levels: whether pixels get a sketch; a learner of levels needs no grid of them.
    """
    if min_rows < 1:
        raise SchemaError(f"min_rows is a whole number >= 1, found {min_rows!r}")
    if len(frame) == 0:
        return m.Description([], 0, {}, {})
    # Levels that these images happen not to have are levels all the same.
    pixels = {name: top for name, top in pixel_columns(frame).items() if name not in kinds}
    every: dict[str, Kind] = {**kinds, **dict.fromkeys(pixels, "count")}
    keys = identifiers(frame, every, missing_values)
    if keys:
        raise SchemaError(_identifier(*next(iter(keys.items()))))
    variables = {name: pixel_variable(name, top) for name, top in pixels.items()}
    others = [name for name in frame.columns if name not in pixels]
    if others:
        inferred = Schema.infer(frame[others], kinds, missing_values=missing_values)
        variables |= {variable.name: variable for variable in inferred}
    schema = Schema(tuple(variables[str(name)] for name in frame.columns))
    levels = [] if sketch_levels else list(pixels)
    absent = frame[levels].isna()
    if missing_values:
        absent |= frame[levels].isin(list(missing_values))
    missing = {name: int(n) for name, n in zip(levels, absent.to_numpy().sum(axis=0), strict=True)}
    sketches: Arrays = {}
    exact: dict[str, bool] = {}
    coded = [name for name in schema.names if name not in missing]
    if coded:
        table = schema.select(coded).encode(frame[coded], missing_values=missing_values)
        for at, variable in enumerate(table.schema):
            seen = table.observed[:, at]
            missing[variable.name] = int((~seen).sum())
            values = table.values[seen, at]  # (n,) where the cell is known
            if variable.is_coded:
                differ = values.size >= FEW_ROWS and np.unique(values).size == values.size
                if differ and variable.name not in every:
                    raise SchemaError(_identifier(variable.name, "another category in every row"))
                continue
            sketch = Sketch.of(values, min_rows=min_rows)
            exact[variable.name] = sketch.exact
            sketches |= {
                f"{variable.name}\x1f{part}": getattr(sketch, part) for part in SKETCH_PARTS
            }
    # The lowest and highest value are values of single rows: the sketch has means instead.
    public = schema.with_variables(
        replace(v, domain=None) for v in schema if not v.is_coded and not v.closed
    )
    return m.Description(public.to_json(), len(frame), missing, exact, sketches)


def own_schema(described: m.Description, label: str | None) -> Schema:
    """The schema on the client's own grids: what a server agrees on where nobody else has a column.

    Args:
        described: the client's description of its columns.
        label: has no state for missing values.
    """
    changed = []
    for variable in Schema.from_json(described.schema):
        parts = {p: described.sketches.get(f"{variable.name}\x1f{p}") for p in SKETCH_PARTS}
        missing = described.n_missing.get(variable.name, 0)
        sketched = all(part is not None for part in parts.values())
        if (variable.is_coded or sketched) and is_often_missing(missing, described.n_rows):
            variable = replace(variable, missing_state=variable.name != label)
        if sketched and not variable.is_coded:
            sketch = Sketch(**parts, exact=described.exact[variable.name])  # type: ignore[arg-type]
            whole = Sketch.merge([sketch], variable.domain if variable.closed else None)
            variable = variable.with_grid(variable_grid(variable, whole))
        changed.append(variable)
    return Schema(tuple(changed))


def _identifier(name: str, why: str) -> str:
    return (
        f"column {name!r} holds {why}, as an identifier has, and must not be learned unasked: "
        f"name it as the id, leave it out (drop=[{name!r}]), or declare its kind "
        f"(kinds={{{name!r}: ...}})"
    )
