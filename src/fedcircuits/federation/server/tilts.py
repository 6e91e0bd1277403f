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

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.evaluation_plan import EvaluationPlan
from fedcircuits.circuits.passes import sum_product, up
from fedcircuits.circuits.queries.restrict import fold_evidence
from fedcircuits.density import Density
from fedcircuits.density.tilt import Tilt
from fedcircuits.federation.client.label.tilting import tilted_by_class
from fedcircuits.federation.plan.weights import log_shares
from fedcircuits.federation.server.circuit_builder import SERVER, CircuitBuilder
from fedcircuits.federation.server.fitted_parts import FittedParts, indicator_leaf
from fedcircuits.federation.server.gauge import gauged
from fedcircuits.federation.server.remote import RemoteDensity, tilted_remotely


def combined(fitted: FittedParts) -> Tilt | None:
    """The clients' tilts as one; None where too few clients can compare the classes.

    A column's table is the mean over the clients that hold it, weighted by the harmonic mean of
    their class counts: one with few rows of a class knows little about separating it from others.
    Class constants are re-based to the class shares of all rows. A client that lacks a class has
    no say; together the others must hold half of each class, on average.
    """
    tilts = fitted.tilts
    rows = class_rows(fitted)
    present = rows > 0
    whole = {c: t for c, t in tilts.items() if (t.counts[present] > 0).all()}
    if not whole or present.sum() < 2:
        return None
    held = np.sum([t.counts for t in whole.values()], axis=0)[present]
    total = np.sum([t.counts for t in tilts.values()], axis=0)[present]
    if (held / total).mean() < 0.5:
        return None
    weight = {c: present.sum() / (1.0 / t.counts[present]).sum() for c, t in whole.items()}
    columns = tuple(dict.fromkeys(name for c in sorted(whole) for name in whole[c].columns))
    # Constants fitted in turns are those of whoever came last, given the tables of all others.
    speak = sorted(whole) if rows_are_split(fitted) else [max(whole)]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_q = np.log(rows / rows.sum())
        shifts = {n: whole[n].c - np.log(whole[n].counts / whole[n].counts.sum()) for n in speak}
    summed = sum(weight[name] * np.where(present, shifts[name], 0.0) for name in speak)
    c = summed / sum(weight[name] for name in speak)
    tables = []
    for column in columns:
        holders = [name for name in sorted(whole) if column in whole[name].columns]
        summed = sum(weight[name] * whole[name].of(column) for name in holders)
        tables.append(np.asarray(summed / sum(weight[name] for name in holders)))
    return Tilt(columns, np.asarray(c + log_q), tuple(tables), rows)


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
    tilt = gauged(tilt, structure, base)
    models, log_z = tilted(base, tilt)
    values = np.zeros((structure.n_nodes, tilt.n_classes))
    values[: kept.size] = log_z
    up(EvaluationPlan.of(structure), values, sum_product)
    codes = [int(y) for y in np.flatnonzero(np.isfinite(tilt.c))]
    leaves = [indicator_leaf(fitted.schema, fitted.label, y) for y in codes]
    builder = CircuitBuilder()
    builder.register([(leaf, SERVER) for leaf in leaves])
    builder.register([(models[i][y], owners[at]) for y in codes for i, at in enumerate(kept)])
    classes = []
    for leaf, y in zip(leaves, codes, strict=True):
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
    codes = [int(y) for y in np.flatnonzero(rows > 0)]
    leaves = {y: indicator_leaf(fitted.schema, fitted.label, y) for y in codes}
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
