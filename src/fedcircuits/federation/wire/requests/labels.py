"""Messages about the label of single rows: sealed by its owners for other clients.

An owner seals the classes of rows that another client holds too for that client
(`wire/sealing.py`); the server relays ciphertext.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedcircuits.arrays import Array
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.requests.handshake import ROWS_AND_CLASSES, Ready
from fedcircuits.federation.wire.requests.rows import LABEL_ALLOWED
from fedcircuits.federation.wire.requests.validation import Piece, Sealed
from fedcircuits.federation.wire.verbs import Asked, Level, Reveals, Terms, Verb, declare


@dataclass(frozen=True)
class AskLabel(Message):
    """Server, to an owner: seal the label of chosen aligned rows for another client."""

    choice: Array
    key: str


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
class TakeLabel(Message):
    """Server, to a client without the label: its categories and kind, and its owners' codes."""

    categories: list[Any]
    kind: str
    pieces: tuple[LabelPiece, ...]


def _label(_: Message, terms: Terms, __: str | None) -> Asked:
    if terms.label != "sent":
        return Asked(
            fault=f"the label of single rows; {LABEL_ALLOWED[terms.label]}: federate with "
            "label_use='used'"
        )
    return Asked()


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
        asks=_label,
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
        groups=ROWS_AND_CLASSES,
    )
)
