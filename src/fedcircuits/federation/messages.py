"""Every record on the wire: typed, versioned, encoded once (`fedcircuits.encoding`).

A message is a frozen dataclass whose fields are JSON values, arrays, or mappings from names to
arrays. The server's requests and the clients' replies are all here; nothing else is ever sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcircuits.federation.message import Array as Array
from fedcircuits.federation.message import Arrays as Arrays
from fedcircuits.federation.message import Message as Message
from fedcircuits.federation.message import encoded as encoded
from fedcircuits.federation.message import model_array as model_array


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
    """Server: these rows of yours (m,) are rows `numbers` (m,) of the federation."""

    rows: Array
    numbers: Array


@dataclass(frozen=True)
class AskLabel(Message):
    """Server: the owner's label of the aligned rows is to be shared."""


@dataclass(frozen=True)
class Label(Message):
    """The label codes (m,) of rows `numbers` (m,), from its owner or on to the others."""

    numbers: Array
    codes: Array
    categories: list[Any]
    kind: str


@dataclass(frozen=True)
class Cluster(Message):
    """Server: cluster these columns into K parts; within the label's classes if you may."""

    job: str
    columns: list[str]
    n_clusters: int
    within_label: bool
    tell_rows: bool


@dataclass(frozen=True)
class Clustered(Message):
    """Client: rows and stratum (label class, unnamed) of each cluster, indices of aligned rows."""

    rows: Array
    strata: Array
    numbers: Array
    indices: Array

    def fault(self, request: Message) -> str | None:
        """One stratum a cluster, one index a row."""
        del request
        width = 1 if self.rows.size <= 256 else 2
        if self.strata.shape != self.rows.shape:
            return f"{self.strata.size} strata of {self.rows.size} clusters"
        if self.indices.size != width * self.numbers.size:
            return f"{self.indices.size // width} indices of {self.numbers.size} rows"
        return None


@dataclass(frozen=True)
class Assign(Message):
    """Server: the latent class of aligned rows, and r(l | k) for the rest."""

    job: str
    numbers: Array
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
    """Server: sums and counts of your shared columns around these centres (federated k-means)."""

    job: str
    columns: list[str]
    centres: Array
    within_label: bool


@dataclass(frozen=True)
class CentreSums(Message):
    """Client: for each centre the sum of rows nearest to it, their number and squared distances."""

    sums: Array
    rows: Array
    inertia: float

    def fault(self, request: Message) -> str | None:
        """One sum and one count a centre."""
        assert isinstance(request, AskCentres)
        k, width = request.centres.shape
        if self.sums.shape != (k, width - 1) or self.rows.shape != (k,):
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
class Share(Message):
    """Server: how much of aligned rows `numbers` belongs to `classes`, for rounds of EM."""

    job: str
    numbers: Array
    classes: Array
    weights: Array


@dataclass(frozen=True)
class UseRows(Message):
    """Server: fit on these aligned rows and on a share of your others, until told otherwise."""

    numbers: Array
    share: float


@dataclass(frozen=True)
class Judge(Message):
    """Server, to the label's owner: (n, Y) log p(x, y) of aligned rows; how well is y told?"""

    numbers: Array
    log_joint: Array


@dataclass(frozen=True)
class Judged(Message):
    """Owner: the mean of -log p(y | x), and rows behind it. The label itself stays here."""

    log_loss: float
    n_rows: int


@dataclass(frozen=True)
class Calibrate(Message):
    """Server, to the label's owner: (n, S, Y) log p(x_S | y) of aligned rows, and log q(y)."""

    numbers: Array
    log_probs: Array
    log_prior: Array


@dataclass(frozen=True)
class Calibrated(Message):
    """Owner: weights (S,) and biases (Y,), and the fall in log-loss; 0 where none is kept."""

    weights: Array
    bias: Array
    gain: float


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
class Ask(Message):
    """Server: evaluate a model that stayed with you, on rows sent along or on aligned rows."""

    model: str
    what: str
    order: int
    values: Array
    observed: Array
    numbers: Array
    seed: int


@dataclass(frozen=True)
class Answer(Message):
    """Client: a vector or matrix, one row for each row asked."""

    values: Array

    def fault(self, request: Message) -> str | None:
        """One entry a row."""
        assert isinstance(request, Ask)
        n = request.numbers.size or len(request.values)
        if request.what != "covariance" and self.values.shape[:1] != (n,):
            return f"an answer of shape {self.values.shape} for {n} rows"
        return None


@dataclass(frozen=True)
class Query(Message):
    """Server: a question to models that stayed with you.

    Cells of the rows are sent along (`values`, `observed` over `columns`) and, where there are
    digests of ids, filled up from your own table, all but the hidden columns. A restricted model is
    over `keep`, given the values of `given`. `rows` says which rows are for which model.
    """

    what: str
    models: list[str]
    columns: list[str]
    values: Array
    observed: Array
    order: int = 0
    target: str = ""
    seed: int = 0
    restricted: bool = False
    keep: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    given_values: Array = field(default_factory=lambda: np.zeros(0))
    salt: str = ""
    hidden: list[str] = field(default_factory=list)
    digests: Array = field(default_factory=lambda: np.zeros((0, 12), dtype=np.uint8))
    rows: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Answers(Message):
    """Client: a vector or matrix for each model asked."""

    values: Arrays

    def fault(self, request: Message) -> str | None:
        """One array a model, one entry a row."""
        assert isinstance(request, Query)
        if sorted(self.values) != sorted(set(request.models)):
            return f"answers of {sorted(self.values)} where {sorted(request.models)} were asked"
        for key, array in self.values.items():
            n = len(request.rows.get(key, request.values))
            if array.dtype != np.float64 or (request.what != "covariance" and len(array) != n):
                return f"an answer of shape {array.shape} and {array.dtype} for {n} rows"
        return None


@dataclass(frozen=True)
class Failed(Message):
    """Client: I could not; why."""

    error: str
