"""Messages that ask models which stayed at their client, and the answers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedcircuits.arrays import Array, Arrays
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
class Query(Message):
    """Server: a question to models that stayed with you.

    Cells of the rows are sent along (`values`, `observed` over `columns`) and, where there are
    digests of ids, filled up from your own table, all but the hidden columns. A restricted model is
    over `keep`, given the values of `given`. `rows` says which rows are for which model.
    """

    what: str
    models: list[str]
    columns: list[str]
    values: Array
    observed: Array
    order: int = 0
    target: str = ""
    seed: int = 0
    restricted: bool = False
    keep: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    given_values: Array = field(default_factory=lambda: np.zeros(0))
    salt: str = ""
    hidden: list[str] = field(default_factory=list)
    digests: Array = field(default_factory=lambda: np.zeros((0, 12), dtype=np.uint8))
    rows: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Answers(Message):
    """Client: a vector or matrix for each model asked."""

    values: Arrays

    def fault(self, request: Message) -> str | None:
        """One array a model, one entry a row."""
        assert isinstance(request, Query)
        if sorted(self.values) != sorted(set(request.models)):
            return f"answers of {sorted(self.values)} where {sorted(request.models)} were asked"
        for key, array in self.values.items():
            n = len(request.rows.get(key, request.values))
            if array.dtype != np.float64 or (request.what != "covariance" and len(array) != n):
                return f"an answer of shape {array.shape} and {array.dtype} for {n} rows"
        return None
