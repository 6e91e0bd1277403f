"""Messages for a label that is used and not sent: codes of rows go sealed to the label's owner.

A client without the label clusters its columns and seals the codes of rows that the owner holds too
for the owner (at most 8 bits a row). The owner fits what each of its own states and each code adds
to the log-odds of the classes; codes' effects come back as tables over many rows, and the client
spreads them over the states of its columns. For a head the owner boosts trees over its columns and
what codes add, and the client boosts trees with the same outputs on its columns, without a label.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedcircuits.arrays import Array, Arrays
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.requests.heads import PoolWeights, fault_of_trees, outputs_of
from fedcircuits.federation.wire.requests.tilts import ScorePiece, TiltTables, asks_tables
from fedcircuits.federation.wire.requests.validation import Sealed
from fedcircuits.federation.wire.verbs import Asked, Level, Reveals, Terms, Verb, declare

MOST_CODES = 256


@dataclass(frozen=True)
class AskCodes(Message):
    """Server: cluster these columns and seal the codes of n named aligned rows for the owner."""

    columns: list[str]
    n_codes: int
    rows: str
    n_rows: int
    key: str
    step: str


@dataclass(frozen=True)
class FitByCodes(Message):
    """Server, to a label's owner: fit a tilt to its columns and to others' codes of named rows.

    Attributes:
        columns: of the owner, without the label.
        n_classes: Y.
        rows: name of the rows to fit to.
        key: of the owner, that the pieces are sealed for.
        step: that the pieces are sealed for.
        pieces: codes of rows that another client holds too.
        n_codes: K.
        min_rows: least rows behind an entry.
        n_columns: columns of all clients.
        sender: the place of each piece's sender among the senders with different columns, for a
            head; none where no head is wanted.
    """

    columns: list[str]
    n_classes: int
    rows: str
    key: str
    step: str
    pieces: tuple[ScorePiece, ...]
    n_codes: int
    min_rows: int
    n_columns: int
    sender: tuple[int, ...]


@dataclass(frozen=True)
class FittedByCodes(Message):
    """Owner: its key, tables of its columns, and effects (pieces, Y, K) of the codes.

    Where the key is not the one that the request names, nothing was fitted.

    Attributes:
        key: of the owner.
        tables: of its columns.
        effects: of the codes.
        trees: over its columns and what others' codes add; none where there is no head.
        widths: (senders,) of a level of what codes add.
        pool: of tables and trees.
    """

    key: str
    tables: TiltTables
    effects: Array
    trees: Arrays
    widths: Array
    pool: PoolWeights | None

    def fault(self, request: Message) -> str | None:
        """Tables over the columns asked for, and effects of every piece."""
        assert isinstance(request, FitByCodes)
        if self.key != request.key:
            return None
        shape = (len(request.pieces), request.n_classes, request.n_codes)
        if self.effects.shape != shape or not np.isfinite(self.effects).all():
            return f"effects of shape {self.effects.shape}, expected {shape}"
        if self.tables.columns != request.columns:
            return "tables of other columns than asked for"
        return self.tables.fault() or self._fault_of_head(request)

    def _fault_of_head(self, request: FitByCodes) -> str | None:
        """What is wrong with trees, levels and pool, None where there are none."""
        if self.pool is None or not self.trees:
            return None if self.pool is None and not self.trees else "trees or weights alone"
        n_senders = 1 + max(request.sender, default=-1)
        if self.widths.shape != (n_senders,) or not np.isfinite(self.widths).all():
            return f"{self.widths.size} levels of {n_senders} sender(s)"
        n_columns = len(request.columns) + n_senders * request.n_classes
        of_trees = fault_of_trees(self.trees, n_columns, outputs_of(request.n_classes))
        return of_trees or self.pool.fault(1, request.n_classes)


@dataclass(frozen=True)
class SpreadCodes(Message):
    """Server: spread effects (Y, K) of the client's codes over the states of its columns.

    Where there is a head (`min_rows` above 0), boost trees of them too, so many rows behind a leaf.
    """

    columns: list[str]
    effects: Array
    c: Array
    counts: Array
    min_rows: int


@dataclass(frozen=True)
class CodesSpread(Message):
    """Client: tables, and trees if wanted, over its columns that stand for its codes' effects."""

    tables: TiltTables
    trees: Arrays

    def fault(self, request: Message) -> str | None:
        """Tables and trees over the columns asked for."""
        assert isinstance(request, SpreadCodes)
        if self.tables.columns != request.columns:
            return "tables of other columns than asked for"
        n_outputs = outputs_of(request.c.size)
        of_trees = fault_of_trees(self.trees, len(request.columns), n_outputs)
        return self.tables.fault() or of_trees


def _codes(request: AskCodes, terms: Terms, _: str | None) -> Asked:
    fault = terms.too_few("codes of {} row(s)", request.n_rows) if request.n_rows else None
    if fault is None and not 0 < request.n_codes <= MOST_CODES:
        fault = f"{request.n_codes} codes, more than 8 bits a row"
    return Asked(tuple(request.columns), fault)


def _fit(request: FitByCodes, terms: Terms, label: str | None) -> Asked:
    asked = asks_tables(request, terms, label)
    if asked.fault is None and request.sender:
        return replace(asked, fault=terms.trees_refused(request.min_rows))
    return asked


def _spread(request: SpreadCodes, terms: Terms, _: str | None) -> Asked:
    fault = terms.trees_refused(request.min_rows) if request.min_rows else None
    return Asked(tuple(request.columns), fault)


CODES = declare(
    Verb(
        "codes",
        AskCodes,
        Sealed,
        "training",
        (
            Reveals("server", Level.NOTHING, "ciphertext"),
            Reveals(
                "other clients",
                Level.BOUNDED_CODES,
                "to the label's owner: a code of at most 8 bits of each named row",
            ),
        ),
        costly=True,
        changes_state=True,
        keeps_reply=False,
        asks=_codes,
    )
)
FIT_BY_CODES = declare(
    Verb(
        "fit_by_codes",
        FitByCodes,
        FittedByCodes,
        "training",
        (
            Reveals(
                "server",
                Level.AGGREGATES,
                "tables of what states of the owner's columns, and codes of others' rows, add to "
                "the log-odds of the label; boosted trees, `min_rows` rows behind a leaf",
            ),
            Reveals("other clients", Level.AGGREGATES, "what their own codes add"),
            Reveals("model", Level.AGGREGATES, "the tables and trees"),
        ),
        costly=True,
        keeps_reply=False,
        asks=_fit,
        groups={"rows of a class": lambda reply: reply.tables.counts},
    )
)
SPREAD_CODES = declare(
    Verb(
        "spread_codes",
        SpreadCodes,
        CodesSpread,
        "training",
        (
            Reveals("server", Level.AGGREGATES, "tables and trees of what adds to the log-odds"),
            Reveals("model", Level.AGGREGATES, "the tables and trees"),
        ),
        asks=_spread,
    )
)
