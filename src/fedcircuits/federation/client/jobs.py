"""Fits one job at a client: which rows, which columns, and one model or one for each class.

    whole        p_c(x) on all rows, or on one part of a grouping of them
    per label    p_c(x | y) for every class of the label
    per class    p_c(x | l) for every class l of a grouping that was agreed on

Where the learner fits rows and class together (`hclt`, `mixture`), the last two fit one joint model
and condition it on each class: what the classes have in common is learned once, from all rows.
Other learners fit the classes of a grouping one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fedcircuits.arrays import BoolArray, IntArray
from fedcircuits.circuits import build
from fedcircuits.density import Density, Learner, LearnsClasses, LearnsForMixing
from fedcircuits.density.tilt import n_states_of, spread_over_states, state_values, states_of
from fedcircuits.errors import FedcircuitsError
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import Grouping, Job, JobId, ModelName
from fedcircuits.schema import Table, Variable

CLASS = "class\x1fagreed"  # no column of a user is called so
Learn = Callable[[Table, str | None, np.random.Generator], Density]
Models = dict[ModelName, tuple[Density, float]]  # and the rows behind each


def labels(table: Table, label: str | None, client: str) -> tuple[IntArray, BoolArray]:
    """(n,) label codes, and whether they are known; an error where the client lacks the label."""
    if label is None or label not in table.schema:
        raise FedcircuitsError(f"client {client!r} does not hold the label")
    at = table.schema.position(label)
    variable, known = table.schema.variables[at], table.observed[:, at]
    codes = np.zeros(len(table), dtype=np.int64)
    codes[known] = states_of(variable, table.values[known, at])
    return codes, known


def without_label(table: Table, label: str | None) -> Table:
    """The table with no cell of the label observed: what is computed from it reveals none."""
    if label is None or label not in table.schema:
        return table
    return table.hide(table.schema.position(label))


def label_counts(table: Table, label: str | None) -> list[float]:
    """Rows of each class; nothing where the client does not hold the label."""
    if label is None or label not in table.schema:
        return []
    at = table.schema.position(label)
    variable = table.schema.variables[at]
    codes = states_of(variable, table.values[table.observed[:, at], at])
    n = n_states_of(variable)
    return [float(c) for c in np.bincount(codes, minlength=n)]


def fit_job(
    job: Job,
    table: Table,
    label: str | None,
    groups: Mapping[Grouping, IntArray],
    learn: Learn,
    rng: np.random.Generator,
    *,
    knows_classes: bool = True,
) -> Models:
    """Return the models of one job and the rows behind each.

    Args:
        job: what to fit.
        table: all rows of the client.
        label: its name, if the client holds it.
        groups: class of every row (-1 for none), by name.
        learn: table, label and generator to density.
        rng: of this job.
        knows_classes: whether the learner learns classes as a label, so that one fit serves all.
    """
    columns = list(job.columns)
    if job.classes is not None:
        part, codes = table.columns(columns), groups[job.classes]
        if columns == [label]:
            return _shares_by_class(job.id, part, codes)
        if not knows_classes:
            return _one_by_one(job.id, part, codes, learn, rng)
        return _per_class(job.id, _with_class(part, codes), CLASS, learn, rng)
    part = table.columns(columns)
    if job.group is not None:
        part = part.rows(np.flatnonzero(groups[job.group] == job.part))
    known = label if label in part.schema else None
    if known is not None and job.per_label:
        if knows_classes and not part.schema[known].is_coded:  # its states are the classes
            codes, seen = labels(part, known, "")
            others = part.columns([name for name in columns if name != known])
            part, known = _with_class(others, np.where(seen, codes, -1)), CLASS
        return _per_class(job.id, part, known, learn, rng)
    n_rows = float(part.row_weights.sum())
    if n_rows <= 0:
        return {}
    if columns == [known]:
        return {ModelName(job.id): (_shares(part), n_rows)}
    return {ModelName(job.id): (learn(part, known, rng), n_rows)}


def fitted_model(name: ModelName, model: Density, rows: float, *, keep: bool) -> m.FittedModel:
    """Return a model as it is reported, with its bytes unless it stays here."""
    data, arrays = (np.zeros(0, dtype=np.uint8), {}) if keep else m.encoded_apart(model)
    return m.FittedModel(name, rows, model.n_parameters, data, arrays)


def _with_class(table: Table, codes: IntArray) -> Table:
    """The rows whose class is known, with the class as a column."""
    known = np.flatnonzero(codes >= 0)
    n_classes = int(codes.max(initial=0)) + 1
    variable = Variable(
        CLASS, "categorical", tuple(map(str, range(n_classes))), closed=True, declared=True
    )
    rows = table.rows(known)
    return rows.with_column(variable, codes[known].astype(float), np.ones(known.size, dtype=bool))


def for_job(learner: Learner, table: Table, label: str | None, mixed: bool) -> Learner:
    """Return the learner with the settings of a job, where it has such settings (`contracts.py`).

    Args:
        learner: of the client.
        table: the rows of the job.
        label: of the fit; the agreed classes take its place where there are some.
        mixed: whether the model will be averaged with those of clients that hold other rows.
    """
    if label == CLASS and isinstance(learner, LearnsClasses):
        learner = learner.for_classes(len(table), table.schema[CLASS].n_codes)
    if mixed and isinstance(learner, LearnsForMixing):
        learner = learner.for_mixing()
    return learner


def _one_by_one(
    job: JobId, table: Table, codes: IntArray, learn: Learn, rng: np.random.Generator
) -> Models:
    """One model for each class, from its own rows alone."""
    answer: Models = {}
    for code in np.unique(codes[codes >= 0]):
        mine = table.rows(codes == code)
        n_rows = float(mine.row_weights.sum())
        answer[ModelName(job, int(code))] = (learn(mine, None, rng), n_rows)
    return answer


def _per_class(
    job: JobId, table: Table, label: str, learn: Learn, rng: np.random.Generator
) -> Models:
    """One model for each class that has rows, from one joint model of all of them."""
    at = table.schema.position(label)
    table = table.rows(table.observed[:, at])
    if len(table) == 0:
        return {}
    variable = table.schema.variables[at]
    codes = states_of(variable, table.values[:, at])
    counts = np.bincount(codes, table.weights, minlength=n_states_of(variable))
    others = [n for n in table.schema.names if n != label]
    if (counts > 0).sum() == 1:  # one class: there is nothing to condition on
        only = learn(table.columns(others), None, rng)
        return {ModelName(job, int(codes[0])): (only, float(counts.sum()))}
    joint = learn(table, label, rng)
    answer: Models = {}
    at = joint.schema.position(label)
    values = state_values(joint.schema.variables[at])
    for y in np.flatnonzero(counts):
        evidence = Table.empty(joint.schema, 1)
        evidence.values[0, at], evidence.observed[0, at] = values[y], True
        answer[ModelName(job, int(y))] = (joint.restrict(tuple(others), evidence), float(counts[y]))
    return answer


def _shares_by_class(job: JobId, table: Table, codes: IntArray) -> Models:
    """The label alone, for each class."""
    answer: Models = {}
    for code in np.unique(codes[codes >= 0]):
        mine = table.rows(codes == code)
        answer[ModelName(job, int(code))] = (_shares(mine), float(len(mine)))
    return answer


def _shares(table: Table) -> Density:
    """The label alone: its shares, as they are."""
    variable = table.schema.variables[0]
    codes = states_of(variable, table.values[table.observed[:, 0], 0])
    weights = table.row_weights[table.observed[:, 0]]
    counts = np.bincount(codes, weights, minlength=n_states_of(variable)).astype(float)
    counts = counts @ spread_over_states(variable, counts)
    shares = counts / counts.sum() if counts.sum() > 0 else np.full(counts.size, 1 / counts.size)
    return build.circuit(table.schema, build.states(variable, shares))
