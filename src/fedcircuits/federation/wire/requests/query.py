"""Messages that put questions to models: about aligned rows in training, about any rows later.

What each reply reveals, and to whom, is in the declarations (`Verb`) at the end of this file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedcircuits.arrays import Array, Arrays
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.names import ModelName
from fedcircuits.federation.wire.verbs import (
    LABEL_ALLOWED,
    Asked,
    Fields,
    Level,
    Reveals,
    Terms,
    Verb,
    declare,
)

# --- during training: aligned rows by name --------------------------------------------------------


@dataclass(frozen=True)
class Ask(Message):
    """Server: evaluate a model on n of the client's aligned rows, named earlier.

    The answer leaves the label out unless `label_in_evidence`.
    """

    model: ModelName
    what: str
    rows: str
    n_rows: int
    label_in_evidence: bool


@dataclass(frozen=True)
class Answer(Message):
    """Client: a vector or matrix, one row for each row asked."""

    values: Array

    def fault(self, request: Message) -> str | None:
        """One entry a row."""
        assert isinstance(request, Ask)
        if self.values.shape[:1] != (request.n_rows,):
            return f"an answer of shape {self.values.shape} for {request.n_rows} rows"
        return None


# --- after training: models that stay at the client -----------------------------------------------


@dataclass(frozen=True)
class ModelQuestion:
    """One question to one model of a client; what each kind returns is in `density.batched`.

    Attributes:
        model: its name at the client.
        what: the kind of question.
        order: of a moment.
        columns: names of variables, for a posterior and a covariance.
        seed: of a sample.
    """

    model: ModelName
    what: str
    order: int = 0
    columns: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Query(Message):
    """Server: questions to models that stay at the client, all about the rows sent along.

    Cells of the rows are in `values` and `observed` (n, d) over `columns`; where there are digests
    of ids (n, 12), cells that were not sent are looked up in the client's own table, all but the
    `hidden` columns. `rows` says by number of the question which rows are meant, by default all.
    Restricted models are over `keep`, given the values of `given`. A cell without a value may be
    known to lie in a set: `event_of` (n, d) is the number of its set in `events`, -1 for none, each
    set written as JSON (`schema.events.region`).
    """

    questions: tuple[ModelQuestion, ...]
    columns: list[str]
    values: Array
    observed: Array
    rows: Arrays = field(default_factory=dict)
    restricted: bool = False
    keep: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    given_values: Array = field(default_factory=lambda: np.zeros(0))
    salt: str = ""
    hidden: list[str] = field(default_factory=list)
    digests: Array = field(default_factory=lambda: np.zeros((0, 12), dtype=np.uint8))
    events: list[str] = field(default_factory=list)
    event_of: Array = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int32))


@dataclass(frozen=True)
class Answers(Message):
    """Client: a vector or matrix for each question, by its number."""

    values: Arrays

    def fault(self, request: Message) -> str | None:
        """One array a question, one entry a row."""
        assert isinstance(request, Query)
        numbers = [str(at) for at in range(len(request.questions))]
        if sorted(self.values) != sorted(numbers):
            return f"answers {sorted(self.values)} where {len(numbers)} questions were asked"
        for number, question in zip(numbers, request.questions, strict=True):
            n, array = len(request.rows.get(number, request.values)), self.values[number]
            if array.dtype != np.float64 or (question.what != "covariance" and len(array) != n):
                return f"an answer of shape {array.shape} and {array.dtype} for {n} rows"
        return None


# --- what each of them is -------------------------------------------------------------------------


def _query(request: Query, terms: Terms, label: str | None) -> Asked:
    of_questions = [name for question in request.questions for name in question.columns]
    names = (*request.columns, *request.keep, *request.given, *of_questions)
    columns = tuple(dict.fromkeys(name for name in names if name))
    for what in {question.what: None for question in request.questions}:
        if what not in terms.queries:
            answered = ", ".join(map(repr, terms.queries)) or "none"
            return Asked(columns, f"the query {what!r}; answered are {answered}")
    if len(request.digests) and not terms.rows_by_id:
        return Asked(columns, "rows looked up by id (rows_by_id is false): send their cells")
    if len(request.digests) and terms.label != "sent" and label not in (None, *request.hidden):
        # The density of a row with its own label, beside that of the others, reveals the label.
        return Asked(
            columns, f"rows looked up by id with their label; {LABEL_ALLOWED[terms.label]}"
        )
    return Asked(columns)


def _shown(asked: Fields) -> Level:
    """About rows looked up here by id: evidence of single rows of this client's table."""
    return Level.ROW_EVIDENCE if len(asked.get("digests", ())) else Level.AGGREGATES


ASK = declare(
    Verb(
        "ask",
        Ask,
        Answer,
        "validation",
        (
            Reveals(
                "server",
                Level.ROW_EVIDENCE,
                "log-likelihood of named aligned rows under a model: with the models the cells of "
                "these rows can be found",
            ),
        ),
        reads_models=True,
        reveals_label=lambda asked: bool(asked.get("label_in_evidence", True)),
    )
)
QUERY = declare(
    Verb(
        "query",
        Query,
        Answers,
        "query",
        (
            Reveals(
                "server",
                Level.AGGREGATES,
                "answers of the client's models about rows that were sent; about rows looked up by "
                "id (`rows_by_id`) row evidence",
            ),
        ),
        reads_models=True,
        keeps_reply=False,
        asks=_query,
        shows=_shown,
    )
)
