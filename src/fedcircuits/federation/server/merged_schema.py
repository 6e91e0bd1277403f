"""The schema that all clients of a run agree on: merged columns, states for gaps, grids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedcircuits.errors import (
    MALFORMED,
    ClientError,
    FedcircuitsError,
    FederationError,
    SchemaError,
)
from fedcircuits.federation.client.rows.describe import SKETCH_PARTS
from fedcircuits.federation.wire import requests as m
from fedcircuits.schema import Schema, Sketch
from fedcircuits.schema.schema import label_grid, variable_grid
from fedcircuits.schema.variable import is_often_missing


def described_schema(client: str, found: m.Description) -> Schema:
    """Return the schema in a client's description, which is checked; an error names the client."""
    try:
        schema = Schema.from_json(found.schema)
    except (FedcircuitsError, *MALFORMED) as error:
        raise ClientError(client, f"a schema that cannot be read: {error}") from None
    for name in schema.names:
        missing = found.n_missing.get(name, 0)
        if not 0 <= missing <= found.n_rows:
            raise ClientError(client, f"{missing} missing cells of {name!r} in {found.n_rows} rows")
        if not _sketched({client: found}, name):
            continue
        try:
            fault = _sketch(found, name).fault()
        except KeyError as error:
            fault = f"{error} is not there"
        if fault is not None:
            raise ClientError(client, f"a sketch of {name!r} that is none: {fault}")
    return schema


def with_missing_states(
    schema: Schema,
    described: Mapping[str, m.Description],
    held: Mapping[str, tuple[str, ...]],
    label: str | None,
) -> Schema:
    """Return the schema with a state for missing values where they are frequent over all clients.

    Pixels without a grid have no such state: a masked pixel is summed out.
    """
    changed = []
    for variable in schema:
        if not variable.is_coded and not _sketched(described, variable.name):
            continue
        holders = [d for c, d in described.items() if variable.name in held[c]]
        missing = sum(d.n_missing.get(variable.name, 0) for d in holders)
        rows = sum(d.n_rows for d in holders)
        if is_often_missing(missing, rows) and variable.name != label:
            changed.append(replace(variable, missing_state=True))
    return schema.with_variables(changed)


def with_grids(
    schema: Schema, described: Mapping[str, m.Description], label: str | None, min_rows: int
) -> Schema:
    """Return the schema with one grid a numeric variable, from the sketches of all its holders."""
    changed = []
    for variable in schema:
        found = [_sketch(d, variable.name) for d in _sketched(described, variable.name)]
        if variable.is_coded or not found:  # pixels that every holder learns as levels
            continue
        try:
            make = label_grid if variable.name == label else variable_grid
            grid = make(variable, Sketch.merge(found, variable.domain if variable.closed else None))
        except SchemaError as error:
            raise FederationError(
                f"variable {variable.name!r}: {error}. Sketches leave out what fewer than "
                f"min_rows = {min_rows} rows share: pass min_rows= for tables this small, "
                "or schema="
            ) from None
        changed.append(variable.with_grid(grid))
    return schema.with_variables(changed)


def _sketched(described: Mapping[str, m.Description], name: str) -> list[m.Description]:
    """The descriptions that have a sketch of a variable."""
    return [d for d in described.values() if f"{name}\x1f{SKETCH_PARTS[0]}" in d.sketches]


def _sketch(description: m.Description, name: str) -> Sketch:
    arrays = {part: description.sketches[f"{name}\x1f{part}"] for part in SKETCH_PARTS}
    return Sketch(**arrays, exact=description.exact[name])
