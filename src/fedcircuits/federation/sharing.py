"""Messages of federated EM where columns are split: shares of rows down, evidence up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcircuits.federation.message import Array, Arrays, Message


@dataclass(frozen=True)
class Branch(Message):
    """Server: how much of chosen aligned rows belongs to which classes; take a step, and tell.

    `per_row` (packed) says how many classes a row belongs to, `classes` (packed) which ones, row
    after row, and `weights` how much of the row is in each. Each job has an id and columns. After
    the `last` step the models are asked for. With `tell_rows` the rows of each class are told.
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
    tell_rows: bool


@dataclass(frozen=True)
class BranchDone(Message):
    """Client: by job (rows, R) log-likelihoods of the chosen rows; in the end models instead."""

    evidence: Arrays
    class_rows: Array
    rows: dict[str, float]
    parameters: dict[str, int]
    seconds: Array
    reports: dict[str, list[Any]]
    models: Arrays

    def fault(self, request: Message) -> str | None:
        """Evidence or models, of the jobs asked for and of nothing else."""
        assert isinstance(request, Branch)
        asked = {job["job"] for job in request.jobs}
        if {key.partition("|")[0] for key in self.rows} - asked or self.evidence.keys() - asked:
            return f"branches {sorted(self.rows | self.evidence)} where {sorted(asked)} were asked"
        if request.last:
            if self.evidence or self.parameters.keys() != self.rows.keys() or not self.rows:
                return "a last step without its models"
            if bool(self.models) is request.keep:
                return "models that were to stay, or none where some were asked for"
            return None
        if self.rows or self.models or self.evidence.keys() != asked:
            return "a step without its evidence"
        for key, array in self.evidence.items():
            if array.dtype != np.float32 or array.shape[1:] != (request.n_classes,):
                return f"evidence {key!r} of shape {array.shape} for {request.n_classes} classes"
        return None
