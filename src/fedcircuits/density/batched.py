"""Puts many questions to many densities at once; those at one remote place go in one batch.

`ask` is the one way in which a circuit over whole densities reaches them. A density in this process
answers by its hooks; one that stays elsewhere names the place, and all questions to a place are
answered together, whatever their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.errors import QueryError
from fedcircuits.schema import Table

if TYPE_CHECKING:
    from fedcircuits.density.density import Density

What = Literal[
    "log_prob", "posterior", "moment", "variance", "covariance", "sample", "mpe", "classify"
]


@dataclass(frozen=True, eq=False)
class Question:
    """One question to one density about some rows.

    Attributes:
        model: the density that is asked.
        what: "log_prob" (k,), "posterior" of columns[0] (k, outcomes), "moment" and "variance"
            (k, D), "covariance" of `columns` given the first row (d, d), "sample" (k, D), "mpe"
            (k, D + 1): the completed rows and, last, their log-density; "classify" is for
            classifiers, which are no densities.
        rows: evidence over the variables of the density or more; questions may share it.
        which: (k,) numbers of the rows that are meant, None for all.
        order: of the moment.
        columns: names of variables, for a posterior and a covariance.
        seed: of the sample.
    """

    model: Density
    what: What
    rows: Table
    which: IntArray | None = None
    order: int = 0
    columns: tuple[str, ...] = ()
    seed: int = 0


class Place(Protocol):
    """Where densities are that can only be asked by message."""

    def answer(self, questions: Sequence[Question]) -> list[FloatArray]:
        """Answers of densities that are all at this place, in the order of the questions."""
        ...


@dataclass(frozen=True)
class Pending:
    """Questions that were not asked yet, and what to make of their answers."""

    questions: list[Question]
    combine: Callable[[list[FloatArray]], FloatArray]


def ask(questions: Sequence[Question]) -> list[FloatArray]:
    """Answers in the order of the questions: one batch for each place, the others by hooks."""
    answers: dict[int, FloatArray] = {}
    by_place: dict[Place, list[int]] = {}
    for at, question in enumerate(questions):
        if question.model.place is None:
            rows, which = question.rows, question.which
            rows = rows if which is None else rows.rows(which)
            answers[at] = answer_here(question, own_rows(question.model, rows))
        else:
            by_place.setdefault(question.model.place, []).append(at)
    for place, numbers in by_place.items():
        found = place.answer([questions[at] for at in numbers])
        answers |= dict(zip(numbers, found, strict=True))
    return [answers[at] for at in range(len(questions))]


def settle(pending: Sequence[Pending]) -> list[FloatArray]:
    """Asks the questions of all together and returns what each makes of its answers."""
    answers = iter(ask([question for each in pending for question in each.questions]))
    return [each.combine([next(answers) for _ in each.questions]) for each in pending]


def own_rows(model: Density, rows: Table) -> Table:
    """The columns of a density's own variables, in its order."""
    at = [rows.schema.position(name) for name in model.schema.names]
    values, observed = rows.values[:, at], rows.observed[:, at]
    events = None if rows.events is None else rows.events.part(slice(None), at)
    return replace(rows, schema=model.schema, values=values, observed=observed, events=events)


def answer_here(question: Question, rows: Table) -> FloatArray:
    """The answer of a density's own hooks; `rows` are those meant, over its own variables."""
    model, what = question.model, question.what
    columns = [model.schema.position(name) for name in question.columns]
    if what == "log_prob":
        return model.log_prob_table(rows) if rows.known.any() else np.zeros(len(rows))
    if what == "posterior":
        return model.posterior_table(rows, columns[0])
    if what == "moment":
        return model.moment_table(rows, question.order)
    if what == "variance":
        return model.variance_table(rows)
    if what == "covariance":
        return model.covariance_table(rows, columns)
    if what == "sample":
        return model.sample_table(rows, np.random.default_rng(question.seed))
    if what == "mpe":
        values, log_prob = model.completed_table(rows)
        return np.column_stack([values, log_prob])
    raise QueryError(f"a density cannot be asked {what!r}")
