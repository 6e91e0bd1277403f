"""Messages about a head of the label: boosted trees of each client, and how they are pooled.

Where rows are split a client pools its trees with its own tilt on rows it has left out. Where
columns are split its trees' outputs of left-out rows go to the label's owner, 8 bits a row and
class but one, sealed; the owner pools them with the tilt.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedcircuits.arrays import Array, Arrays
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.requests.rows import LABEL_ALLOWED
from fedcircuits.federation.wire.requests.validation import Piece
from fedcircuits.federation.wire.verbs import Asked, Level, Reveals, Terms, Verb, declare


@dataclass(frozen=True)
class PoolWeights:
    """q = softmax(tilt log t + sum_s trees_s f_s + shift), and what it gains on left-out rows.

    Attributes:
        tilt: weight of the tilt.
        trees: (S,) weights of the trees' outputs.
        shift: (Y,) constants.
        limit: how far log-odds of q may be from those of t.
        log_loss: of the tilt alone, nats a row.
        gain: what the pool takes off it.
        error: paired standard error of the gain.
        n_rows: left-out rows.
    """

    tilt: float
    trees: Array
    shift: Array
    limit: float
    log_loss: float
    gain: float
    error: float
    n_rows: int


@dataclass(frozen=True)
class FitHead(Message):
    """Server: boost trees over these columns.

    Attributes:
        columns: of the client, without the label.
        n_classes: Y.
        rows: name of aligned rows to leave out; empty to leave out a fifth and pool here.
        n_rows: how many are named.
        key: of the label's owner, for outputs of the named rows.
        step: that they are sealed for.
        min_rows: least rows behind a leaf.
    """

    columns: list[str]
    n_classes: int
    rows: str
    n_rows: int
    key: str
    step: str
    min_rows: int


@dataclass(frozen=True)
class HeadFitted(Message):
    """Client: trees (none where it has too few rows of a class), and a pool or sealed outputs."""

    trees: Arrays
    pool: PoolWeights | None
    values: Array
    seconds: Array


@dataclass(frozen=True)
class PoolHeads(Message):
    """Server, to the label's owner: pool sealed outputs of named rows with sealed tilts."""

    rows: str
    n_rows: int
    key: str
    step: str
    c: Array
    tilts: tuple[Piece, ...]
    outputs: tuple[Piece, ...]


@dataclass(frozen=True)
class HeadsPooled(Message):
    """Owner: its key and the pool; none where the key is not the one that the request names."""

    key: str
    pool: PoolWeights | None


def _fit_head(request: FitHead, terms: Terms, label: str | None) -> Asked:
    fault = None
    if terms.label == "no" and label is not None:
        fault = f"the label; {LABEL_ALLOWED['no']}"
    elif request.min_rows < terms.min_rows:
        fault = (
            f"trees with {request.min_rows} row(s) behind a leaf; the smallest group is "
            f"{terms.min_rows}"
        )
    elif 0 < request.n_rows < terms.min_rows:
        fault = f"outputs of {request.n_rows} row(s); the smallest group is {terms.min_rows}"
    elif terms.placement == "remote":
        fault = "trees to take away; models stay here: federate with placement='remote'"
    return Asked(tuple(request.columns), fault)


def _pool_heads(request: PoolHeads, terms: Terms, label: str | None) -> Asked:
    if terms.label == "no" and label is not None:
        return Asked(fault=f"the label; {LABEL_ALLOWED['no']}")
    if 0 < request.n_rows < terms.min_rows:
        return Asked(
            fault=f"the label of {request.n_rows} row(s); the smallest group is {terms.min_rows}"
        )
    return Asked()


FIT_HEAD = declare(
    Verb(
        "fit_head",
        FitHead,
        HeadFitted,
        "training",
        (
            Reveals("server", Level.AGGREGATES, "boosted trees, `min_rows` rows behind a leaf"),
            Reveals(
                "other clients",
                Level.BOUNDED_CODES,
                "columns split, to the label's owner: 8 bits a class but one of left-out rows",
            ),
            Reveals("model", Level.AGGREGATES, "the trees"),
        ),
        costly=True,
        keeps_reply=False,
        asks=_fit_head,
    )
)
POOL_HEADS = declare(
    Verb(
        "pool_heads",
        PoolHeads,
        HeadsPooled,
        "training",
        (
            Reveals("server", Level.AGGREGATES, "weights of the clients' trees"),
            Reveals("model", Level.AGGREGATES, "the weights"),
        ),
        keeps_reply=False,
        asks=_pool_heads,
        groups={"rows with a label": lambda reply: [reply.pool.n_rows] if reply.pool else []},
    )
)
