"""One column: its name, kind, domain, unit and grid."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from fedcircuits.errors import SchemaError
from fedcircuits.schema.grids.decimals import grid_from_json
from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.times import from_numbers

Kind = Literal["continuous", "count", "categorical", "binary"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Category = str | int | float | bool
# Missingness is worth a state of its own from this share of the rows and this many of them.
FREQUENT_SHARE, FREQUENT_ROWS = 0.005, 10


class _Missing:
    """The value that says 'observed to be missing', where a model has a state for it."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


def is_often_missing(n_missing: int, n_rows: int) -> bool:
    """Whether a column lacks values in so many rows that "missing" should be a state of it."""
    return n_missing >= max(FREQUENT_ROWS, FREQUENT_SHARE * n_rows)


def canonical_category(value: object) -> Category:
    """Python's own str, bool, int or float for a cell; anything else by its text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (str, bool, int, float)):
        return value
    return str(value)


def plain(value: object) -> object:
    """Python's own value for a NumPy scalar, so that messages do not say np.float64(1.5)."""
    return value.item() if isinstance(value, np.generic) else value


def category_order(value: Category) -> tuple[int, Any]:
    """Sorting key that keeps truth values, numbers and strings apart."""
    if isinstance(value, str):
        return (2, value)
    return (0, value) if isinstance(value, bool) else (1, value)


