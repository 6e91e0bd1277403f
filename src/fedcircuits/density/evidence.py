"""Evidence as a caller gives it, made into a table and checked: the lowest layer of a `Density`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, get_args

import numpy as np
import pandas as pd

from fedcircuits.arrays import BoolArray, FloatArray
from fedcircuits.density.hooks import Hooks
from fedcircuits.errors import (
    FedcircuitsError,
    ImpossibleEvidenceError,
    QueryError,
    SchemaError,
)
from fedcircuits.schema import Data, Table, Variable, images, read
from fedcircuits.schema.events import Event
from fedcircuits.schema.reading.read import is_one_row
from fedcircuits.schema.table import Unknown

Impossible = Literal["error", "nan"]
Given = Mapping[str, Any] | Data


P = ParamSpec("P")
Answer = TypeVar("Answer")
D = TypeVar("D", bound="TakesEvidence")


def query(
    method: Callable[Concatenate[D, P], Answer],
) -> Callable[Concatenate[D, P], Answer]:
    """Marks a method of a density as a public query: every call passes `_query`."""

    @wraps(method)
    def asked(self: D, /, *args: P.args, **options: P.kwargs) -> Answer:
        return self._query(lambda density: method(density, *args, **options))

    return asked


class TakesEvidence(Hooks):
    """A density that reads evidence: a mapping from names to values or events, or rows."""

    def _query(self, ask: Callable[[Self], Answer]) -> Answer:
        """Answers one public query; a density may ask again without parts that are away."""
        return ask(self)

    def _rows(
        self,
        data: Data,
        unknown: Unknown = "error",
        without: str | None = None,
        asked: str | None = None,
    ) -> Table:
        """Rows as a table; events are refused where the density does not heed them.

        Args:
            data: rows.
            unknown: whether an unseen category is an error or a missing value.
            without: a column that is not looked at, whatever it holds.
            asked: the variable that is asked for: a density that looks up cells which were not
                sent does not look up this one.
        """
        del asked
        if isinstance(data, Mapping) and is_one_row(data):
            for name in data:  # a misspelt name is an error, as it is in evidence
                self.schema.position(name)
        table = self.schema.encode(data, unknown=unknown, without=without)
        if table.events is not None and not self.answers_events:
            raise QueryError(
                f"a {type(self).__name__} takes values as evidence, not events (between, one_of, "
                "...): its hooks do not read Table.events"
            )
        return table

    def _evidence(
        self, given: Given | None, unknown: Unknown = "error", asked: str | None = None
    ) -> Table:
        """Evidence as a table: one row for a mapping or None, the rows themselves otherwise."""
        if given is None:
            return Table.empty(self.schema, 1)
        if isinstance(given, Mapping):
            for name in given:
                self.schema.position(name)
            row = pd.DataFrame({name: pd.Series([value]) for name, value in given.items()})
            return TakesEvidence._rows(self, row.reindex([0]), unknown)
        return self._rows(given, unknown, asked=asked)

    def _one_row(self, given: Given | None, what: str) -> Mapping[str, Any] | None:
        """Evidence of one row as a mapping: of a Series or a frame, its columns that are known."""
        if given is None or isinstance(given, Mapping):
            return given
        if isinstance(given, str) or images.is_images(given):
            raise QueryError(f"{what} takes values by name, found {type(given).__name__}")
        try:
            frame = read(given)
        except SchemaError:
            raise QueryError(
                f"{what} takes values by name (a dict, a Series or a row of a DataFrame), found "
                f"{type(given).__name__}"
            ) from None
        if len(frame) != 1:
            raise QueryError(f"{what} takes evidence of one row, found {len(frame)} rows")
        known = [name for name in frame.columns if name in self.schema]
        if not known:
            self.schema.position(str(frame.columns[0]) if len(frame.columns) else "")
        cells = {name: frame[name].iloc[0] for name in known}
        return {
            name: cell
            for name, cell in cells.items()
            if isinstance(cell, Event) or not pd.isna(cell)
        }

    def _completed(
        self,
        values: FloatArray,
        index: pd.Index[Any],
        given: Given | None,
        as_images: bool | None,
    ) -> Any:
        """Completed rows (n, D) as a DataFrame, or as images where images were given.

        Args:
            values: encoded, in the order of the schema.
            index: labels of the rows.
            given: the evidence that was completed; images once for each row.
            as_images: True or False where the caller chose.
        """
        painted = images.is_images(given)
        if not (painted if as_images is None else as_images):
            return self.schema.decode(values, index)
        like: Any = given if painted else None
        return images.images_from_pixels(self.schema.names, values, like)

    def _check_possible(self, table: Table, impossible: Impossible) -> BoolArray:
        """(n,) rows whose evidence is possible; others are an error, or left out on request."""
        check_impossible(impossible)
        possible = np.ones(len(table), dtype=bool)
        rows = np.flatnonzero(table.known.any(axis=1))
        if rows.size:
            possible[rows] = self.log_prob_table(table.rows(rows)) > -np.inf
        if impossible == "error" and not possible.all():
            raise ImpossibleEvidenceError(list(table.index[~possible]))
        return possible

    def _check_numeric(self, variable: Variable) -> None:
        """Refuse what needs numbers for a variable whose categories are not numbers."""
        if variable.is_coded and variable.numbers is None:
            raise QueryError(
                f"variable {variable.name!r} has categories that are not numbers "
                f"({variable.categories[0]!r}, ...), so it has no moments; ask predict_proba"
            )


def without_id(data: Data, id: str | None, known: Iterable[str]) -> Data:
    """Return rows without the id column, unless it is one of the known variables.

    Images have no such column and come back as they are.
    """
    if images.is_images(data):
        return data
    if isinstance(data, Mapping) and is_one_row(data):
        return {name: value for name, value in data.items() if name != id or name in known}
    frame = read(data)
    if id is None or id not in frame.columns or id in known:
        return frame
    return frame.drop(columns=id)


def whole_number(value: Any, expected: str, most: int = 2**63 - 1) -> int:
    """A number in 0..most without a fraction, or an error that says what was expected."""
    try:
        whole = int(value)
        if whole == value and 0 <= whole <= most:
            return whole
    except (TypeError, ValueError, OverflowError):
        pass
    raise QueryError(f"{expected}, found {value!r}")


def generator(seed: object, error: type[FedcircuitsError] = QueryError) -> np.random.Generator:
    """The generator of a seed: a whole number >= 0, a generator itself, or None for any."""
    if isinstance(seed, np.random.Generator) or seed is None:
        return np.random.default_rng(seed)
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool) and seed >= 0:
        return np.random.default_rng(int(seed))
    raise error(f"seed is a whole number >= 0, found {seed!r}")


def distinct_names(names: object, what: str, least: int = 1) -> list[str]:
    """Names of variables as a list, or an error that says what was expected."""
    found = [names] if isinstance(names, str) else names
    if not isinstance(found, Iterable):
        raise QueryError(f"{what} needs names of variables, found {names!r}")
    chosen = list(found)
    if len(chosen) < least or len(set(map(repr, chosen))) < len(chosen):
        count = {1: "one", 2: "two"}[least]
        raise QueryError(f"{what} needs {count} or more different names, found {chosen}")
    return chosen


def check_impossible(impossible: object) -> None:
    """Refuse another word for what evidence of probability zero gives."""
    if impossible not in get_args(Impossible):
        raise QueryError(f"impossible is 'error' or 'nan', found {impossible!r}")


def is_one(given: Given | None) -> bool:
    """Whether the evidence is one row without a label, so that the answer is a plain number."""
    return given is None or isinstance(given, Mapping | pd.Series)
