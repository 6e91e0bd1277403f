"""Names that server and clients share for groupings of rows, jobs and models.

All are frozen values that travel inside messages. Their text (`str`) seeds the generators of a fit
and orders models; it is written here and read nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

NONE = -1  # of a class, a root state or a number that a name does not have


class GroupingKind(StrEnum):
    """What the parts of a grouping of rows are."""

    CLUSTERS = "K"  # of a client's own columns
    LATENT_CLASSES = "K/L"  # agreed over the clusters of all clients
    CODES = "C"  # of a client's own columns, for the label's owner
    PRIVATE_CLUSTERS = "P"  # of the columns that only one client holds
    ANCHORS = "A"  # centres of a shared subspace (federated k-means)


@dataclass(frozen=True)
class Grouping:
    """A grouping of a client's rows.

    Attributes:
        kind: what its parts are.
        number: which of several, NONE where there is one.
    """

    kind: GroupingKind
    number: int = NONE

    def __str__(self) -> str:
        return self.kind.value + _number(self.number)


CLUSTERS = Grouping(GroupingKind.CLUSTERS)
LATENT_CLASSES = Grouping(GroupingKind.LATENT_CLASSES)
CODES = Grouping(GroupingKind.CODES)
PRIVATE_CLUSTERS = Grouping(GroupingKind.PRIVATE_CLUSTERS)


class JobKind(StrEnum):
    """What a job fits."""

    SUBSPACE = "S"  # the columns of a subspace (Algorithm 1, line 3)
    CLUSTER = "P"  # one cluster of private columns
    CLASSES = "L"  # the columns of a subspace for every agreed class
    WHOLE = "W"  # all columns of a client, shared and private, for every agreed class
    ANCHOR = "A"  # the columns of a shared subspace around one anchor
    BRANCH = "B"  # a branch of one latent tree over all clients
    ALL_ROWS = "R"  # one model of the rows of all clients, in rounds of sums
    CLASSIFIER = "classifier"  # of the label, for federations that average or vote


@dataclass(frozen=True)
class JobId:
    """The name of something to fit, unique at a client.

    Attributes:
        kind: what is fitted.
        space: number of the subspace, NONE where the kind has none.
        part: cluster, class or anchor that it is for, NONE for all of them.
        attempt: how often the job was begun before, after clients failed.
    """

    kind: JobKind
    space: int = NONE
    part: int = NONE
    attempt: int = 0

    def __str__(self) -> str:
        dot = "." if self.space >= 0 and self.part >= 0 else ""
        again = f"@{self.attempt}" if self.attempt else ""
        return f"{self.kind.value}{_number(self.space)}{dot}{_number(self.part)}{again}"


@dataclass(frozen=True)
class Job:
    """One thing to fit at one client.

    Attributes:
        id: its name.
        columns: the variables.
        group: a grouping of the rows, None for all rows.
        part: which part of the grouping.
        per_label: whether to give one model p(x | y) for each class of the label.
        classes: a grouping, to give one model p(x | l) for each of its classes.
        mixed: whether the models will be averaged with those of clients that hold other rows.
        n_classes: how many classes there are; 0 where no model is of a class.
    """

    id: JobId
    columns: tuple[str, ...]
    group: Grouping | None = None
    part: int = 0
    per_label: bool = False
    classes: Grouping | None = None
    mixed: bool = False
    n_classes: int = 0


@dataclass(frozen=True)
class ModelName:
    """A model at its client.

    Attributes:
        job: that made it.
        cls: class that it is of, NONE for a model of all rows or of all classes together.
        state: the root state that is meant, NONE for the whole model.
        tilt: name of the tables that it is tilted by, empty for the model as it was fitted.
        tilted_class: class of the label that it is tilted for, NONE where it is not tilted.
    """

    job: JobId
    cls: int = NONE
    state: int = NONE
    tilt: str = ""
    tilted_class: int = NONE

    def __str__(self) -> str:
        cls = f"|{self.cls}" if self.cls >= 0 else ""
        tilt = f"~{self.tilt}.{self.tilted_class}" if self.tilt else ""
        return f"{self.job}{cls}" + (f"#{self.state}" if self.state >= 0 else "") + tilt


CLASSIFIER = ModelName(JobId(JobKind.CLASSIFIER))


@dataclass(frozen=True)
class ModelKey:
    """A model of a federation; ordered by client, text of the job and class.

    Attributes:
        client: who fitted it.
        job: that made it.
        cls: as of `ModelName`.
    """

    client: str
    job: JobId
    cls: int = NONE

    @property
    def name(self) -> ModelName:
        """The model's name at its client."""
        return ModelName(self.job, self.cls)

    def __lt__(self, other: ModelKey) -> bool:
        mine, others = (self.client, str(self.job)), (other.client, str(other.job))
        return (*mine, self.cls) < (*others, other.cls)


def _number(value: int) -> str:
    return str(value) if value >= 0 else ""
