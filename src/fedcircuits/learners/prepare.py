"""Prepare a table for learners that work on states: missing values, grids, codes, warnings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from fedcircuits.arrays import Array, BoolArray, FloatArray, IntArray
from fedcircuits.errors import LearningError
from fedcircuits.schema import Table, Variable
from fedcircuits.schema.grids.sketch import Sketch
from fedcircuits.schema.reading.batches import RowBatches
from fedcircuits.schema.schema import label_grid
from fedcircuits.schema.variable import is_often_missing

Missing = Literal["state", "marginalise"]
# A column of at least this many rows, all different, is a name for the row and not a measurement.
ID_ROWS = 30
# Rank correlation from which a pair of numbers gets a warning; rows and columns that are examined.
NEAR_COPY, NEAR_ROWS, NEAR_COLUMNS = 0.999, (50, 2_000), 200
# Chance that gaps which do not depend on the label are said to, over all columns.
TELLING = 0.001
# Up to this many rows the order of the rows is made not to matter.
CANONICAL_ROWS = 20_000


@dataclass(frozen=True)
class Coded:
    """A table as codes, ready for learners that work on states.

    Attributes:
        table: the rows learned from; its schema has grids, and lacks columns that were left out.
        codes: (n, D) state of every cell, -1 where not observed.
        cards: number of states of every column.
        ordered: whether neighbouring states of a column are neighbours on an axis.
        warnings: what the user should know.
    """

    table: Table
    codes: NDArray[np.int32]
    cards: tuple[int, ...]
    ordered: tuple[bool, ...]
    warnings: tuple[str, ...]

    def without_rows(self) -> Coded:
        """What is known of the columns, so that the rows can be let go of."""
        return replace(self, table=Table.empty(self.table.schema, 0), codes=self.codes[:0].copy())

    def bins(self, columns: list[int]) -> tuple[IntArray, ...]:
        """States of each of some columns that are neighbouring bins of a grid, along the axis."""
        grids = [self.table.schema.variables[at].grid for at in columns]
        none = np.zeros(0, dtype=np.int64)
        return tuple(none if grid is None else grid.interval_states for grid in grids)


def prepare(
    table: Table,
    *,
    label: str | None,
    missing: Missing,
    n_bins: int | None = None,
    agreed_schema: bool = False,
    numeric_label: bool = False,
) -> Coded:
    """Leave out what cannot be learned, give missing values their state, make grids and codes.

    Args:
        table: training rows.
        label: column to be predicted; rows without it are left out.
        missing: "state" models frequent missingness as a state of its own, "marginalise" leaves
            missing cells out of the likelihood.
        n_bins: quantile bins of continuous columns (default: by rows).
        agreed_schema: whether no column is left out and no state added (`LearnsAgreedSchema`).
        numeric_label: whether the learner takes a label that is a number.
    """
    if missing not in ("state", "marginalise"):
        raise LearningError(f"missing is 'state' or 'marginalise', found {missing!r}")
    table, warnings = _with_label(table, label, numeric_label)
    table, left_out = (table, []) if agreed_schema else without_ids(table, label)
    if missing == "state" and not agreed_schema:
        table = _with_missing_states(table, label)
    unseen = [v.name for at, v in enumerate(table.schema) if not table.observed[:, at].any()]
    if unseen and not agreed_schema:  # agreed states need no value of one's own
        raise LearningError(f"variable {unseen[0]!r}: not one value is observed; drop the column")
    table = _with_label_grid(table, label)
    table = replace(table, schema=table.schema.with_grids(table, n_bins))
    warnings += left_out + column_warnings(table) + _telling_gaps(table, label)
    codes = np.stack([_codes(table, at) for at in range(len(table.schema))], axis=1)
    cards = tuple(n_states(v) for v in table.schema)
    ordered = tuple(not v.is_coded for v in table.schema)
    return Coded(table, codes, cards, ordered, tuple(warnings))


def coded_batches(
    coded: Coded, label: str | None, rows: RowBatches
) -> Iterator[tuple[NDArray[np.int32], FloatArray]]:
    """Yield all rows in batches, codes (n, D) and weights (n,), coded as some of them were.

    Args:
        coded: those rows; columns, missing states and grids are theirs.
        label: rows without it are left out.
        rows: all of them.
    """
    schema = coded.table.schema
    for batch in rows.batches():
        table = replace(batch.columns(list(schema.names)), schema=schema)
        if label is not None:
            table = table.rows(table.observed[:, schema.position(label)])
        table = _in_missing_states(table)
        codes = np.stack([_codes(table, at) for at in range(len(schema))], axis=1)
        yield codes, table.row_weights


def _in_missing_states(table: Table) -> Table:
    """Return the table with missing cells in the state that their column has for them, if any."""
    values, observed = table.values.copy(), table.observed.copy()
    for at, variable in enumerate(table.schema):
        if variable.missing_state:
            values[~observed[:, at], at] = variable.missing_code
            observed[:, at] = True
    return replace(table, values=values, observed=observed)


def mean_log_within(table: Table) -> float:
    """Mean over the rows of the log-density of a row's values given their states.

    Learners on states report likelihoods of states; this is what those of values have besides.
    """
    total = np.zeros(len(table))  # (n,)
    for at, variable in enumerate(table.schema):
        if variable.grid is not None:
            seen = table.observed[:, at]
            total[seen] += variable.grid.log_within(table.values[seen, at])
    return float(np.average(total, weights=table.weights))


def in_canonical_order(table: Table) -> Table:
    """Return small tables with rows sorted and repeated by their weights.

    Rows are held out at random while learning; sorted first, the model depends neither on the
    order of the rows nor on whether a row is repeated or weighted.
    """
    if len(table) > CANONICAL_ROWS:
        return table
    if table.weights is not None:
        whole = bool((table.weights == np.round(table.weights)).all())
        if not whole or table.weights.sum() > 4 * CANONICAL_ROWS:
            return table
        times = np.repeat(np.arange(len(table)), table.weights.astype(np.int64))
        table = replace(table.rows(times), weights=None)
    keys = np.where(table.observed, table.values, -np.inf)  # (n, D)
    return table.rows(np.lexsort(keys.T[::-1]))


def _with_label(table: Table, label: str | None, numeric: bool) -> tuple[Table, list[str]]:
    """Return the rows that have a label; an error where there are none."""
    if len(table) == 0:
        raise LearningError("cannot learn from a table without rows")
    if table.weights is not None and table.weights.sum() <= 0:
        raise LearningError("cannot learn: every row has weight 0")
    if label is None:
        return table, []
    at = table.schema.position(label)
    if not (table.schema.variables[at].is_coded or numeric):
        raise LearningError(
            f"the label {label!r} must be categorical or binary here, found "
            f"{table.schema.variables[at].kind}: declare kinds={{{label!r}: 'categorical'}}, or "
            "learn from one table, where a label may be a number"
        )
    if len(table.schema) == 1:
        raise LearningError(f"there is no column besides the label {label!r}")
    known = table.observed[:, at]
    if not known.any():
        raise LearningError(f"the label {label!r} is missing in every row")
    if known.all():
        return table, []
    lost = int((~known).sum())
    return table.rows(known), [f"left out {lost} row(s) without a value of the label {label!r}"]


def _with_label_grid(table: Table, label: str | None) -> Table:
    """Return the table with a grid for a numeric label: few states, which serve as classes."""
    if label is None or table.schema[label].is_coded or table.schema[label].grid is not None:
        return table
    at = table.schema.position(label)
    variable = table.schema.variables[at]
    grid = label_grid(variable, Sketch.of(table.values[:, at], table.weights))
    return replace(table, schema=table.schema.with_variables([variable.with_grid(grid)]))


def label_cuts(variable: Variable) -> FloatArray | None:
    """Return the ends between cells of a numeric label, None for one with classes.

    Cells are the intervals of its grid; one with several atoms is cut between these.
    """
    if variable.is_coded:
        return None
    assert variable.grid is not None
    inner, atoms = variable.grid.edges[1:-1], variable.grid.atoms
    at = np.searchsorted(inner, atoms, side="right")
    together = np.flatnonzero(at[1:] == at[:-1])
    return np.union1d(inner, (atoms[together] + atoms[together + 1]) / 2)


def without_ids(table: Table, label: str | None) -> tuple[Table, list[str]]:
    """Return the table without columns that only number or name the rows, and warnings."""
    ids = [
        v.name
        for at, v in enumerate(table.schema)
        if v.name != label and _is_id(v, table.values[table.observed[:, at], at])
    ]
    if not ids:
        return table, []
    kept = [name for name in table.schema.names if name not in ids]
    if not [name for name in kept if name != label]:
        raise LearningError(f"nothing is left to learn: {ids} only name the rows")
    warnings = [
        f"left out {name!r}: every row has a value of its own, as an id has" for name in ids
    ]
    return table.columns(kept), warnings


def _is_id(variable: Variable, seen: FloatArray) -> bool:
    if seen.size < ID_ROWS or variable.declared:
        return False
    distinct = np.unique(seen)
    if distinct.size < seen.size:
        return False
    if variable.kind == "categorical":
        return True
    if variable.time is not None:
        return False  # a day after the other is a series, no numbering
    # Numbers that differ in every row are ordinary; consecutive whole ones are a numbering.
    whole = bool((distinct == np.round(distinct)).all())
    return whole and distinct[-1] - distinct[0] == distinct.size - 1


def _with_missing_states(table: Table, label: str | None) -> Table:
    """Return the table with a state "missing" in columns that often lack a value."""
    values, observed = table.values, table.observed
    changed: list[Variable] = []
    for at, variable in enumerate(table.schema):
        gaps = ~table.observed[:, at]
        wanted = variable.missing_state or (
            is_often_missing(int(gaps.sum()), len(table)) and variable.grid is None
        )
        if variable.name == label or gaps.all() or not wanted:
            continue
        if not changed:
            values, observed = values.copy(), observed.copy()
        changed.append(replace(variable, missing_state=True))
        values[gaps, at] = variable.missing_code
        observed[gaps, at] = True
    schema = table.schema.with_variables(changed)
    return replace(table, schema=schema, values=values, observed=observed)


def column_warnings(table: Table) -> list[str]:
    """Return warnings about empty, constant and repeated columns, and about few rows."""
    warnings = []
    seen_before: dict[bytes, str] = {}
    for at, variable in enumerate(table.schema):
        column, seen = table.values[:, at], table.observed[:, at]
        if not seen.any():
            warnings.append(f"{variable.name!r} has no value in the training rows")
            continue
        if (column[seen] == column[seen][0]).all():  # all missing, as a state, among them
            warnings.append(f"{variable.name!r} is constant in the training rows")
            continue
        key = np.where(seen, column, np.nan).tobytes()
        if key in seen_before:
            warnings.append(f"{variable.name!r} repeats {seen_before[key]!r} value for value")
        seen_before.setdefault(key, variable.name)
    warnings += _near_copies(table, set(seen_before.values()))
    if len(table) < 50:
        warnings.append(f"only {len(table)} rows to learn from")
    return warnings


def _telling_gaps(table: Table, label: str | None) -> list[str]:
    """Return warnings about columns where it says something about the label that a value lacks."""
    if label is None:
        return []
    at = table.schema.position(label)
    variable = table.schema.variables[at]
    labels = column_codes(variable, table.values[:, at])
    stateful = [(column, v) for column, v in enumerate(table.schema) if v.missing_state]
    found = []
    for column, v in stateful:
        missing = table.values[:, column] == v.missing_code
        if gaps_tell(missing, labels, table.row_weights, len(stateful)):
            found.append(
                f"that {v.name!r} lacks a value says something about {label!r}: queries sum out "
                "None and NaN; where a row lacks it for the reason training rows did, ask with "
                f"model.schema.mark_missing(rows, [{v.name!r}])"
            )
    return found


def gaps_tell(missing: BoolArray, labels: Array, weights: FloatArray, n_tests: int) -> bool:
    """Return whether the shares of the labels differ where a value is missing (chi-squared).

    Args:
        missing: (n,) whether the row lacks the value.
        labels: (n,) the label.
        weights: (n,) of the rows.
        n_tests: how many columns are asked about.
    """
    _, codes = np.unique(labels, return_inverse=True)
    share = np.bincount(codes, weights) / weights.sum()
    counts = np.bincount(codes, weights * missing, minlength=share.size)
    size = counts.sum()
    if not 0 < size < weights.sum():
        return False
    away = np.square(counts - size * share) / np.where(share > 0, share, 1.0)
    excess = float(away.sum() * (1 / size + 1 / (weights.sum() - size)))
    return bool(chdtrc(max(share.size - 1, 1), excess) * n_tests < TELLING)


def _near_copies(table: Table, names: set[str]) -> list[str]:
    """Return warnings about named numeric columns that nearly repeat another one."""
    least, most = NEAR_ROWS
    columns = [at for at, v in enumerate(table.schema) if v.name in names and not v.is_coded][
        :NEAR_COLUMNS
    ]
    rows = np.linspace(0, len(table) - 1, num=min(len(table), most), dtype=np.int64)
    ranks = np.zeros((len(columns), rows.size))  # about their mean; 0 where missing
    for i, at in enumerate(columns):
        seen = table.observed[rows, at]
        if seen.sum() >= least:
            mine = mean_ranks(table.values[rows[seen], at])
            ranks[i, seen] = mine - mine.mean()
    size = np.sqrt(np.square(ranks).sum(axis=1))
    ranks /= np.where(size > 0, size, 1.0)[:, None]
    together = ranks @ ranks.T  # (d, d) rank correlations
    found = []
    for i in range(len(columns)):
        near = np.flatnonzero(np.abs(together[:i, i]) > NEAR_COPY)
        if near.size:
            one, other = (table.schema.names[columns[k]] for k in (i, int(near[0])))
            found.append(
                f"{one!r} follows {other!r} almost exactly "
                f"(rank correlation {together[near[0], i]:.4f})"
            )
    return found


def n_states(variable: Variable) -> int:
    """Number of states of a variable with codes or a grid."""
    if variable.is_coded:
        return variable.n_codes
    assert variable.grid is not None
    return variable.grid.n_states


def column_codes(variable: Variable, values: FloatArray) -> NDArray[np.int64]:
    """(n,) state of each encoded value of one variable."""
    if variable.is_coded:
        return values.astype(np.int64)
    assert variable.grid is not None
    return variable.grid.encode(values)


def _codes(table: Table, at: int) -> NDArray[np.int32]:
    codes = column_codes(table.schema.variables[at], table.values[:, at])
    return np.where(table.observed[:, at], codes, -1).astype(np.int32)


def table_family(variable: Variable) -> str:
    """Name of the leaf family that holds a table of the variable's states."""
    by_kind = {"continuous": "histogram", "count": "count_table"}
    return by_kind.get(variable.kind, "categorical")


def mean_ranks(values: FloatArray) -> FloatArray:
    """(n,) ranks from 1, equal values sharing their mean."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[which])
