"""Every record on the wire: typed, versioned, encoded once (`fedcircuits.encoding`).

A message is a frozen dataclass whose fields are JSON values, arrays, or mappings from names to
arrays. The server's requests and the clients' replies are all here (questions to models in
`questions.py`, to the label's owner in `judging.py`, shares of rows in `sharing.py`); nothing else
is ever sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcircuits.arrays import Array, Arrays, IntArray
from fedcircuits.errors import ClientError, StorageError
from fedcircuits.federation.wire.judging import Calibrate as Calibrate
from fedcircuits.federation.wire.judging import Calibrated as Calibrated
from fedcircuits.federation.wire.judging import Judge as Judge
from fedcircuits.federation.wire.judging import Judged as Judged
from fedcircuits.federation.wire.message import Message as Message
from fedcircuits.federation.wire.message import encoded as encoded
from fedcircuits.federation.wire.message import model_array as model_array
from fedcircuits.federation.wire.message import model_bytes as model_bytes
from fedcircuits.federation.wire.message import report_of as report_of
from fedcircuits.federation.wire.packing import unpack_codes
from fedcircuits.federation.wire.questions import Answer as Answer
from fedcircuits.federation.wire.questions import Answers as Answers
from fedcircuits.federation.wire.questions import Ask as Ask
from fedcircuits.federation.wire.questions import ModelQuestion as ModelQuestion
from fedcircuits.federation.wire.questions import Query as Query
from fedcircuits.federation.wire.sharing import Branch as Branch
from fedcircuits.federation.wire.sharing import BranchDone as BranchDone


@dataclass(frozen=True)
class Describe(Message):
    """Server: what are your columns? Sketches say nothing that fewer than min_rows rows share."""

    min_rows: int


@dataclass(frozen=True)
class Description(Message):
    """Client: names, kinds, domains, row count, missing counts and sketches of numeric columns."""

    schema: list[Any]
    n_rows: int
    n_missing: dict[str, int]
    exact: dict[str, bool]
    sketches: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Agree(Message):
    """Server: the agreed schema and grids of your columns, the run's seed, the label's name."""

    schema: list[Any]
    seed: int
    label: str | None


@dataclass(frozen=True)
class Ready(Message):
    """Client: done; the rows I can train on, and label counts where the label is mine to tell."""

    n_rows: int
    label_counts: list[float]


@dataclass(frozen=True)
class AskDigests(Message):
    """Server: digests of your ids, please, salted with this."""

    salt: str


@dataclass(frozen=True)
class Digests(Message):
    """Client: (n, 12) bytes, one digest a row, in my order."""

    digests: Array

    def fault(self, request: Message) -> str | None:
        """(n, 12) bytes."""
        del request
        if self.digests.dtype != np.uint8 or self.digests.shape[1:] != (12,):
            return f"digests of shape {self.digests.shape}, expected (rows, 12) bytes"
        return None


@dataclass(frozen=True)
class Align(Message):
    """Server: these rows of yours (m,) others hold too; from now on they are known by this order.

    The order is one of the whole federation, so what is said about aligned rows names none.
    """

    rows: Array


@dataclass(frozen=True)
class NameRows(Message):
    """Server: a name for some of your aligned rows (one bit a row; no byte for all of them)."""

    name: str
    choice: Array


@dataclass(frozen=True)
class AskLabel(Message):
    """Server: the owner's label of the aligned rows is to be shared."""


@dataclass(frozen=True)
class Label(Message):
    """The label codes of aligned rows, from its owner or on to the others.

    `codes` is packed; the code after the last category is "not known".
    """

    codes: Array
    categories: list[Any]
    kind: str

    def unpacked(self, n_rows: int, client: str) -> IntArray:
        """(n,) the codes of a client's aligned rows."""
        try:
            return unpack_codes(self.codes, n_rows, len(self.categories) + 1)
        except StorageError as error:
            raise ClientError(client, f"labels that cannot be read: {error}") from None


@dataclass(frozen=True)
class Cluster(Message):
    """Server: cluster these columns into K parts; within the label's classes if you may.

    With `epsilon` above 0 the indices of rows are told by randomised response.
    """

    job: str
    columns: list[str]
    n_clusters: int
    within_label: bool
    tell_rows: bool
    epsilon: float = 0.0


@dataclass(frozen=True)
class Clustered(Message):
    """Client: rows and stratum (label class, unnamed) of each cluster, indices of aligned rows.

    `indices` is packed, in the order of the aligned rows.
    """

    rows: Array
    strata: Array
    indices: Array

    def fault(self, request: Message) -> str | None:
        """One stratum a cluster."""
        del request
        if self.strata.shape != self.rows.shape:
            return f"{self.strata.size} strata of {self.rows.size} clusters"
        return None


