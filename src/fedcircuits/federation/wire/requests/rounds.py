"""Messages of learning in rounds of sums (`joint` where rows are split).

What each reply reveals, and to whom, is in the declarations (`Verb`) at the end of this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcircuits.arrays import Array, Arrays
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.names import JobId
from fedcircuits.federation.wire.verbs import Asked, Fields, Level, Reveals, Terms, Verb, declare


@dataclass(frozen=True)
class Round(Message):
    """Server: what all clients sent in the round before, summed; nothing in the first one.

    `send` asks for the model when it is made: all clients hold the same, one is enough. Where
    clients are named, the terms are to be masked among them (`masking.py`), by a nonce of the run.
    """

    job: JobId
    columns: list[str]
    number: int
    send: bool
    masked_with: list[str]
    nonce: str
    sums: Arrays

    @property
    def series(self) -> str:
        return str(self.job)


@dataclass(frozen=True)
class RoundDone(Message):
    """Client: what its rows add to the next sum; in the end the model instead.

    `rows` and `parameters` are of the model, 0 before it is made.
    """

    made: bool
    rows: float
    parameters: int
    seconds: Array
    reports: list[Any]
    sums: Arrays
    model: Array

    def fault(self, request: Message) -> str | None:
        """Sums or a model, and the model where it was asked for."""
        assert isinstance(request, Round)
        if self.made and (self.sums or bool(self.model.size) is not request.send):
            return "sums together with a model, or a model that was not asked for"
        if not self.made and not self.sums:
            return "neither sums nor a model"
        if request.masked_with and any(a.dtype != np.int64 for a in self.sums.values()):
            return "sums that are not masked"
        return None


def _round(request: Round, terms: Terms, _: str | None) -> Asked:
    return Asked(tuple(request.columns), terms.stays(not request.send))


def _shown(asked: Fields) -> Level:
    return Level.MASKED_SUMS if asked.get("masked_with") else Level.ROW_EVIDENCE


ROUND = declare(
    Verb(
        "round",
        Round,
        RoundDone,
        "training",
        (
            Reveals(
                "server",
                Level.ROW_EVIDENCE,
                "expected counts and gradients summed over the client's rows, cells of few rows "
                "among them; with two clients or more masked: sums over all clients alone",
            ),
            Reveals("other clients", Level.MASKED_SUMS, "the sums over all clients"),
            Reveals("model", Level.AGGREGATES, "one model of the rows of all clients"),
        ),
        costly=True,
        changes_state=True,
        makes_models=True,
        reads_models=True,
        asks=_round,
        shows=_shown,
        groups={"rows behind a model": lambda reply: [reply.rows]},
    )
)
