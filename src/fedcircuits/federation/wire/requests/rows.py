"""Messages about single rows: alignment by ids, clusters, latent classes.

What each reply reveals, and to whom, is in the declarations (`Verb`) at the end of this file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedcircuits.arrays import Array, BoolArray, IntArray
from fedcircuits.errors import StorageError
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.names import Grouping
from fedcircuits.federation.wire.packing import expand, unpack_codes
from fedcircuits.federation.wire.requests.handshake import (
    ROWS_AND_CLASSES,
    CountsClasses,
    Ready,
)
from fedcircuits.federation.wire.sealing import KEY_BYTES, are_digits
from fedcircuits.federation.wire.seeds import drawn_order
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


@dataclass(frozen=True)
class AskGroupSecret(Message):
    """Server: asks a client for a secret of all clients that keys digests, with the run's salt."""

    salt: str


@dataclass(frozen=True)
class GroupSecret(Message):
    """Client: the secret, wrapped for each of the others, as hexadecimal digits."""

    wrapped: dict[str, str]

    def fault(self, request: Message) -> str | None:
        """Return what is wrong unless secrets are 32 bytes each."""
        del request
        if not all(are_digits(secret, KEY_BYTES) for secret in self.wrapped.values()):
            return "a wrapped secret that is none"
        return None


@dataclass(frozen=True)
class AskDigests(Message):
    """Server: asks for digests of the ids, with the run's salt and the clients' secret.

    The secret comes wrapped for the recipient by the client `first`, which has it already.
    """

    salt: str
    first: str
    wrapped: str


@dataclass(frozen=True)
class Digests(Message):
    """Client: (n, 12) bytes, one digest a row, in its own order."""

    digests: Array

    def fault(self, request: Message) -> str | None:
        """Return what is wrong unless digests are (n, 12) bytes."""
        del request
        if self.digests.dtype != np.uint8 or self.digests.shape[1:] != (12,):
            return f"digests of shape {self.digests.shape}, expected (rows, 12) bytes"
        if len(np.unique(self.digests, axis=0)) < len(self.digests):
            return "one digest for two rows"
        return None


@dataclass(frozen=True)
class Align(Message):
    """Server: which rows (m,) of the client others hold too, in the order of the federation.

    Later messages about aligned rows use this order and name no row.
    """

    rows: Array


@dataclass(frozen=True)
class Draw:
    """Some of n rows by their places in an order that a seed draws (`wire/seeds.py`).

    Attributes:
        seed: of the run.
        what: purpose of the order.
        first: first place.
        last: place after the last.
        rest: whether the rows at all other places are meant.
    """

    seed: int
    what: str
    first: int
    last: int
    rest: bool

    def of(self, n: int) -> BoolArray:
        """(n,) whether a row is meant."""
        if not 0 <= self.first <= self.last <= n:
            raise StorageError(f"places {self.first} to {self.last} of {n} rows")
        chosen = np.full(n, self.rest)
        chosen[drawn_order(n, self.seed, self.what)[self.first : self.last]] = not self.rest
        return chosen


@dataclass(frozen=True)
class NameRows(Message):
    """Server: a name for some of the aligned rows.

    Attributes:
        name: for later messages.
        choice: one bit a row, no byte for all of them.
        draw: which of the rows so chosen are meant; None for all.
    """

    name: str
    choice: Array
    draw: Draw | None = None


@dataclass(frozen=True)
class Cluster(Message):
    """Server: cluster these columns into K parts; within the label's classes where it is held.

    With `send_rows` the index of every aligned row is asked for; with `epsilon` above 0 it is
    sent by randomised response.
    """

    group: Grouping
    columns: list[str]
    n_clusters: int
    within_label: bool
    send_rows: bool
    epsilon: float = 0.0

    @property
    def series(self) -> str:
        return str(self.group)


@dataclass(frozen=True)
class Clustered(Message):
    """Client: rows and stratum (label class, unnamed) of each cluster, indices of aligned rows.

    `indices` is packed, in the order of the aligned rows.
    """

    rows: Array
    strata: Array
    indices: Array

    def fault(self, request: Message) -> str | None:
        """Return what is wrong unless every cluster has rows and one stratum, 0 or above."""
        assert isinstance(request, Cluster)
        if self.strata.shape != self.rows.shape or not are_counts(self.strata):
            return f"{self.strata.size} strata of {self.rows.size} clusters"
        if not self.rows.size or not (self.rows > 0).all():
            return "clusters without rows"
        return None


