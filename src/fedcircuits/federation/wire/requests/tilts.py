"""Messages about the tilt of the label: fitted to a client's own columns, applied to its models.

A client fits what each state of its columns adds to the log-odds of the classes, given the scores
of the same rows from other clients' columns. These pass the server sealed, 3 bits a row and class
(`wire/sealing.py`); the tables themselves are aggregates and part of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcircuits.arrays import Array, Arrays
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.names import ModelName
from fedcircuits.federation.wire.requests.handshake import Ready
from fedcircuits.federation.wire.requests.validation import Piece, Sealed
from fedcircuits.federation.wire.verbs import (
    Asked,
    Level,
    Reveals,
    Terms,
    Verb,
    are_counts,
    declare,
)

MOST_ODDS = 300.0  # of an entry: what no rows can tell, and more would leave what a double holds


@dataclass(frozen=True)
class TiltTables:
    """A tilt as it travels.

    Attributes:
        columns: names.
        widths: (D,) states of each.
        c: (Y,) class constants.
        g: (Y, W) the tables side by side.
        counts: (Y,) rows of each class behind it.
    """

    columns: list[str]
    widths: Array
    c: Array
    g: Array
    counts: Array

    def fault(self) -> str | None:
        """Return what is wrong with the shapes or numbers, None where nothing is."""
        shape = (self.c.size, int(self.widths.sum()) if self.widths.size else 0)
        if self.widths.shape != (len(self.columns),) or self.g.shape != shape:
            return f"tables of shape {self.g.shape} for {len(self.columns)} columns"
        if self.counts.shape != self.c.shape or self.c.ndim != 1:
            return "counts of other classes than the tables'"
        if not are_counts(self.counts) or (self.c.size and not self.counts.any()):
            return "tables of numbers of rows that are no counts"
        known = self.c[self.c > -np.inf]  # a class without rows has no mass
        if any(not (np.abs(odds) <= MOST_ODDS).all() for odds in (self.g, known)):
            return f"tables with numbers that are not finite, or beyond {MOST_ODDS}"
        if np.isnan(self.c).any():
            return "constants that are no numbers"
        return None


_NONE = np.zeros(0)
NO_TABLES = TiltTables([], _NONE.astype(np.int64), _NONE, np.zeros((0, 0)), _NONE)


@dataclass(frozen=True)
class ScorePiece:
    """Scores of some aligned rows from another client's columns, sealed.

    Attributes:
        rows: name of the rows at the recipient.
        n_rows: how many.
        piece: their scores.
    """

    rows: str
    n_rows: int
    piece: Piece


@dataclass(frozen=True)
class FitTilt(Message):
    """Server: fit a tilt to these columns.

    Attributes:
        columns: of the client, without the label.
        n_classes: Y.
        rows: name of aligned rows to fit to; empty for all rows with a known class.
        n_rows: how many are named.
        rest: whether the client's other rows take part too, without scores from others.
        key: of the client, that the pieces are sealed for.
        step: that the pieces are sealed for.
        pieces: scores from others' columns of rows that they hold too.
        mixed: whether the tables will be averaged with those of clients that hold other rows.
        min_rows: least rows behind an entry.
        n_columns: columns of all clients.
    """

    columns: list[str]
    n_classes: int
    rows: str
    n_rows: int
    rest: bool
    key: str
    step: str
    pieces: tuple[ScorePiece, ...]
    mixed: bool
    min_rows: int
    n_columns: int


@dataclass(frozen=True)
class TiltFitted(Message):
    """Client: its key, whether its learner tilts, and the tables.

    Where pieces came and the key is not the one that the request names, the client has started
    anew: nothing was fitted, and the pieces must be sealed again.
    """

    key: str
    tilts: bool
    tables: TiltTables
    seconds: Array

    def fault(self, request: Message) -> str | None:
        """Return what is wrong unless tables are over the columns and classes asked for."""
        assert isinstance(request, FitTilt)
        if not self.tilts or (request.pieces and self.key != request.key):
            return None
        if self.tables.columns != request.columns or self.tables.c.size != request.n_classes:
            return "tables of other columns or classes than asked for"
        return self.tables.fault()


@dataclass(frozen=True)
class ScoreTilt(Message):
    """Server: score named rows with these tables, sealed for another client."""

    tables: TiltTables
    rows: str
    n_rows: int
    key: str
    step: str


@dataclass(frozen=True)
class TakeTilt(Message):
    """Server: keep these tables under a name; models that stay are asked for tilted by them."""

    name: str
    tables: TiltTables


@dataclass(frozen=True)
class AskNormalisers(Message):
    """Server: the normalisers of models tilted by tables that were sent."""

    name: str
    models: tuple[ModelName, ...]


@dataclass(frozen=True)
class Normalisers(Message):
    """Client: (models, Y) log of what each tilted class of each model sums to."""

    log_z: Array


@dataclass(frozen=True)
class AskMasses(Message):
    """Server: the masses of states under models that stay, tilted by these tables."""

    models: tuple[ModelName, ...]
    tables: TiltTables


@dataclass(frozen=True)
class Masses(Message):
    """Client: (models, Y) logs of normalisers; by model (Y, W) masses of its columns' states."""

    log_z: Array
    cells: Arrays

    def fault(self, request: Message) -> str | None:
        """Normalisers and masses of the models and classes asked for."""
        assert isinstance(request, AskMasses)
        n_models, n_classes = len(request.models), request.tables.c.size
        shapes = {cells.shape[:1] for cells in self.cells.values()}
        if self.log_z.shape != (n_models, n_classes) or len(self.cells) != n_models:
            return f"masses of {len(self.cells)} model(s); {n_models} were asked for"
        return None if shapes == {(n_classes,)} else "masses of other classes than asked for"


