"""Messages about a head over clients with different columns.

Every client boosts trees over its own columns and seals codes of its rows for the clients that hold
these rows and other columns. A client then boosts trees over its columns and the codes of others.
The label's holder pools outputs of left-out rows with the tilt, with and without codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import Array, Arrays
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.requests.heads import PoolWeights, fault_of_trees, outputs_of
from fedcircuits.federation.wire.requests.tilts import ScorePiece
from fedcircuits.federation.wire.requests.validation import Piece
from fedcircuits.federation.wire.verbs import Asked, Level, Reveals, Terms, Verb, declare


@dataclass(frozen=True)
class SealFor:
    """What values are sealed for.

    Attributes:
        rows: name of aligned rows that they are about.
        n_rows: how many.
        key: of the recipient.
        step: of the recipient's message.
    """

    rows: str
    n_rows: int
    key: str
    step: str


@dataclass(frozen=True)
class FitCodeTrees(Message):
    """Server: boost trees over these columns, and send codes of rows.

    Attributes:
        columns: of the client, without the label.
        n_classes: Y.
        held: rows to leave out, and the key that outputs of them are sealed for.
        to: who else gets codes, of which rows.
        leaf: the small tree of a client with the same columns; empty to grow one.
        width: of a level of that client's scores.
        min_rows: least rows behind a leaf.
    """

    columns: list[str]
    n_classes: int
    held: SealFor
    to: tuple[SealFor, ...]
    leaf: Arrays
    width: float
    min_rows: int


@dataclass(frozen=True)
class CodeTreesFitted(Message):
    """Client: its trees (none where it has too few rows of a class), and sealed codes.

    Attributes:
        trees: of all rows.
        leaf: the small tree.
        width: of a level of the scores.
        outputs: of left-out rows, for whoever pools.
        codes: for every recipient.
        seconds: CPU time.
    """

    trees: Arrays
    leaf: Arrays
    width: float
    outputs: Piece
    codes: tuple[Piece, ...]
    seconds: Array

    def fault(self, request: Message) -> str | None:
        """Codes for everybody who was named."""
        assert isinstance(request, FitCodeTrees)
        if self.trees and (len(self.codes) != len(request.to) or not np.isfinite(self.width)):
            return f"codes for {len(self.codes)} recipient(s), expected {len(request.to)}"
        n_columns, n_outputs = len(request.columns), outputs_of(request.n_classes)
        of_trees = fault_of_trees(self.trees, n_columns, n_outputs)
        return of_trees or fault_of_trees(self.leaf, n_columns, 1)


@dataclass(frozen=True)
class GroupPiece:
    """Sealed values about some aligned rows, from a client of a group with the same columns.

    Attributes:
        group: its number.
        rows: name of the rows at the recipient.
        n_rows: how many.
        piece: the values.
    """

    group: int
    rows: str
    n_rows: int
    piece: Piece


@dataclass(frozen=True)
class FitTreesOnCodes(Message):
    """Server: boost trees over these columns and the codes of other groups.

    Attributes:
        columns: of the client, without the label.
        n_classes: Y.
        held: rows to leave out, and the key that outputs of them are sealed for.
        key: of the client, that the codes are sealed for.
        step: that they are sealed for.
        codes: of other groups.
        n_groups: how many those are.
        min_rows: least rows behind a leaf.
    """

    columns: list[str]
    n_classes: int
    held: SealFor
    key: str
    step: str
    codes: tuple[GroupPiece, ...]
    n_groups: int
    min_rows: int


@dataclass(frozen=True)
class TreesOnCodesFitted(Message):
    """Client: its key, trees, and outputs of left-out rows; nothing where its key is another."""

    key: str
    trees: Arrays
    outputs: Piece
    seconds: Array

    def fault(self, request: Message) -> str | None:
        """Trees over the columns asked for and the codes of others."""
        assert isinstance(request, FitTreesOnCodes)
        n_columns = len(request.columns) + request.n_groups * request.n_classes
        return fault_of_trees(self.trees, n_columns, outputs_of(request.n_classes))


@dataclass(frozen=True)
class PoolAcross(Message):
    """Server, to a holder of the label: pool sealed outputs of named rows with sealed tilts.

    Attributes:
        rows: name of the rows.
        n_rows: how many.
        key: of the recipient, that everything is sealed for.
        step: that it is sealed for: tilts, then outputs alone, then across.
        c: (Y,) constants of the tilt.
        tilts: scores of columns, every cell once.
        alone: outputs of trees over each group's own columns.
        across: outputs of trees over columns and codes.
        n_groups: how many groups there are.
    """

    rows: str
    n_rows: int
    key: str
    step: str
    c: Array
    tilts: tuple[ScorePiece, ...]
    alone: tuple[GroupPiece, ...]
    across: tuple[GroupPiece, ...]
    n_groups: int


@dataclass(frozen=True)
class PooledAcross(Message):
    """The recipient: its key, the pool, and whether it is of the trees on codes.

    No pool where the key is not the one that the request names, or labels are unknown.
    """

    key: str
    pool: PoolWeights | None
    across: bool

    def fault(self, request: Message) -> str | None:
        """Weights of every group's trees."""
        assert isinstance(request, PoolAcross)
        return None if self.pool is None else self.pool.fault(request.n_groups, request.c.size)


