"""Messages of federated k-means on shared columns, and of tables that tie anchors together.

What each reply reveals, and to whom, is in the declarations (`Verb`) at the end of this file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import Array, Arrays
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.names import Grouping
from fedcircuits.federation.wire.verbs import (
    Asked,
    Fields,
    Level,
    Reveals,
    Terms,
    Verb,
    are_counts,
    declare,
)

MOST = 1e6  # of a feature, which lies near 0 to 1, and of strata


@dataclass(frozen=True)
class AskStart(Message):
    """Server: asks for centres of the client's own clusters of shared columns, to start from."""

    columns: list[str]
    n_clusters: int
    within_label: bool
    min_rows: int


@dataclass(frozen=True)
class Start(Message):
    """Client: (K, 1 + F) stratum and centre of each large enough cluster, and its rows (K,)."""

    centres: Array
    rows: Array

    def fault(self, request: Message) -> str | None:
        """Centres that are numbers, each of some rows and of a stratum."""
        assert isinstance(request, AskStart)
        if self.centres.ndim != 2 or self.rows.shape != self.centres.shape[:1]:
            return f"{self.rows.size} counts of rows of centres {self.centres.shape}"
        if self.centres.shape[1] < 2 or not (self.rows > 0).all():
            return "centres of nothing"
        strata = self.centres[:, 0]
        if not (np.abs(self.centres) < MOST).all() or not are_counts(strata) or (strata % 1).any():
            return "centres that are no numbers"
        return None


@dataclass(frozen=True)
class AskCentres(Message):
    """Server: asks for sums and counts of shared columns around centres (federated k-means).

    Where clients are named, the sums are to be masked among them (`masking.py`), by a nonce of the
    run; the request is then the same at all of them.
    """

    group: Grouping
    columns: list[str]
    centres: Array
    within_label: bool
    masked_with: list[str]
    nonce: str

    @property
    def series(self) -> str:
        return str(self.group)


@dataclass(frozen=True)
class CentreSums(Message):
    """Client: for each centre the sum of the rows nearest to it and their number."""

    sums: Arrays

    def fault(self, request: Message) -> str | None:
        """One sum and one count a centre, masked where that was asked for."""
        assert isinstance(request, AskCentres)
        k, width = request.centres.shape
        return _sums_fault(self.sums, {"sums": (k, width - 1), "rows": (k,)}, request.masked_with)


@dataclass(frozen=True)
class AskAnchorRows(Message):
    """Server: asks how many rows are around the centres that were agreed on.

    `elsewhere` chooses aligned rows that another client counts.
    """

    group: Grouping
    columns: list[str]
    centres: Array
    within_label: bool
    elsewhere: Array

    @property
    def series(self) -> str:
        return str(self.group)


@dataclass(frozen=True)
class AnchorRows(Message):
    """Client: rows around each centre; `once` leaves out those that another client counts."""

    rows: Array
    once: Array

    def fault(self, request: Message) -> str | None:
        """One count a centre."""
        assert isinstance(request, AskAnchorRows)
        k = len(request.centres)
        if not self.rows.shape == self.once.shape == (k,):
            return f"counts of shape {self.rows.shape} for {k} centres"
        return None


@dataclass(frozen=True)
class AskTable(Message):
    """Server: asks how often parts of one grouping meet anchors of another.

    Where clients are named, the counts are to be masked among them, as those of `AskCentres`.
    """

    group: Grouping
    anchors: Grouping
    n_anchors: int
    n_clusters: int
    masked_with: list[str]
    nonce: str


@dataclass(frozen=True)
class JointTable(Message):
    """Client: (anchors, clusters) counts."""

    counts: Arrays

    def fault(self, request: Message) -> str | None:
        """A table of the shape asked for, masked where that was asked for."""
        assert isinstance(request, AskTable)
        shape = (request.n_anchors, request.n_clusters)
        return _sums_fault(self.counts, {"counts": shape}, request.masked_with)


def _sums_fault(
    sums: Arrays, shapes: dict[str, tuple[int, ...]], masked_with: list[str]
) -> str | None:
    """What is wrong with sums: their shapes, or that they are not masked."""
    if any(name not in sums or sums[name].shape != shape for name, shape in shapes.items()):
        found = {name: array.shape for name, array in sums.items()}
        return f"sums of the shapes {found}, expected {shapes}"
    if masked_with and any(array.dtype != np.int64 for array in sums.values()):
        return "sums that are not masked"
    return None


def _start(request: AskStart, terms: Terms, _: str | None) -> Asked:
    few = terms.too_few("centres of {} row(s)", request.min_rows)
    return Asked(tuple(request.columns), few)


def _centres(request: AskCentres | AskAnchorRows, _: Terms, __: str | None) -> Asked:
    return Asked(tuple(request.columns))


def _sums_level(asked: Fields) -> Level:
    return Level.MASKED_SUMS if asked.get("masked_with") else Level.AGGREGATES


def _in_clear(numbers: Array) -> Array:
    """Counts that are not masked: whoever reads masked ones learns nothing from them."""
    return numbers[:0] if numbers.dtype == np.int64 else numbers


START = declare(
    Verb(
        "start",
        AskStart,
        Start,
        "agreement",
        (Reveals("server", Level.AGGREGATES, "centres of clusters of `min_rows` rows or more"),),
        costly=True,
        changes_state=True,  # rows are parted further
        asks=_start,
        groups={"rows of a cluster": lambda reply: reply.rows},
    )
)
CENTRES = declare(
    Verb(
        "centres",
        AskCentres,
        CentreSums,
        "agreement",
        (
            Reveals(
                "server",
                Level.MASKED_SUMS,
                "sums of shared columns around centres, masked: sums over clients alone; they and "
                "their differences over all rounds are about `min_rows` rows or more",
            ),
            Reveals("other clients", Level.MASKED_SUMS, "the means over all clients"),
        ),
        costly=True,
        changes_state=True,
        asks=_centres,
        shows=_sums_level,
        groups={"rows around a centre": lambda reply: _in_clear(reply.sums["rows"])},
    )
)
ANCHOR_ROWS = declare(
    Verb(
        "anchor_rows",
        AskAnchorRows,
        AnchorRows,
        "agreement",
        (
            Reveals(
                "server",
                Level.AGGREGATES,
                "rows around agreed centres; they and their differences are about `min_rows` rows "
                "or more",
            ),
            Reveals("model", Level.AGGREGATES, "rows around agreed centres"),
        ),
        costly=True,
        changes_state=True,
        asks=_centres,
        groups={
            "rows around a centre": lambda reply: reply.rows,
            # Which rows are counted elsewhere is the server's choice: their number is a group too.
            "rows around a centre that are counted here": lambda reply: reply.once,
            "rows around a centre that are counted elsewhere": lambda r: r.rows - r.once,
        },
    )
)
TABLE_OF = declare(
    Verb(
        "table_of",
        AskTable,
        JointTable,
        "agreement",
        (
            Reveals(
                "server",
                Level.MASKED_SUMS,
                "how often clusters meet anchors; where several clients count the same, masked: "
                "the sums over them alone",
            ),
        ),
        shows=_sums_level,
        groups={"rows of a cell": lambda reply: _in_clear(reply.counts["counts"].ravel())},
    )
)
