"""Messages of federated EM where columns are split: shares of rows down, evidence up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcircuits.arrays import Array, Arrays
from fedcircuits.federation.wire.message import Message


@dataclass(frozen=True)
class Branch(Message):
    """Server: how much of chosen aligned rows belongs to which classes; take a step, and tell.

    `per_row` (packed) says how many classes a row belongs to, `classes` (packed) which ones, row
    after row, and `weights` how much of the row is in each. Each job has an id and columns. After
    the `last` step the models are asked for. Evidence leaves the label out unless
    `tell_label`.
    """

    number: int
    jobs: list[Any]
    choice: Array
    n_classes: int
    per_row: Array
    classes: Array
    weights: Array
    last: bool
    keep: bool
    tell_label: bool


@dataclass(frozen=True)
class BranchDone(Message):
    """Client: by job (rows, R) log-likelihoods of the chosen rows; in the end models instead.

    `class_rows` (R,) are the rows of each class, those that others do not hold among them.
    """

    evidence: Arrays
    class_rows: Array
    rows: dict[str, float]
    parameters: dict[str, int]
    seconds: Array
    reports: dict[str, list[Any]]
    models: Arrays

    def fault(self, request: Message) -> str | None:
        """Evidence or models, of the jobs and classes asked for and of nothing else."""
        assert isinstance(request, Branch)
        asked, R = {job["job"] for job in request.jobs}, request.n_classes
        if self.class_rows.shape != (R,) or not (self.class_rows >= 0).all():
            return (
                f"rows of {self.class_rows.size} classes where {R} were asked, or fewer than none"
            )
        if not np.isfinite(self.class_rows).all():
            return "rows of classes that are no numbers"
        return (
            self._fault_of_models(request, asked) if request.last else self._fault_of_step(asked, R)
        )

    def _fault_of_step(self, asked: set[str], n_classes: int) -> str | None:
        if self.rows or self.models or self.evidence.keys() != asked:
            return "a step without its evidence"
        for key, array in self.evidence.items():
            if array.dtype != np.float32 or array.shape[1:] != (n_classes,):
                return f"evidence {key!r} of shape {array.shape} for {n_classes} classes"
            if not (array < np.inf).all():  # nor is anything that is no number
                return f"evidence {key!r} that is no log-likelihood"
        return None

    def _fault_of_models(self, request: Branch, asked: set[str]) -> str | None:
        for key, count in self.rows.items():
            job, _, code = key.partition("|")
            if job not in asked or (
                code and not (code.isdigit() and int(code) < request.n_classes)
            ):
                return f"a model {key!r} that was not asked for"
            if not 0 <= count < np.inf:
                return f"{count} rows behind the model {key!r}"
        if self.evidence or {key.partition("|")[0] for key in self.rows} != asked:
            return "a last step without its models"
        sent = set() if request.keep else self.rows.keys()
        if self.parameters.keys() != self.rows.keys() or self.models.keys() != sent:
            return "rows, parameters and models of different branches"
        return None
