"""One tilt for all clients, and the circuit of density and label that it makes of m(x).

    p(x, y) = (1/Z) m(x) exp(c_y + sum_j g_yj(x_j))

m is what a rule glues of the clients' models without the label. For every class each model is
multiplied by its columns' tables and normalised; normalisers move into the weights above it, as
the probability of evidence would, and at the root into the weights of the classes. The result is an
ordinary circuit: every query sees density and label alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray
from fedcircuits.circuits.evaluation_plan import EvaluationPlan
from fedcircuits.circuits.passes import sum_product, up
from fedcircuits.circuits.queries.restrict import fold_evidence
from fedcircuits.density import Density
from fedcircuits.density.tilt import Tilt
from fedcircuits.federation.client.label.tilting import tilted_by_class
from fedcircuits.federation.plan.weights import comparisons, known_log_shares, log_shares
from fedcircuits.federation.server.circuit_builder import SERVER, CircuitBuilder
from fedcircuits.federation.server.fitted_parts import FittedParts, label_leaves
from fedcircuits.federation.server.gauge import gauged
from fedcircuits.federation.server.remote import RemoteDensity, tilted_remotely

# Classes up to which every pair is compared for itself.
MOST_PAIRED = 500


def combined(fitted: FittedParts) -> Tilt | None:
    """The clients' tilts as one; None where too few clients can compare the classes.

    A column's tables are joined over the clients that hold it (`_joined`). Class constants are
    re-based to the class shares of all rows. Clients with two classes or more must together hold
    half of each class, on average, and their comparisons reach from each class to each other one.
    """
    tilts, rows = fitted.tilts, class_rows(fitted)
    present = rows > 0
    able = {c: t for c, t in tilts.items() if (t.counts > 0).sum() > 1}
    if not able or present.sum() < 2:
        return None
    held = np.sum([t.counts for t in able.values()], axis=0)[present]
    total = np.sum([t.counts for t in tilts.values()], axis=0)[present]
    if (held / total).mean() < 0.5 or not _connected([t.counts for t in able.values()], present):
        return None
    columns = tuple(dict.fromkeys(name for c in sorted(able) for name in able[c].columns))
    # Constants fitted in turns are those of whoever came last, given the tables of all others.
    whole = [name for name in able if (able[name].counts[present] > 0).all()]
    speak = sorted(able) if rows_are_split(fitted) or not whole else [max(whole)]
    shifts = [able[c].c - known_log_shares(able[c].counts) for c in speak]
    shifts = [np.where(np.isfinite(shift), shift, 0.0)[:, None] for shift in shifts]
    c = _joined([able[name].counts for name in speak], shifts)[:, 0]
    with np.errstate(divide="ignore"):
        log_q = np.log(rows / rows.sum())
    tables = []
    for column in columns:
        holders = [able[name] for name in sorted(able) if column in able[name].columns]
        tables.append(_joined([t.counts for t in holders], [t.of(column) for t in holders]))
    return Tilt(columns, np.where(present, c, 0.0) + log_q, tuple(tables), rows)


def _joined(counts: Sequence[FloatArray], tables: Sequence[FloatArray]) -> FloatArray:
    """(Y, S) one table whose differences of classes are nearest to those of some clients' (Y, S).

    A client's difference of two classes counts by the rows that it compares them with, so that one
    with few rows of a class says little about that class and much about others. For two classes it
    is the mean. What all classes share is the mean by all comparisons.
    """
    if len(tables) == 1:
        return tables[0]
    rows, every = np.stack(counts), np.stack(tables)  # (C, Y), (C, Y, S)
    if rows.shape[1] > MOST_PAIRED:  # each class with the middle of a client's classes
        seen, by = (rows > 0)[:, :, None], rows[:, :, None]
        middle = (seen * every).sum(axis=1, keepdims=True) / seen.sum(axis=1, keepdims=True)
        apart = (by * (every - middle)).sum(axis=0) / np.maximum(by.sum(axis=0), 1.0)
        return np.asarray(apart + np.average(every.mean(axis=1), axis=0, weights=rows.sum(axis=1)))
    pairs = np.stack([comparisons(mine) for mine in counts])  # (C, Y, Y)
    laplacians = np.eye(rows.shape[1]) * pairs.sum(axis=2)[:, :, None] - pairs
    inverse = np.linalg.pinv(laplacians.sum(axis=0), hermitian=True)
    apart = inverse @ (laplacians @ every).sum(axis=0)
    by_pairs = pairs.sum(axis=(1, 2))
    return np.asarray(apart + np.average(every.mean(axis=1), axis=0, weights=by_pairs))


def _connected(counts: Sequence[FloatArray], present: BoolArray) -> bool:
    """Whether comparisons lead from every class that is present to every other one."""
    met = np.sum([comparisons(each) for each in counts], axis=0)[np.ix_(present, present)] > 0
    reached = np.eye(len(met), dtype=bool)[0]
    for _ in met:
        reached = reached | met[reached].any(axis=0)
    return bool(reached.all())


def class_rows(fitted: FittedParts) -> FloatArray:
    """(Y,) rows of each class: added up where rows are split, one count where columns are."""
    counts = [tilt.counts for tilt in fitted.tilts.values()]
    total = np.sum(counts, axis=0) if rows_are_split(fitted) else np.max(counts, axis=0)
    return np.asarray(total, dtype=float)


def rows_are_split(fitted: FittedParts) -> bool:
    """Whether all clients have fitted tables of the same columns."""
    return len({frozenset(tilt.columns) for tilt in fitted.tilts.values()}) == 1


def tilted(models: Sequence[Density], tilt: Tilt) -> tuple[list[list[Density]], FloatArray]:
    """For every model its (Y) tilted ones, and (models, Y) logs of their normalisers."""
    away = [model for model in models if isinstance(model, RemoteDensity)]
    if away:
        return tilted_remotely(away, tilt)
    found = [tilted_by_class(model, tilt) for model in models]
    log_z = np.array([[each for _, each in of_model] for of_model in found])
    return [[model for model, _ in of_model] for of_model in found], log_z


def glue_tilted(
    fitted: FittedParts, m: tuple[CircuitBuilder, int], tilt: Tilt
) -> tuple[CircuitBuilder, int]:
    """The circuit of p(x, y) from that of m(x), given as builder and root."""
    assert fitted.label is not None
    parts, owners = m[0].parts, m[0].owners
    structure, kept = m[0].below(m[1], len(parts))
    base = [parts[at] for at in kept]
    tilt = gauged(tilt, structure, base, fitted.close)
    models, log_z = tilted(base, tilt)
    values = np.zeros((structure.n_nodes, tilt.n_classes))
    values[: kept.size] = log_z
    up(EvaluationPlan.of(structure), values, sum_product)
    leaves = label_leaves(fitted.schema, fitted.label, tilt.counts)
    codes = list(leaves)
    builder = CircuitBuilder()
    builder.register([(leaf, SERVER) for leaf in leaves.values()])
    builder.register([(models[i][y], owners[at]) for y in codes for i, at in enumerate(kept)])
    classes = []
    for y, leaf in leaves.items():
        numbers = np.array([builder.part(of_model[y]) for of_model in models], dtype=np.int64)
        x = fold_evidence(structure, values[:, y], numbers, builder)
        classes.append(builder.product([builder.part(leaf), x]))
    log_class = tilt.c[codes] + values[-1, codes]
    log_class -= np.logaddexp.reduce(log_class)
    return builder, builder.sum(classes, log_class)


def class_conditional(fitted: FittedParts) -> tuple[CircuitBuilder, int]:
    """sum_y q(y) sum_c w(c | y) p_c(x | y), each client's model tilted by its own tables.

    For rows split where the clients' comparisons of classes cannot be averaged: above all, where
    each of them has one class, whose density is then what it has to give.
    """
    assert fitted.label is not None
    keys = sorted(fitted.models)
    found = {key: tilted([fitted.models[key]], fitted.tilts[key.client])[0][0] for key in keys}
    rows = class_rows(fitted)
    leaves = label_leaves(fitted.schema, fitted.label, rows)
    codes = list(leaves)
    builder = CircuitBuilder()
    builder.register([(leaf, SERVER) for leaf in leaves.values()])
    held = {y: [k for k in keys if fitted.tilts[k.client].counts[y] > 0] for y in codes}
    builder.register([(found[k][y], k.client) for y in codes for k in held[y]])
    classes = []
    for y in codes:
        counts = [float(fitted.tilts[k.client].counts[y]) for k in held[y]]
        x = builder.mixture([builder.part(found[k][y]) for k in held[y]], counts)
        classes.append(builder.product([builder.part(leaves[y]), x]))
    return builder, builder.sum(classes, log_shares(rows[codes]))


def with_tilt(fitted: FittedParts, m: tuple[CircuitBuilder, int]) -> tuple[CircuitBuilder, int]:
    """The circuit of p(x, y) by one tilt, or class by class where the tilts cannot be averaged."""
    tilt = combined(fitted)
    return class_conditional(fitted) if tilt is None else glue_tilted(fitted, m, tilt)