@dataclass(frozen=True)
class Variable:
    """A column of a schema.

    Attributes:
        name: its name, the same at every client.
        kind: continuous, count (integers), categorical or binary.
        categories: of a categorical or binary variable, the original values in order of code.
        domain: lowest and highest value of a numeric variable, None if unknown; only a hint for
            drawing and tails unless `closed`.
        closed: whether the user declared the domain (interval or categories). A value outside a
            declared domain is an error; otherwise an unseen number never is.
        declared: whether the user named the kind (otherwise it was guessed from data).
        unit: of measurement; two clients must agree.
        grid: states of a numeric variable, if a grid was made or agreed.
        missing_state: whether "observed to be missing" is a state of its own.
        time: what the numbers stand for, where they are dates, times or durations
            (`fedcircuits.schema.times`); None for plain numbers.
        decimals: with how many decimals all values were written, None if not with a small number.
        ordered: whether the categories came as a pandas categorical and go back as one: None if
            not, else whether it was ordered.
    """

    name: str
    kind: Kind
    categories: tuple[Category, ...] = ()
    domain: tuple[float, float] | None = None
    closed: bool = False
    declared: bool = False
    unit: str | None = None
    grid: Grid | None = None
    missing_state: bool = False
    time: str | None = None
    ordered: bool | None = None
    decimals: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SchemaError(f"a variable's name is a non-empty string, found {self.name!r}")
        if self.kind not in KINDS:
            raise SchemaError(
                f"variable {self.name!r}: kind is one of {', '.join(KINDS)}, found {self.kind!r}"
            )
        categories = tuple(canonical_category(c) for c in self.categories)
        object.__setattr__(self, "categories", categories)
        if self.is_coded:
            if not self.categories:
                raise SchemaError(f"variable {self.name!r}: a {self.kind} variable has categories")
            if len(set(self.categories)) < len(self.categories):  # 1 and True are one value
                raise SchemaError(f"variable {self.name!r}: its categories repeat")
            self._check_numbers()
            if self.kind == "binary" and len(self.categories) != 2:
                raise SchemaError(
                    f"variable {self.name!r}: a binary variable has two categories, "
                    f"found {len(self.categories)}"
                )
        if self.domain is not None and not self.domain[0] <= self.domain[1]:
            raise SchemaError(
                f"variable {self.name!r}: a domain is (lowest, highest), found {self.domain}"
            )

    def _check_numbers(self) -> None:
        """Categories that are numbers are looked up as floats, so they must differ as floats."""
        seen: dict[float, Category] = {}
        for category in self.categories:
            if isinstance(category, str):
                continue
            shown = (
                repr(category) if isinstance(category, float) else "an integer of over 300 digits"
            )
            try:
                number = float(category)
            except OverflowError:
                number = np.inf
            if not np.isfinite(number):
                raise SchemaError(
                    f"variable {self.name!r}: a category that is a number is finite and below "
                    f"1.8e308, found {shown}; write it as a string"
                )
            if number in seen:
                raise SchemaError(
                    f"variable {self.name!r}: categories {seen[number]!r} and {category!r} are "
                    "the same number in double precision; write them as strings"
                )
            seen[number] = category

    @property
    def is_coded(self) -> bool:
        """Whether values are kept as codes 0, 1, ... of categories rather than as numbers."""
        return self.kind in ("categorical", "binary")

    @property
    def n_codes(self) -> int:
        """Number of codes of a categorical or binary variable, the missing one included."""
        return len(self.categories) + self.missing_state

    @property
    def missing_code(self) -> float:
        """The encoded value of 'observed to be missing'."""
        return float(len(self.categories)) if self.is_coded else np.inf

    @cached_property
    def code_of(self) -> dict[Category, int]:
        """Code of every category. (1, 1.0 and True are one value, as in Python.)"""
        return {category: code for code, category in enumerate(self.categories)}

    @cached_property
    def code_of_digits(self) -> dict[int, int]:
        """Codes of texts of digits ("01067"), by the number they spell where it is one alone."""
        digits = [c for c in self.categories if isinstance(c, str) and c.isdecimal()]
        spelled = Counter(map(int, digits))
        return {int(c): self.code_of[c] for c in digits if spelled[int(c)] == 1}

    @cached_property
    def numbers(self) -> np.ndarray[Any, np.dtype[np.float64]] | None:
        """(k,) the categories as numbers, None if one of them is a string."""
        if not self.is_coded or any(isinstance(c, str) for c in self.categories):
            return None
        return np.array([float(c) for c in self.categories])

    @property
    def outcomes(self) -> tuple[Category, ...] | None:
        """Original values that `predict_proba` gives a column each; None for a continuum.

        A numeric variable has outcomes when its grid has atoms and no bin with training data.
        """
        if self.is_coded:
            return self.categories
        if self.grid is not None and self.grid.is_discrete and self.time is not None:
            return tuple(pd.Series(from_numbers(self.grid.atoms, self.time)).tolist())
        if self.grid is not None and self.grid.is_discrete:
            cast = int if self.kind == "count" else float
            return tuple(cast(a) for a in self.grid.atoms)
        return None

    @cached_property
    def outcome_labels(self) -> pd.Index[Any]:
        """The outcomes as labels of columns."""
        return pd.Index(self.outcomes or (), name=self.name)

    def with_grid(self, grid: Grid | None) -> Variable:
        """The same variable on another grid."""
        return replace(self, grid=grid)

    def to_json(self) -> dict[str, Any]:
        """Plain values for headers and messages."""
        return {
            "name": self.name,
            "kind": self.kind,
            "categories": list(self.categories),
            "domain": None if self.domain is None else [_finite(v) for v in self.domain],
            "closed": self.closed,
            "declared": self.declared,
            "unit": self.unit,
            "grid": None if self.grid is None else self.grid.to_json(),
            "missing_state": self.missing_state,
            **({} if self.time is None else {"time": self.time}),
            **({} if self.ordered is None else {"ordered": self.ordered}),
            **({} if self.decimals is None else {"decimals": self.decimals}),
        }

    @staticmethod
    def from_json(record: dict[str, Any]) -> Variable:
        """Inverse of `to_json`."""
        domain = record["domain"]
        if domain is not None:
            low, high = domain
            domain = (
                -np.inf if low is None else float(low),
                np.inf if high is None else float(high),
            )
        grid = record["grid"]
        made = _one_of_many if grid is None and not record["categories"] else Variable
        return made(
            name=record["name"],
            kind=record["kind"],
            categories=tuple(canonical_category(c) for c in record["categories"]),
            domain=domain,
            closed=bool(record["closed"]),
            declared=bool(record["declared"]),
            unit=record["unit"],
            grid=None if grid is None else grid_from_json(grid),
            missing_state=bool(record["missing_state"]),
            time=_optional(record.get("time"), str),
            ordered=_optional(record.get("ordered"), bool),
            decimals=_optional(record.get("decimals"), int),
        )


@lru_cache(maxsize=2**14)
def _one_of_many(**fields: Any) -> Variable:
    """Return a variable of plain fields: thousands of pixels are made once for all clients."""
    return Variable(**fields)


def _optional(value: Any, kind: type) -> Any:
    if value is not None and not isinstance(value, kind):
        raise SchemaError(f"expected {kind.__name__} in the schema, found {value!r}")
    return value


def _finite(value: float) -> float | None:
    """None for an open end: JSON has no infinity."""
    return float(value) if np.isfinite(value) else None
