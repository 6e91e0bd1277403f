"""Schemas: what the variables of a table are, and what clients agree on."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import pandas as pd

from fedcircuits.arrays import FloatArray
from fedcircuits.errors import QueryError, SchemaError
from fedcircuits.schema.cells import decode
from fedcircuits.schema.encode import check_names, encode, encode_plain_row
from fedcircuits.schema.grids.sketch import Sketch
from fedcircuits.schema.infer import Domain, infer_variables
from fedcircuits.schema.merge import merge_variables
from fedcircuits.schema.reading.read import Data, read
from fedcircuits.schema.shown import HEADS, html, kind_of, some, variable_rows
from fedcircuits.schema.table import Table, Unknown
from fedcircuits.schema.variable import MISSING, Kind, Variable


@dataclass(frozen=True, repr=False)
class Schema:
    """An ordered set of variables with distinct names."""

    variables: tuple[Variable, ...]

    def __post_init__(self) -> None:
        if not self.variables:
            raise SchemaError("a schema has at least one variable; the table has no column")
        if len(set(self.names)) < len(self.variables):
            raise SchemaError("two variables of a schema have the same name")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variables, in order."""
        return tuple(v.name for v in self.variables)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {v.name: at for at, v in enumerate(self.variables)}

    def __len__(self) -> int:
        return len(self.variables)

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.variables)

    def __contains__(self, name: object) -> bool:
        return name in self._positions

    def __getitem__(self, name: str) -> Variable:
        return self.variables[self.position(name)]

    def __repr__(self) -> str:
        count = "1 variable" if len(self) == 1 else f"{len(self)} variables"
        return f"Schema({count}: {some(f'{v.name} ({kind_of(v)})' for v in self)})"

    def _repr_html_(self) -> str:
        return html(f"Schema of {len(self)} variables", (), HEADS, variable_rows(self))

    def position(self, name: str) -> int:
        """Column of a variable; an unknown name is an error that lists those that exist."""
        try:
            return self._positions[name]
        except (KeyError, TypeError):
            close = get_close_matches(str(name), self.names, n=1, cutoff=0.7)
            by_case = [known for known in self.names if known.casefold() == str(name).casefold()]
            near = (by_case or close)[:1]
            shown = ", ".join(map(repr, self.names[:12])) + (", ..." if len(self) > 12 else "")
            meant = f"; did you mean {near[0]!r}?" if near else ""
            found = repr(name) if isinstance(name, str) else reprlib.repr(name)  # arrays are long
            raise QueryError(f"no variable {found}; the model has {shown}{meant}") from None

    def select(self, names: Iterable[str]) -> Schema:
        """A schema of some of the variables, in the order given."""
        return Schema(tuple(self[name] for name in names))

    # --- making schemas ---------------------------------------------------------------------------

    @staticmethod
    def infer(
        data: Data,
        kinds: Mapping[str, Kind] | None = None,
        domains: Mapping[str, Domain] | None = None,
        *,
        units: Mapping[str, str] | None = None,
        missing_values: Sequence[object] = (),
        names: Sequence[str] | None = None,
    ) -> Schema:
        """Guess the schema of a table (see `fedcircuits.schema.infer` for the rule).

        Args:
            data: DataFrame, array with `names`, CSV or Parquet.
            kinds: kind by name, where the guess would be wrong.
            domains: (lowest, highest) or list of categories by name; a declared domain is closed,
                a value outside it is an error.
            units: unit of measurement by name.
            missing_values: spellings of a missing value besides those pandas knows, "?" say.
            names: column names of a NumPy array.
        """
        frame = read(data, names)
        check_names(frame)
        if len(frame.columns) == 0:
            raise SchemaError("the table has no column")
        if len(frame) == 0:
            raise SchemaError("the table has no row, so no schema can be guessed from it")
        return Schema(
            tuple(
                infer_variables(
                    frame, kinds or {}, domains or {}, units or {}, _spellings(missing_values)
                )
            )
        )

    @staticmethod
    def merge(schemas: Mapping[str, Schema]) -> Schema:
        """The schema of all clients together, by client name; conflicts are refused by name."""
        return Schema(tuple(merge_variables({name: s.variables for name, s in schemas.items()})))

    def with_variables(self, changed: Iterable[Variable]) -> Schema:
        """The schema with some variables replaced by others of the same name."""
        new = {v.name: v for v in changed}
        return Schema(tuple(new.get(v.name, v) for v in self.variables))

    def with_grids(self, table: Table, n_bins: int | None = None) -> Schema:
        """The schema with a grid, made from `table`, for every numeric variable without one."""
        changed = []
        for at, variable in enumerate(self.variables):
            if variable.is_coded or variable.grid is not None:
                continue
            seen = table.observed[:, at] & (table.values[:, at] != variable.missing_code)
            weights = None if table.weights is None else table.weights[seen]
            sketch = Sketch.of(table.values[seen, at], weights)
            try:
                changed.append(variable.with_grid(variable_grid(variable, sketch, n_bins)))
            except SchemaError as error:
                raise SchemaError(f"variable {variable.name!r}: {error}") from None
        return self.with_variables(changed)

    # --- rows -------------------------------------------------------------------------------------

    def encode(
        self,
        data: Data,
        *,
        names: Sequence[str] | None = None,
        unknown: Unknown = "error",
        missing_values: Sequence[object] = (),
        missing_as_state: bool = False,
        weights: FloatArray | None = None,
        without: str | None = None,
    ) -> Table:
        """Rows as a table (see `fedcircuits.schema.encode.encode`); images are rows of pixels."""
        from fedcircuits.schema import images  # they build on schemas

        plain = names is None and not missing_values and not missing_as_state
        if plain and isinstance(data, Mapping) and data:
            row = encode_plain_row(self, data.items(), without)
            if row is not None:
                return Table(self, *row, pd.RangeIndex(1), weights)
        if images.is_images(data):
            table = images.encode_images(self, data)  # type: ignore[arg-type]
            return table if without is None else table.hide(self.position(without))
        return encode(
            self,
            read(data, names),
            unknown=unknown,
            missing_values=_spellings(missing_values),
            missing_as_state=missing_as_state,
            weights=weights,
            without=without,
        )

    def mark_missing(
        self, frame: pd.DataFrame, columns: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """Return rows whose empty cells are `MISSING` where the variable has a state for that.

        A query sums out an empty cell, as one that nobody has looked at. A cell that is empty for
        the reason cells were in the training rows says what they said: `MISSING` is evidence.

        Args:
            frame: rows.
            columns: variables to mark; all if not given.
        """
        asked = self.variables if columns is None else [self[name] for name in columns]
        stateful = {v.name for v in asked if v.missing_state}
        marked = {
            name: frame[name].astype(object).where(frame[name].notna(), MISSING)
            for name in frame.columns
            if name in stateful and frame[name].isna().any()
        }
        return frame.assign(**marked)

    def decode(self, values: FloatArray, index: pd.Index[Any]) -> pd.DataFrame:
        """Encoded values (n, D) as a DataFrame of original values."""
        return decode(self, values, index)

    # --- as JSON ----------------------------------------------------------------------------------

    def to_json(self) -> list[dict[str, Any]]:
        """Plain values for headers and messages."""
        return [v.to_json() for v in self.variables]

    @staticmethod
    def from_json(record: list[dict[str, Any]]) -> Schema:
        """Inverse of `to_json`."""
        return Schema(tuple(Variable.from_json(v) for v in record))


def _spellings(missing_values: Sequence[object]) -> tuple[object, ...]:
    """User-named missing values; one string is one spelling, not a sequence of letters."""
    return (missing_values,) if isinstance(missing_values, str) else tuple(missing_values)


# A numeric label has n ** power quantile bins, within these limits, and a state of its own for a
# value that has this share of a bin's rows.
LABEL_BINS_POWER, LABEL_BINS, LABEL_ATOM = 0.42, (5, 32), 0.25


def label_grid(variable: Variable, sketch: Sketch) -> Any:
    """The grid of a label that is a number: few states, which serve as classes."""
    low, high = LABEL_BINS
    n_bins = min(max(round(sketch.n_rows**LABEL_BINS_POWER), low), high)
    # The mean of a group of rows in a coarse sketch is no value of its own.
    group = float(sketch.point_rows.max(initial=0.0)) / sketch.n_rows
    return variable_grid(variable, sketch, n_bins, max(LABEL_ATOM / n_bins, 1.01 * group))


def variable_grid(
    variable: Variable,
    sketch: Sketch,
    n_bins: int | None = None,
    atom_share: float | None = None,
) -> Any:
    """The grid of a numeric variable from a sketch of its values (see `Sketch.to_grid`)."""
    return sketch.to_grid(
        integer=variable.kind == "count",
        domain=variable.domain if variable.closed else None,
        n_bins=n_bins,
        missing=variable.missing_state,
        atom_share=atom_share,
        # The few states of a label are classes, whose quantiles are asked for by the thousand.
        decimals=variable.decimals if atom_share is None else None,
        has_zero=variable.time is None,
    )
