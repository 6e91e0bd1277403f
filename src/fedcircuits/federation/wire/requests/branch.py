"""Messages of federated EM where columns are split: shares of rows down, evidence up.

What each reply reveals, and to whom, is in the declarations (`Verb`) at the end of this file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import Array
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.names import JobId
from fedcircuits.federation.wire.requests.fit import (
    MODELS,
    FittedModel,
    JobReports,
    fault_of_models,
)
from fedcircuits.federation.wire.verbs import Asked, Level, Reveals, Terms, Verb, declare


@dataclass(frozen=True)
class BranchJob:
    """A branch to fit: its name and columns."""

    id: JobId
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Branch(Message):
    """Server: how much of chosen aligned rows belongs to which classes; take a step.

    `per_row` (packed) says how many classes a row belongs to, `classes` (packed) which ones, row
    after row, and `weights` how much of the row is in each. After the `last` step the models are
    asked for. Evidence leaves the label out unless `label_in_evidence`.
    """

    number: int
    jobs: tuple[BranchJob, ...]
    choice: Array
    n_classes: int
    per_row: Array
    classes: Array
    weights: Array
    last: bool
    keep: bool
    label_in_evidence: bool


@dataclass(frozen=True)
class Evidence:
    """Log-likelihoods (rows, R) of the chosen rows under each class of one branch."""

    job: JobId
    log_probs: Array


@dataclass(frozen=True)
class BranchDone(Message):
    """Client: evidence of every branch; in the end models instead.

    `class_rows` (R,) are the rows of each class, those that others do not hold among them.
    """

    evidence: tuple[Evidence, ...]
    class_rows: Array
    models: tuple[FittedModel, ...]
    seconds: Array
    reports: tuple[JobReports, ...]

    def fault(self, request: Message) -> str | None:
        """Evidence or models, of the jobs and classes asked for and of nothing else."""
        assert isinstance(request, Branch)
        asked, R = {job.id for job in request.jobs}, request.n_classes
        if self.class_rows.shape != (R,) or not (self.class_rows >= 0).all():
            return (
                f"rows of {self.class_rows.size} classes where {R} were asked, or fewer than none"
            )
        if not np.isfinite(self.class_rows).all():
            return "rows of classes that are no numbers"
        return (
            self._fault_of_last(request, asked) if request.last else self._fault_of_step(asked, R)
        )

    def _fault_of_step(self, asked: set[JobId], n_classes: int) -> str | None:
        if self.models or {each.job for each in self.evidence} != asked:
            return "a step without its evidence"
        for each in self.evidence:
            array = each.log_probs
            if array.dtype != np.float32 or array.shape[1:] != (n_classes,):
                return f"evidence {str(each.job)!r} of shape {array.shape} for {n_classes} classes"
            if not (array < np.inf).all():  # nor is anything that is no number
                return f"evidence {str(each.job)!r} that is no log-likelihood"
        return None

    def _fault_of_last(self, request: Branch, asked: set[JobId]) -> str | None:
        if self.evidence or {each.name.job for each in self.models} != asked:
            return "a last step without its models, or with others that were not asked for"
        strange = [each.name for each in self.models if each.name.cls >= request.n_classes]
        if strange:
            return f"a model {str(strange[0])!r} that was not asked for"
        return fault_of_models(self.models, asked, request.keep)


def _branch(request: Branch, terms: Terms, _: str | None) -> Asked:
    names = tuple(name for job in request.jobs for name in job.columns)
    return Asked(names, terms.stays(request.keep or not request.last))


BRANCH = declare(
    Verb(
        "branch",
        Branch,
        BranchDone,
        "training",
        (
            Reveals(
                "server",
                Level.ROW_EVIDENCE,
                "log-likelihood of every aligned row under each class, every round; in the end "
                "models and rows behind each",
            ),
            Reveals("other clients", Level.BOUNDED_CODES, "shares of aligned rows in each class"),
            MODELS[1],
        ),
        costly=True,
        changes_state=True,
        makes_models=True,
        reads_models=True,
        asks=_branch,
        reveals_label=lambda asked: bool(asked.get("label_in_evidence", True)),
        groups={
            "rows behind a model": lambda reply: [each.rows for each in reply.models],
            "rows of a class": lambda reply: reply.class_rows,
        },
    )
)
