"""Messages that score models on held-out rows: evidence goes sealed to whoever holds the label.

A client computes how likely its part of each row is under its models and seals the numbers for the
label's owner (`wire/sealing.py`). The server relays ciphertext and the structure that
combines the numbers; it learns means alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedcircuits.arrays import Array
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.names import ModelName
from fedcircuits.federation.wire.requests.handshake import Ready
from fedcircuits.federation.wire.sealing import KEY_BYTES, are_digits
from fedcircuits.federation.wire.verbs import Asked, Level, Reveals, Terms, Verb, declare


@dataclass(frozen=True)
class AskKey(Message):
    """Server: asks for the public key that values for this client are sealed with."""


@dataclass(frozen=True)
class PublicKey(Message):
    """Client: its public key, and what names its columns and rows in this run, in hexadecimal."""

    key: str
    nonce: str

    def fault(self, request: Message) -> str | None:
        """Return what is wrong unless key and nonce are hexadecimal, the key of 32 bytes."""
        del request
        if not are_digits(self.key, KEY_BYTES) or not are_digits(self.nonce, len(self.nonce) // 2):
            return "a public key or a nonce that is not hexadecimal or has another length"
        return None


@dataclass(frozen=True)
class Peers(Message):
    """Server: the keys that all clients sent; each has its own among them."""

    keys: dict[str, str]
    nonces: dict[str, str]


@dataclass(frozen=True)
class AskSealed(Message):
    """Server: evaluate models on n named aligned rows, with every class of the label, and seal the
    values for another client."""

    packs_header: ClassVar[bool] = True
    drawn: ClassVar[frozenset[str]] = frozenset({"key", "step"})

    models: tuple[ModelName, ...]
    rows: str
    n_rows: int
    key: str
    step: str


@dataclass(frozen=True)
class Sealed(Message):
    """Client: values that only their recipient can open."""

    values: Array


@dataclass(frozen=True)
class Piece:
    """Sealed values of one client on their way to another.

    Attributes:
        values: ciphertext.
        sender: name of the client that sealed them.
    """

    values: Array
    sender: str


@dataclass(frozen=True)
class ModelsPiece:
    """Sealed values of one client's models.

    Attributes:
        models: that it was asked for.
        piece: the values.
    """

    models: tuple[ModelName, ...]
    piece: Piece


def piece_step(step: str, at: int) -> str:
    """Return the step that piece number `at` of a message's step is sealed for."""
    return f"{step}/{at}"


@dataclass(frozen=True)
class Judge(Message):
    """Server, to the label's owner: asks for the log-loss of a circuit over sealed evidence.

    Leaf i of the circuit is model `place[i]` of piece `piece_of[i]`, (n, Y) log-likelihoods. Piece
    number `len(pieces)` is the owner's own models, which pass nobody; where the number is -1 the
    leaf is the row `constants[i]` (Y,), the same for every row. The other arrays are a
    `Structure`'s.
    """

    packs_header: ClassVar[bool] = True
    drawn: ClassVar[frozenset[str]] = frozenset({"key", "step"})

    rows: str
    n_rows: int
    key: str
    step: str
    pieces: tuple[ModelsPiece, ...]
    own: tuple[ModelName, ...]
    piece_of: Array
    place: Array
    constants: Array
    is_sum: Array
    first_edge: Array
    child: Array
    log_weight: Array


@dataclass(frozen=True)
class Judged(Message):
    """Owner: means of -log p(y | x) and log p(x, y), the rows behind them, and its key.

    Rows that the circuit holds impossible are not among them.

    Where the key is not the one that the request names, the client has started anew: nothing was
    scored, and the evidence must be sealed again.
    """

    log_loss: float
    log_prob: float
    n_rows: int
    key: str


def _few_rows(request: AskSealed, terms: Terms, _: str | None) -> Asked:
    few = terms.too_few("models on {} row(s)", request.n_rows) if request.n_rows else None
    return Asked(fault=few)


def _label_used(request: Judge, terms: Terms, label: str | None) -> Asked:
    few = terms.too_few("the label of {} row(s)", request.n_rows) if request.n_rows else None
    return Asked(fault=terms.label_unused(label) or few)


PUBLIC_KEY = declare(
    Verb(
        "public_key",
        AskKey,
        PublicKey,
        "alignment",
        (Reveals("server", Level.NOTHING, "a public key, made where the client runs"),),
        keeps_reply=False,
    ),
)
PEERS = declare(Verb("peers", Peers, Ready, "alignment", (), changes_state=True, most=1))
ASK_SEALED = declare(
    Verb(
        "ask_sealed",
        AskSealed,
        Sealed,
        "validation",
        (
            Reveals("server", Level.NOTHING, "ciphertext"),
            Reveals(
                "other clients",
                Level.ROW_EVIDENCE,
                "to the label's owner: log-likelihood of named aligned rows under models, in steps "
                "of an eighth",
            ),
        ),
        reads_models=True,
        keeps_reply=False,
        asks=_few_rows,
    )
)
JUDGE = declare(
    Verb(
        "judge",
        Judge,
        Judged,
        "validation",
        (Reveals("server", Level.AGGREGATES, "mean log-loss of the label"),),
        reads_models=True,
        keeps_reply=False,
        most=256,
        asks=_label_used,
        groups={"rows with a label": lambda reply: [reply.n_rows]},
    )
)
