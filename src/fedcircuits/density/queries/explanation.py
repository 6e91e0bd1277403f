"""`Explanation`: the evidence of each column for a prediction, in log-odds that add up to it.

The evidence of a column is that of the column alone: log p(x_j | y) / p(x_j | not y), from the
model's exact marginals. It is 0 where the cell is missing. Columns with the same information are
each counted in full, and interactions are in none of them, so one remainder (`REMAINDER`) closes
the sum:

    log-odds(y | x) = log-odds(y) + sum_j evidence_j + remainder
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.density.hooks import Hooks
from fedcircuits.errors import QueryError, unknown_name
from fedcircuits.schema import Table
from fedcircuits.schema.table import Events

if TYPE_CHECKING:
    from fedcircuits.schema import Variable

PRIOR, REMAINDER, LOG_ODDS = "prior", "overlap and interactions", "log-odds"


@dataclass(frozen=True, eq=False)
class Explanation:
    """Evidence for one class of a target in each row, in nats of log-odds against all others.

    Attributes:
        target: the variable that is predicted.
        value: (n,) the class whose log-odds are explained.
        columns: prior, one column of evidence for each variable, remainder and their sum.
        clients: the same with one column for each client, or group of clients that hold the same
            variables; None for a model of one table.
    """

    target: str
    value: pd.Series[Any]
    columns: pd.DataFrame
    clients: pd.DataFrame | None = None

    @property
    def log_odds(self) -> pd.Series[float]:
        """(n,) log p(y | x) / p(not y | x), as `predict_proba` gives it."""
        return self.columns[LOG_ODDS]

    def strongest(self, row: Any = None, n: int = 5) -> pd.Series[float]:
        """Returns the columns of most evidence for or against in one row, by default the first."""
        mine = self.columns.iloc[0] if row is None else self.columns.loc[row]
        mine = mine.drop([PRIOR, LOG_ODDS])
        return mine[mine.abs().sort_values(ascending=False).index[:n]]

    def __repr__(self) -> str:
        """Returns the strongest evidence of the first rows in words."""
        lines = [f"Explanation of {self.target!r} in {len(self.value)} row(s), in log-odds"]
        for at in range(min(3, len(self.value))):
            row = self.columns.iloc[at]
            evidence = row.drop([PRIOR, LOG_ODDS, REMAINDER])
            best = evidence[evidence.abs().sort_values(ascending=False).index[:4]]
            parts = ", ".join(f"{name} {value:+.2f}" for name, value in best.items())
            lines.append(
                f"- {self.value.iloc[at]!r}: {row[LOG_ODDS]:+.2f} = prior {row[PRIOR]:+.2f}, "
                f"{parts}, {len(evidence) - len(best)} more {evidence.sum() - best.sum():+.2f}, "
                f"{REMAINDER} {row[REMAINDER]:+.2f}"
            )
        return "\n".join(lines)


def explain(
    density: Hooks,
    table: Table,
    target: int,
    posterior: FloatArray,
    value: object | None,
    groups: Mapping[str, Sequence[str]],
) -> Explanation:
    """Returns the evidence of each column and of each group of columns in each row.

    Args:
        density: the model; its exact part gives the evidence.
        table: (n, D) rows, the target hidden.
        target: its position.
        posterior: (n, k) of the target in the rows.
        value: the class to explain, None for the most probable one of each row.
        groups: names of columns, by the name of a group.
    """
    variable = density.schema.variables[target]
    chosen = _chosen(variable, posterior, value)
    names = [v.name for at, v in enumerate(density.schema) if at != target]
    sets = [[density.schema.position(name)] for name in names]
    sets += [
        [density.schema.position(name) for name in group if name != variable.name]
        for group in groups.values()
    ]
    prior, evidence = _evidence(density, table, target, chosen, sets)
    answer = log_odds(posterior, chosen)
    assert variable.outcomes is not None
    labels = pd.Series(list(variable.outcomes)).to_numpy()
    return Explanation(
        variable.name,
        pd.Series(labels[chosen], index=table.index, name=variable.name),
        summed(table.index, prior, evidence[:, : len(names)], names, answer),
        summed(table.index, prior, evidence[:, len(names) :], list(groups), answer)
        if groups
        else None,
    )


def _chosen(variable: Variable, posterior: FloatArray, value: object | None) -> IntArray:
    """(n,) the outcome of each row that is explained."""
    if value is None:
        return np.asarray(posterior.argmax(axis=1))
    found = [at for at, each in enumerate(variable.outcomes or ()) if each == value]
    if not found:
        known = [str(each) for each in variable.outcomes or ()]
        raise QueryError(unknown_name("value", str(value), known, f"variable {variable.name!r}"))
    return np.full(len(posterior), found[0])


def log_odds(posterior: FloatArray, chosen: IntArray) -> FloatArray:
    """(n,) log p(y | x) / p(not y | x) of the chosen outcomes; infinite where one of them is 0."""
    rows = np.arange(len(posterior))
    others = posterior.copy()
    others[rows, chosen] = 0.0
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(posterior[rows, chosen]) - np.log(others.sum(axis=1)))


def summed(
    index: pd.Index[Any],
    prior: FloatArray,
    evidence: FloatArray,
    names: list[str],
    answer: FloatArray,
) -> pd.DataFrame:
    """Returns prior, evidence, the remainder that closes the sum, and the sum.

    Args:
        index: labels of the rows.
        prior: (n,) log-odds without evidence.
        evidence: (n, d) evidence.
        names: of the d columns.
        answer: (n,) log-odds given all cells.
    """
    with np.errstate(invalid="ignore"):
        known = prior + evidence.sum(axis=1)
        remainder = np.where(known == answer, 0.0, answer - known)  # infinities that agree
    frame = pd.DataFrame(evidence, index=index, columns=names)
    frame.insert(0, PRIOR, prior, allow_duplicates=True)
    return frame.assign(**{REMAINDER: remainder, LOG_ODDS: answer})


def _evidence(
    density: Hooks, table: Table, target: int, chosen: IntArray, sets: list[list[int]]
) -> tuple[FloatArray, FloatArray]:
    """(n,) prior log-odds and (n, s) evidence of sets of columns, by one question to the model."""
    n, n_columns = table.values.shape
    known = table.known
    which, masks = [np.zeros(min(n, 1), dtype=np.int64)], [np.zeros((min(n, 1), n_columns), bool)]
    places: list[tuple[IntArray, IntArray]] = []  # of each set: rows, and their questions
    total = which[0].size
    for columns in sets:
        rows = np.flatnonzero(known[:, columns].any(axis=1))
        first, inverse = _distinct(table, columns, rows)
        mask = np.zeros((first.size, n_columns), dtype=bool)
        mask[:, columns] = True
        places.append((rows, total + inverse))
        which.append(rows[first])
        masks.append(mask)
        total += first.size
    asked = _only(table.rows(np.concatenate(which)), np.concatenate(masks))
    answers = density.exact_part.posterior_table(asked, target)  # (total, k)
    prior = log_odds(np.repeat(answers[:1], n, axis=0), chosen)
    evidence = np.zeros((n, len(sets)))
    for at, (rows, questions) in enumerate(places):
        with np.errstate(invalid="ignore"):
            evidence[rows, at] = log_odds(answers[questions], chosen[rows]) - prior[rows]
    return prior, evidence


def _distinct(table: Table, columns: list[int], rows: IntArray) -> tuple[IntArray, IntArray]:
    """Positions of rows that differ in some columns, and which of them each row is like."""
    cells = [table.observed[rows][:, columns], np.where(
        table.observed[rows][:, columns], table.values[rows][:, columns], 0.0
    )]  # fmt: skip
    if table.events is not None:
        cells.append(table.events.which[rows][:, columns])
    _, first, inverse = np.unique(
        np.hstack([c.astype(float) for c in cells]), axis=0, return_index=True, return_inverse=True
    )
    return first, inverse.reshape(-1)


def _only(table: Table, mask: BoolArray) -> Table:
    """The table with nothing known outside a mask (n, D) of cells."""
    events = table.events
    if events is not None:
        events = Events(events.regions, np.where(mask, events.which, -1))
    return replace(table, observed=table.observed & mask, events=events)