def _trees(
    request: FitCodeTrees | FitTreesOnCodes, n_rows: int, terms: Terms, label: str | None
) -> Asked:
    few = terms.too_few("outputs of {} row(s)", n_rows)
    fault = terms.trees_refused(request.min_rows) or few or terms.label_unused(label)
    return Asked(tuple(request.columns), fault)


def _fit_code_trees(request: FitCodeTrees, terms: Terms, label: str | None) -> Asked:
    n_rows = min([request.held.n_rows, *(each.n_rows for each in request.to)])
    return _trees(request, n_rows, terms, label)


def _fit_trees_on_codes(request: FitTreesOnCodes, terms: Terms, label: str | None) -> Asked:
    return _trees(request, request.held.n_rows, terms, label)


def _pool_across(request: PoolAcross, terms: Terms, label: str | None) -> Asked:
    few = terms.too_few("the label of {} row(s)", request.n_rows)
    return Asked(fault=terms.label_unused(label) or few)


FIT_CODE_TREES = declare(
    Verb(
        "fit_code_trees",
        FitCodeTrees,
        CodeTreesFitted,
        "training",
        (
            Reveals("server", Level.AGGREGATES, "boosted trees, `min_rows` rows behind a leaf"),
            Reveals(
                "other clients",
                Level.BOUNDED_CODES,
                "to clients with other columns of the same rows: of each such row 4 bits, and 4 "
                "for each class but one, of what its own columns say about the label; to the "
                "label's owner: of rows that its trees did not learn 3 bits for each class but one",
            ),
            Reveals("model", Level.AGGREGATES, "the trees"),
        ),
        costly=True,
        keeps_reply=False,
        asks=_fit_code_trees,
    )
)
FIT_TREES_ON_CODES = declare(
    Verb(
        "fit_trees_on_codes",
        FitTreesOnCodes,
        TreesOnCodesFitted,
        "training",
        (
            Reveals("server", Level.AGGREGATES, "boosted trees, `min_rows` rows behind a leaf"),
            Reveals(
                "other clients",
                Level.BOUNDED_CODES,
                "to the label's owner: of rows that its trees did not learn 3 bits for each class "
                "but one",
            ),
            Reveals("model", Level.AGGREGATES, "the trees"),
        ),
        costly=True,
        keeps_reply=False,
        asks=_fit_trees_on_codes,
    )
)
POOL_ACROSS = declare(
    Verb(
        "pool_across",
        PoolAcross,
        PooledAcross,
        "training",
        (
            Reveals("server", Level.AGGREGATES, "weights of the clients' trees"),
            Reveals("model", Level.AGGREGATES, "the weights"),
        ),
        keeps_reply=False,
        asks=_pool_across,
        groups={"rows with a label": lambda reply: [reply.pool.n_rows] if reply.pool else []},
    )
)
