"""Messages that fit models: densities of jobs, and classifiers; which rows fits may use.

What each reply reveals, and to whom, is in the declarations (`Verb`) at the end of this file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedcircuits.arrays import Array
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.names import NONE, Job, JobId, ModelName
from fedcircuits.federation.wire.requests.handshake import Ready
from fedcircuits.federation.wire.verbs import (
    LABEL_ALLOWED,
    Asked,
    Level,
    Reveals,
    Terms,
    Verb,
    declare,
)

MODELS = (
    Reveals(
        "server",
        Level.AGGREGATES,
        "models, where they stay (`placement='remote'`) their sizes alone; rows behind each; name, "
        "warnings and CPU seconds of the learner, without a smallest group all of its report",
    ),
    Reveals("model", Level.AGGREGATES, "the models"),
)


@dataclass(frozen=True)
class UseRows(Message):
    """Server: fit on some aligned rows and a share of the others, until the next such message.

    Attributes:
        rows: name of the aligned rows; empty for all.
        share: of the others.
    """

    rows: str
    share: float


@dataclass(frozen=True)
class Fit(Message):
    """Server: fit these jobs; with `keep` the models stay at the client."""

    jobs: tuple[Job, ...]
    keep: bool


@dataclass(frozen=True)
class FittedModel:
    """One model of a reply.

    Attributes:
        name: of the model.
        rows: behind it.
        parameters: how many numbers it holds.
        model: its bytes, none where it stays at the client.
        arrays: of a large model, by name, which are not among its bytes.
    """

    name: ModelName
    rows: float
    parameters: int
    model: Array
    arrays: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class JobReports:
    """What the learner reports about the fits of one job."""

    job: JobId
    reports: list[Any]


@dataclass(frozen=True)
class Fitted(Message):
    """Client: the models of the jobs, CPU seconds, and what its learner reports."""

    models: tuple[FittedModel, ...]
    seconds: Array  # an array of one: it always takes the same number of bytes
    reports: tuple[JobReports, ...]

    def fault(self, request: Message) -> str | None:
        """Models of the jobs asked for and of nothing else."""
        assert isinstance(request, Fit)
        classes = {job.id: job.n_classes for job in request.jobs}
        for each in self.models:
            if not NONE <= each.name.cls < max(classes.get(each.name.job, 0), 0):
                return f"a model {str(each.name)!r} of a class that was not asked for"
        return fault_of_models(self.models, set(classes), request.keep)


def fault_of_models(models: tuple[FittedModel, ...], asked: set[JobId], keep: bool) -> str | None:
    """Return what is wrong with the models of a reply: others than asked for, or no bytes."""
    for each in models:
        if each.name.job not in asked or each.name.state >= 0:
            return f"a model {str(each.name)!r} that was not asked for"
        if not 0 < each.rows < float("inf"):
            return f"{each.rows} rows behind the model {str(each.name)!r}"
        if bool(each.model.size) is keep:
            return f"the model {str(each.name)!r} " + ("was to stay" if keep else "has no bytes")
    if len({each.name for each in models}) < len(models):
        return "one model twice"
    return None


@dataclass(frozen=True)
class FitClassifier(Message):
    """Server: fit a classifier of the label to these columns, the label among them."""

    columns: list[str]
    keep: bool


@dataclass(frozen=True)
class ClassifierFitted(Message):
    """Client: rows of each class, columns the model uses, and its bytes unless it stays."""

    rows: list[float]
    columns: list[str]
    parameters: int
    seconds: Array
    stays: bool
    model: Array


def _fit(request: Fit, terms: Terms, _: str | None) -> Asked:
    names = tuple(name for job in request.jobs for name in job.columns)
    return Asked(names, terms.stays(request.keep))


def _fit_classifier(request: FitClassifier, terms: Terms, _: str | None) -> Asked:
    fault = f"the label; {LABEL_ALLOWED['no']}" if terms.label == "no" else None
    return Asked(tuple(request.columns), fault or terms.stays(request.keep))


USE_ROWS = declare(Verb("use_rows", UseRows, Ready, "validation", (), changes_state=True, most=64))
FIT = declare(
    Verb(
        "fit",
        Fit,
        Fitted,
        "training",
        MODELS,
        costly=True,
        changes_state=True,
        makes_models=True,
        asks=_fit,
        groups={"rows behind a model": lambda reply: [each.rows for each in reply.models]},
    )
)
FIT_CLASSIFIER = declare(
    Verb(
        "fit_classifier",
        FitClassifier,
        ClassifierFitted,
        "training",
        MODELS,
        costly=True,
        changes_state=True,
        makes_models=True,
        asks=_fit_classifier,
        groups={"rows of a class": lambda reply: reply.rows},
    )
)
