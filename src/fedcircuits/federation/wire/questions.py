"""Messages that ask models which stayed at their client, and the answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedcircuits.arrays import Array, Arrays
from fedcircuits.errors import StorageError
from fedcircuits.federation.wire.message import Message


@dataclass(frozen=True)
class Ask(Message):
    """Server: evaluate a model of yours on n of your aligned rows, named earlier."""

    model: str
    what: str
    rows: str
    n_rows: int


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


@dataclass(frozen=True)
class ModelQuestion:
    """One question to one model of a client; what each kind returns is in `density.batched`.

    Attributes:
        model: key of the model at the client.
        what: the kind of question.
        order: of a moment.
        columns: names of variables, for a posterior and a covariance.
        seed: of a sample.
    """

    model: str
    what: str
    order: int = 0
    columns: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Query(Message):
    """Server: questions to models that stayed with you, all about the rows sent along.

    Cells of the rows are in `values` and `observed` (n, d) over `columns`; where there are digests
    of ids (n, 12), cells that were not sent are looked up in your own table, all but the `hidden`
    columns. `rows` says by number of the question which rows are meant, by default all. Restricted
    models are over `keep`, given the values of `given`.
    """

    questions: list[Any]
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

    def asked(self) -> list[ModelQuestion]:
        """The questions, typed; anything else is a `StorageError`."""
        try:
            told = [ModelQuestion(**question) for question in self.questions]
            return [replace(question, columns=tuple(question.columns)) for question in told]
        except TypeError as error:
            raise StorageError(f"a question of a query cannot be read: {error}") from None


@dataclass(frozen=True)
class Answers(Message):
    """Client: a vector or matrix for each question, by its number."""

    values: Arrays

    def fault(self, request: Message) -> str | None:
        """One array a question, one entry a row."""
        assert isinstance(request, Query)
        asked = request.asked()
        numbers = [str(at) for at in range(len(asked))]
        if sorted(self.values) != sorted(numbers):
            return f"answers {sorted(self.values)} where {len(asked)} questions were asked"
        for number, question in zip(numbers, asked, strict=True):
            n, array = len(request.rows.get(number, request.values)), self.values[number]
            if array.dtype != np.float64 or (question.what != "covariance" and len(array) != n):
                return f"an answer of shape {array.shape} and {array.dtype} for {n} rows"
        return None
