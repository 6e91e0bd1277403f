"""Messages about the label of single rows: sealed by its owners for other clients.

An owner seals the classes of rows that another client holds too for that client
(`wire/sealing.py`); the server relays ciphertext.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedcircuits.arrays import Array
from fedcircuits.density.tilt import n_states_of
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.requests.handshake import (
    ROWS_AND_CLASSES,
    CountsClasses,
    Ready,
)
from fedcircuits.federation.wire.requests.validation import Piece, Sealed
from fedcircuits.federation.wire.verbs import Asked, Level, Reveals, Terms, Verb, declare
from fedcircuits.schema import Schema

LABEL_PIECE = "label"  # purpose of sealed classes, and the one step that they are sealed for


@dataclass(frozen=True)
class AskLabel(Message):
    """Server, to an owner: seal the label of chosen aligned rows for another client."""

    choice: Array
    key: str
    step: str


@dataclass(frozen=True)
class LabelPiece:
    """Sealed label codes on their way to a client.

    Attributes:
        choice: the aligned rows of the recipient that they are of, one bit a row.
        piece: packed codes in that order; the code after the last category means "not known".
    """

    choice: Array
    piece: Piece


@dataclass(frozen=True)
class TakeLabel(CountsClasses):
    """Server, to a client without the label: the variable as agreed, and its owners' states."""

    schema: list[Any]
    pieces: tuple[LabelPiece, ...]

    def n_classes_counted(self) -> int:
        """Return the number of classes of the label."""
        return sum(map(n_states_of, Schema.from_json(self.schema)))


def _take_label(request: TakeLabel, terms: Terms, label: str | None) -> Asked:
    """A client takes a label that it lacks; one of its own would be replaced by what comes."""
    del terms
    names = tuple(variable["name"] for variable in request.schema)
    fault = None if label is None else f"the label {label!r} to be taken from others: it is here"
    return Asked(names, fault)


SEND_LABEL = declare(
    Verb(
        "send_label",
        AskLabel,
        Sealed,
        "alignment",
        (
            Reveals("server", Level.NOTHING, "ciphertext"),
            Reveals("other clients", Level.BOUNDED_CODES, "the label of the rows they hold too"),
        ),
        reveals_label=lambda _: True,
    )
)
TAKE_LABEL = declare(
    Verb(
        "take_label",
        TakeLabel,
        Ready,
        "alignment",
        (Reveals("server", Level.AGGREGATES, "rows of each class of the label"),),
        changes_state=True,
        most=1,
        asks=_take_label,
        groups=ROWS_AND_CLASSES,
    )
)
