"""Learning in rounds of sums: every client sends sums over its rows, all take the same step.

A learner that can do this is a generator (`LearnsInRounds`). The server adds what clients send and
sends the sum back; it needs to know nothing of the learner, and a sum is all it has to see. After
the last round every client holds the same model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from fedcircuits.arrays import Arrays
from fedcircuits.density import Density, LearnsInRounds
from fedcircuits.density.contracts import Rounds
from fedcircuits.errors import MALFORMED, ClientError, FedcircuitsError
from fedcircuits.federation.client.dispatch import seconds_since
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.ids import fingerprint
from fedcircuits.federation.wire.masking import add_masked
from fedcircuits.federation.wire.names import JobId
from fedcircuits.schema import Table


class Session:
    """One client's part in a series of rounds.

    Attributes:
        number: of the round that is answered next.
        model: None until the last round.
        after: digest of the requests that the terms follow from.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self.number = 0
        self.model: Density | None = None
        self.after = fingerprint(b"rounds")

    def begin(self) -> Arrays:
        """What this client's rows add to the first sum."""
        self.number = 1
        return next(self._rounds)

    def go_on(self, sums: Arrays) -> Arrays:
        """What they add to the next; nothing where the model is made."""
        try:
            terms = self._rounds.send(sums)
        except StopIteration as stopped:
            self.model = stopped.value
            return {}
        self.number += 1
        return terms


class Sessions:
    """A client's series of rounds under way, by job."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._open: dict[JobId, Session] = {}

    def answer(
        self, request: m.Round, begin: Callable[[], Rounds], n_rows: int
    ) -> tuple[m.RoundDone, Density | None, str]:
        """The reply to one round, the model where it is made, and a digest of what led to them.

        Args:
            request: the round.
            begin: makes the rounds of the client's learner, for the first one.
            n_rows: of the client.
        """
        start = time.process_time()
        if request.number == 0:
            self._open[request.job] = Session(begin())
        session = self._open.get(request.job)
        if session is None or session.number != request.number:
            raise FedcircuitsError(f"client {self._client!r} is not at round {request.number}")
        try:
            terms = session.begin() if request.number == 0 else session.go_on(request.sums)
        except MALFORMED as error:
            if not request.sums:
                raise
            of = ", ".join(map(repr, request.masked_with)) or "all clients"
            raise FedcircuitsError(
                f"no step can be taken with the sums over {of}: {error}"
            ) from None
        session.after = fingerprint(session.after.encode(), replace(request, send=False).to_bytes())
        nothing, model = np.zeros(0, dtype=np.uint8), session.model
        seconds = seconds_since(start)
        if model is None:
            return m.RoundDone(False, 0.0, 0, seconds, [], terms, nothing), None, session.after
        del self._open[request.job]
        sent = m.encoded(model) if request.send else nothing
        size, reports = model.n_parameters, m.report_of(model)
        made = m.RoundDone(True, float(n_rows), size, seconds, reports, {}, sent)
        return made, model, session.after


def add_up(terms: Mapping[str, Arrays], *, masked: bool = False) -> Arrays:
    """Sums over clients, in the order of their names; all must send the same arrays.

    Args:
        terms: by client.
        masked: whether they are masked terms (`masking.py`).
    """
    names = sorted(terms)
    shapes = [{key: array.shape for key, array in terms[name].items()} for name in names]
    for name, found in zip(names, shapes, strict=True):
        if found != shapes[0]:
            raise ClientError(
                name,
                f"its sums do not fit those of {names[0]!r}: all clients need the same learner "
                "with the same options",
            )
    if masked:
        return add_masked({name: terms[name] for name in names})
    total = {key: array.astype(float) for key, array in terms[names[0]].items()}
    for name in names[1:]:
        total = {key: total[key] + terms[name][key] for key in total}
    return total


def rounds_of(learner: object, table: Table, rng: np.random.Generator, client: str) -> Rounds:
    """The rounds of a client's learner."""
    if not isinstance(learner, LearnsInRounds):
        raise FedcircuitsError(
            f"client {client!r}: a learner of type {type(learner).__name__} cannot learn in rounds "
            "of sums; hclt and mixture can"
        )
    return learner.in_rounds(table, rng)
