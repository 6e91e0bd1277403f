"""What a client sends about its table in the handshake: schema, counts and sketches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from fedcircuits.arrays import Arrays
from fedcircuits.errors import SchemaError
from fedcircuits.federation.wire import requests as m
from fedcircuits.schema import Kind, Schema, Sketch
from fedcircuits.schema.identifiers import identifiers
from fedcircuits.schema.images import pixel_columns

SKETCH_PARTS = ("heavy", "heavy_rows", "points", "point_rows", "point_spreads", "ends")


def describe(
    frame: pd.DataFrame,
    kinds: Mapping[str, Kind],
    missing_values: tuple[object, ...],
    min_rows: int,
) -> m.Description:
    """Names, kinds, domains, counts; of numbers nothing that fewer than min_rows rows share."""
    if len(frame) == 0:
        return m.Description([], 0, {}, {})
    # Levels that these images happen not to have are levels all the same.
    pixels = [name for name in pixel_columns(frame) if name not in kinds]
    levels = dict.fromkeys(pixels, (0.0, 255.0))
    every: dict[str, Kind] = {**kinds, **dict.fromkeys(pixels, "count")}
    keys = identifiers(frame, every)
    if keys:
        name, why = next(iter(keys.items()))
        raise SchemaError(
            f"column {name!r} holds {why}, as an identifier has, and must not be learned unasked: "
            f"name it as the id, drop it, or declare its kind (kinds={{{name!r}: ...}})"
        )
    schema = Schema.infer(frame, every, levels, missing_values=missing_values)
    table = schema.encode(frame, missing_values=missing_values)
    sketches: Arrays = {}
    exact: dict[str, bool] = {}
    for at, variable in enumerate(schema):
        if not variable.is_coded:
            seen = table.observed[:, at]
            sketch = Sketch.of(table.values[seen, at], min_rows=min_rows)
            exact[variable.name] = sketch.exact
            sketches |= {
                f"{variable.name}\x1f{part}": getattr(sketch, part) for part in SKETCH_PARTS
            }
    missing = {v.name: int((~table.observed[:, i]).sum()) for i, v in enumerate(schema)}
    # The lowest and highest value are values of single rows: the sketch has means instead.
    public = schema.with_variables(
        replace(v, domain=None) for v in schema if not v.is_coded and not v.closed
    )
    return m.Description(public.to_json(), len(table), missing, exact, sketches)