@dataclass(frozen=True)
class Assign(CountsClasses):
    """Server: the class of chosen aligned rows (packed), and r(l | k) (K, R) for the others.

    The table has no row where the class of every row is sent; `source` is the grouping that has
    the clusters k. Where `ranks` (K, R) has rows, it has the classes of each cluster in the order
    of how likely they are, and what is packed is the place of a row's class in it.
    """

    group: Grouping
    source: Grouping | None
    choice: Array
    classes: Array
    table: Array
    ranks: Array = field(default_factory=lambda: np.zeros((0, 0), dtype=np.uint8))

    def classes_of(self, clusters: IntArray) -> IntArray:
        """(n,) class of each chosen row, given the cluster (n,) that it is in at the client."""
        n_classes = self.n_classes_counted()
        if not self.ranks.size:
            return unpack_codes(self.classes, clusters.size, n_classes)
        places, K = expand(self.classes, clusters.size), len(self.ranks)
        fits = self.ranks.shape == (K, n_classes) and self.ranks.dtype == np.uint8
        if (
            not fits
            or (places >= n_classes).any()
            or (self.ranks >= n_classes).any()
            or not (clusters < K).all()
        ):
            raise StorageError(f"classes of rows in {K} cluster(s) that do not fit")
        return self.ranks[clusters, places].astype(np.int64)

    @property
    def series(self) -> str:
        return str(self.group)

    def n_classes_counted(self) -> int:
        """Return the columns of the table."""
        return int(self.table.shape[1])


def _cluster(request: Cluster, _: Terms, __: str | None) -> Asked:
    return Asked(tuple(request.columns))


def _cluster_level(asked: Fields) -> Level:
    return Level.AGGREGATES if asked.get("send_rows") is False else Level.BOUNDED_CODES


def _cluster_bits(asked: Fields, reply: Clustered | None) -> float:
    """Bits of a cluster's index; under randomised response at most epsilon nats."""
    if _cluster_level(asked) is Level.AGGREGATES:
        return 0.0
    n_clusters = asked.get("n_clusters", 2**12) if reply is None else reply.rows.size
    bits = float(np.log2(max(n_clusters, 1)))
    epsilon = _index_epsilon(asked)
    return min(bits, epsilon / float(np.log(2))) if epsilon > 0 else bits


def _index_epsilon(asked: Fields) -> float:
    return float(asked.get("epsilon", 0.0))


def _align(request: Align, terms: Terms, _: str | None) -> Asked:
    n_rows = request.rows.size
    return Asked(fault=terms.too_few("{} aligned row(s)", n_rows) if n_rows else None)


GROUP_SECRET = declare(
    Verb(
        "group_secret",
        AskGroupSecret,
        GroupSecret,
        "alignment",
        (Reveals("server", Level.NOTHING, "a secret of the clients, wrapped for each of them"),),
        keeps_reply=False,
        most=1,
    )
)
DIGESTS = declare(
    Verb(
        "digests",
        AskDigests,
        Digests,
        "alignment",
        (
            Reveals(
                "server",
                Level.BOUNDED_CODES,
                "a digest of every id, keyed with a secret of the clients: which rows two clients "
                "share",
            ),
        ),
        keeps_reply=False,
        most=1,
        bits=lambda _, __: 1.0,  # whether another client holds the row
    )
)
ALIGN = declare(
    Verb("align", Align, Ready, "alignment", (), changes_state=True, most=1, asks=_align),
)
NAME_ROWS = declare(
    Verb("name_rows", NameRows, Ready, "alignment", (), changes_state=True, most=64),
)
CLUSTER = declare(
    Verb(
        "cluster",
        Cluster,
        Clustered,
        "agreement",
        (
            Reveals(
                "server",
                Level.BOUNDED_CODES,
                "rows of each cluster; with `send_rows` the cluster of every aligned row: where "
                "classes are clustered one by one, also which rows share a class, not which class",
            ),
        ),
        costly=True,
        changes_state=True,
        most=16,
        asks=_cluster,
        groups={"rows of a cluster": lambda reply: reply.rows},
        shows=_cluster_level,
        bits=_cluster_bits,
        epsilon=_index_epsilon,
        # Clusters within the classes: the index of a row gives its class away.
        reveals_label=lambda asked: all(
            asked.get(flag, True) for flag in ("within_label", "send_rows")
        ),
    )
)
ASSIGN = declare(
    Verb(
        "assign",
        Assign,
        Ready,
        "agreement",
        (Reveals("server", Level.AGGREGATES, "rows of each class"),),
        changes_state=True,
        most=64,
        groups=ROWS_AND_CLASSES,
    )
)