@dataclass(frozen=True)
class Assign(Message):
    """Server: the latent class of chosen aligned rows (packed), and r(l | k) (K, R) for the rest.

    The table has no row where every row is told.
    """

    job: str
    choice: Array
    classes: Array
    table: Array


@dataclass(frozen=True)
class AskStart(Message):
    """Server: centres of your own clusters of these shared columns, to start from."""

    columns: list[str]
    n_clusters: int
    within_label: bool
    min_rows: int


@dataclass(frozen=True)
class Start(Message):
    """Client: (K, 1 + F) stratum and centre of each large enough cluster, and its rows (K,)."""

    centres: Array
    rows: Array


@dataclass(frozen=True)
class AskCentres(Message):
    """Server: sums and counts of your shared columns around these centres (federated k-means).

    `elsewhere` chooses aligned rows that another client counts.
    """

    job: str
    columns: list[str]
    centres: Array
    within_label: bool
    elsewhere: Array


@dataclass(frozen=True)
class CentreSums(Message):
    """Client: for each centre the sum of rows nearest to it, their number and squared distances.

    `once` leaves out the rows that another client counts.
    """

    sums: Array
    rows: Array
    once: Array
    inertia: float

    def fault(self, request: Message) -> str | None:
        """One sum and one count a centre."""
        assert isinstance(request, AskCentres)
        k, width = request.centres.shape
        if self.sums.shape != (k, width - 1) or not self.rows.shape == self.once.shape == (k,):
            return f"sums of shape {self.sums.shape} for centres of shape {(k, width - 1)}"
        return None


@dataclass(frozen=True)
class AskTable(Message):
    """Server: how often your private cluster k meets anchor s, please."""

    job: str
    anchor: str
    n_anchors: int
    n_clusters: int


@dataclass(frozen=True)
class JointTable(Message):
    """Client: (anchors, clusters) counts."""

    counts: Array


@dataclass(frozen=True)
class UseRows(Message):
    """Server: fit on chosen aligned rows and on a share of your others, until told otherwise."""

    choice: Array
    share: float


@dataclass(frozen=True)
class Fit(Message):
    """Server: fit these; each job has an id, columns, a row filter and whether per label class."""

    jobs: list[Any]
    keep: bool


@dataclass(frozen=True)
class Fitted(Message):
    """Client: rows behind every model, and the models themselves unless they stay here."""

    rows: dict[str, float]
    parameters: dict[str, int]
    seconds: Array  # an array of one: it always takes the same number of bytes
    reports: dict[str, list[Any]]  # by job, what the learner says about its fits
    models: Arrays = field(default_factory=dict)

    def fault(self, request: Message) -> str | None:
        """Models of the jobs asked for and of nothing else."""
        assert isinstance(request, Fit)
        asked = {job["job"] for job in request.jobs}
        strange = [key for key in self.rows if key.partition("|")[0] not in asked]
        if strange:
            return f"a model {strange[0]!r} that was not asked for"
        if self.parameters.keys() != self.rows.keys():
            return "parameters and rows of different models"
        if not request.keep and self.models.keys() - self.rows.keys():
            return "models without a row count"
        return None


@dataclass(frozen=True)
class Round(Message):
    """Server: what all clients sent in the round before, summed; nothing in the first one.

    `send` asks for the model when it is made: all clients hold the same, one is enough. Where
    clients are named, the terms are to be masked among them (`masking.py`), by a nonce of the run.
    """

    job: str
    columns: list[str]
    number: int
    send: bool
    masked_with: list[str]
    nonce: str
    sums: Arrays


@dataclass(frozen=True)
class RoundDone(Message):
    """Client: what my rows add to the next sum; in the end the model instead.

    `rows` and `parameters` are of the model, 0 before it is made.
    """

    made: bool
    rows: float
    parameters: int
    seconds: Array
    reports: list[Any]
    sums: Arrays
    model: Array

    def fault(self, request: Message) -> str | None:
        """Sums or a model, and the model where it was asked for."""
        assert isinstance(request, Round)
        if self.made and (self.sums or bool(self.model.size) is not request.send):
            return "sums together with a model, or a model that was not asked for"
        if not self.made and not self.sums:
            return "neither sums nor a model"
        if request.masked_with and any(a.dtype != np.int64 for a in self.sums.values()):
            return "sums that are not masked"
        return None


@dataclass(frozen=True)
class FitClassifier(Message):
    """Server: fit your classifier of the label to these columns, the label among them."""

    columns: list[str]
    keep: bool


@dataclass(frozen=True)
class ClassifierFitted(Message):
    """Client: rows of each class, what the model looks at, and its bytes unless it stays here."""

    rows: list[float]
    columns: list[str]
    parameters: int
    seconds: Array
    stays: bool
    model: Array


@dataclass(frozen=True)
class Failed(Message):
    """Client: I could not; why."""

    error: str