def _ask_masses(request: AskMasses, terms: Terms, _: str | None) -> Asked:
    fault = request.tables.fault()
    if fault is None and "posterior" not in terms.queries:
        fault = "masses of states under a model; queries in its policy has no 'posterior'"
    return Asked(tuple(request.tables.columns), fault)


def asks_tables(request: Any, terms: Terms, label: str | None) -> Asked:
    """What a request to fit tables of the label asks for: its columns, and what is refused."""
    few = terms.too_few("tables with {} row(s) behind an entry", request.min_rows)
    return Asked(tuple(request.columns), terms.label_unused(label) or few)


def _score_tilt(request: ScoreTilt, terms: Terms, _: str | None) -> Asked:
    few = terms.too_few("scores of {} row(s)", request.n_rows) if request.n_rows else None
    return Asked(tuple(request.tables.columns), few)


def _take_tilt(request: TakeTilt, _: Terms, __: str | None) -> Asked:
    return Asked(tuple(request.tables.columns))


FIT_TILT = declare(
    Verb(
        "fit_tilt",
        FitTilt,
        TiltFitted,
        "training",
        (
            Reveals(
                "server",
                Level.AGGREGATES,
                "tables of what each state of a column adds to the log-odds of the label",
            ),
            Reveals("model", Level.AGGREGATES, "the tables"),
        ),
        costly=True,
        keeps_reply=False,
        asks=asks_tables,
        groups={"rows of a class": lambda reply: reply.tables.counts},
    )
)
SCORE_TILT = declare(
    Verb(
        "score_tilt",
        ScoreTilt,
        Sealed,
        "training",
        (
            Reveals("server", Level.NOTHING, "ciphertext"),
            Reveals(
                "other clients",
                Level.BOUNDED_CODES,
                "to the client whose turn it is: of each named row 3 bits for each class but one, "
                "of what its own columns say about the label",
            ),
        ),
        keeps_reply=False,
        asks=_score_tilt,
    )
)
TAKE_TILT = declare(
    Verb("take_tilt", TakeTilt, Ready, "training", (), changes_state=True, asks=_take_tilt)
)
MASSES = declare(
    Verb(
        "masses",
        AskMasses,
        Masses,
        "training",
        (
            Reveals(
                "server", Level.AGGREGATES, "how probable a model takes single states of columns"
            ),
        ),
        reads_models=True,
        asks=_ask_masses,
    )
)
NORMALISERS = declare(
    Verb(
        "normalisers",
        AskNormalisers,
        Normalisers,
        "training",
        (
            Reveals(
                "server", Level.AGGREGATES, "masses of models that stay, once fitted to the label"
            ),
        ),
        reads_models=True,
    )
)
