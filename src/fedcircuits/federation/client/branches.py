"""Branches of one latent tree, at a client (`joint` where columns are split).

The classes l are agreed; a client fits p_c(x_S | l) to rows that belong to classes in part, and
sends how likely its part of every aligned row is under each class. A learner that can go on from
where it was is a generator (`LearnsBranch`); any other fits every class anew, step by step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits import Circuit
from fedcircuits.circuits.root_states import state_circuit
from fedcircuits.density import Density, Learner, LearnsBranch
from fedcircuits.errors import FedcircuitsError
from fedcircuits.federation.client.dispatch import seconds_since
from fedcircuits.federation.client.jobs import fitted_model, without_label
from fedcircuits.federation.client.rows.aligned_rows import AlignedRows
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import NONE, JobId, ModelName
from fedcircuits.schema import Table

# One model whose root has a state for each class, or a model for each class.
Made = Density | dict[int, Density]
Branch = Generator[FloatArray, sparse.csr_matrix | None, Made]


def branch_of(
    make_learner: Callable[[str | None], Learner],
    label: str | None,
    table: Table,
    shares: sparse.csr_matrix,
    rng: np.random.Generator,
    *,
    label_in_evidence: bool,
) -> Branch:
    """The steps of a client's learner.

    Args:
        make_learner: the learner for a label.
        label: its name, where it is among the columns.
        table: own rows.
        shares: (n, R) to start from.
        rng: of this branch.
        label_in_evidence: whether the evidence may depend on the label.
    """
    learner = make_learner(label)
    if isinstance(learner, LearnsBranch):
        return learner.branch(table, shares, rng, label_in_evidence=label_in_evidence)
    seen = table if label_in_evidence else without_label(table, label)
    # Without the label's name: in a class it is a column like any other.
    return _class_by_class(make_learner(None), table, seen, shares, rng)


def _class_by_class(
    learner: Learner, table: Table, seen: Table, shares: sparse.csr_matrix, rng: np.random.Generator
) -> Branch:
    """Every class is fitted anew in every step, by rows weighted with their shares.

    Args:
        learner: for a density alone.
        table: rows to fit on.
        seen: the same rows, as the evidence may see them.
        shares: (n, R) to start from.
        rng: of this branch.
    """
    current: sparse.csr_matrix | None = shares
    models: dict[int, Density] = {}
    while current is not None:
        by_class = current.tocsc()
        evidence = np.full(current.shape, -np.inf)
        models = {}
        for cls in range(current.shape[1]):
            column = slice(by_class.indptr[cls], by_class.indptr[cls + 1])
            rows, weights = by_class.indices[column], by_class.data[column]
            if weights.sum() <= 0:
                continue
            mine = replace(table.rows(rows.astype(np.int64)), weights=weights.astype(float))
            model = models[cls] = learner.fit(mine, rng)
            rows_of_it = seen.columns(list(model.schema.names))
            evidence[:, cls] = model.log_prob_table(replace(rows_of_it, schema=model.schema))
        current = yield evidence
    return models


Begin = Callable[[JobId, Table, sparse.csr_matrix], Branch]


@dataclass
class _Open:
    """A branch that is being trained, with the steps it has taken."""

    steps: Branch
    number: int
    evidence: FloatArray


class Branches:
    """A client's branches under way, by job.

    Args:
        client: its name, for errors.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self._open: dict[JobId, _Open] = {}

    def answer(
        self,
        request: m.Branch,
        table: Table,
        aligned: AlignedRows,
        mapped: IntArray,
        begin: Begin,
    ) -> tuple[m.BranchDone, dict[ModelName, Density]]:
        """Return the reply to one step, and the models where it was the last.

        Args:
            request: the step.
            table: all rows of the client.
            aligned: which of them are meant.
            mapped: (n,) class of rows that are not aligned, -1 for none.
            begin: makes the steps of a job over the columns of a table.
        """
        start = time.process_time()
        shares = aligned.shared_out(request, mapped)
        rows = aligned.chosen(request.choice)
        for job in request.jobs:
            self._step(job, request.number, table.columns(list(job.columns)), shares, begin)
        seconds = seconds_since(start)
        class_rows = np.asarray(shares.sum(axis=0), dtype=float).ravel()
        if not request.last:
            evidence = tuple(
                m.Evidence(job.id, self._open[job.id].evidence[rows].astype(np.float32))
                for job in request.jobs
            )
            return m.BranchDone(evidence, class_rows, (), seconds, ()), {}
        made: dict[ModelName, Density] = {}
        reports: list[m.JobReports] = []
        for job in request.jobs:
            found = _last(self._open.pop(job.id).steps)
            whole = found if isinstance(found, dict) else {NONE: found}
            lines = [line for model in whole.values() for line in m.report_of(model)]
            reports.append(m.JobReports(job.id, lines))
            made |= {ModelName(job.id, cls): model for cls, model in whole.items()}
        models = tuple(
            fitted_model(name, model, _rows_behind(name, class_rows), keep=request.keep)
            for name, model in made.items()
        )
        if request.keep:
            made |= _states(made, request.n_classes)
        return m.BranchDone((), class_rows, models, seconds, tuple(reports)), made

    def _step(
        self,
        job: m.BranchJob,
        number: int,
        table: Table,
        shares: sparse.csr_matrix,
        begin: Begin,
    ) -> None:
        if number == 0:
            steps = begin(job.id, table, shares)
            self._open[job.id] = _Open(steps, 1, next(steps))
            return
        found = self._open.get(job.id)
        if found is None or found.number != number:
            raise FedcircuitsError(
                f"client {self._client!r} is not at step {number} of {str(job.id)!r}"
            )
        found.evidence = found.steps.send(shares)
        found.number += 1


def _last(steps: Branch) -> Made:
    """The outcome of steps that are to end."""
    try:
        steps.send(None)
    except StopIteration as stopped:
        made: Made = stopped.value
        return made
    raise FedcircuitsError("a branch went on after its end")


def _rows_behind(name: ModelName, class_rows: FloatArray) -> float:
    return float(class_rows.sum() if name.cls == NONE else class_rows[name.cls])


def _states(models: Mapping[ModelName, Density], n_classes: int) -> dict[ModelName, Density]:
    """A model for each root state of those that have all classes in one."""
    return {
        replace(name, state=k): state_circuit(model, n_classes, k)
        for name, model in models.items()
        if name.cls == NONE and isinstance(model, Circuit)
        for k in range(n_classes)
    }
