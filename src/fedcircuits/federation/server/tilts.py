"""One tilt for all clients, and the circuit of density and label that it makes of m(x).

    p(x, y) = (1/Z) m(x) exp(c_y + sum_j g_yj(x_j))

m is what a rule glues of the clients' models without the label. For every class each model is
multiplied by its columns' tables and normalised; normalisers move into the weights above it, as
the probability of evidence would, and at the root into the weights of the classes. The result is an
ordinary circuit: every query sees density and label alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray
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

# Share of all rows whose classes a client may lack and still compare the others.
LACKED = 0.05


def combined(fitted: FittedParts) -> Tilt | None:
    """The clients' tilts as one; None where too few clients can compare the classes.

    A column's table is the mean over the clients that hold it, weighted by the harmonic mean of
    their class counts: one with few rows of a class knows little about separating it from others.
    Class constants are re-based to the class shares of all rows. A client that lacks rare classes
    compares the others; one that lacks more of the rows has no say. Together they must connect all
    classes and hold half of each, on average.
    """
    rows = class_rows(fitted)
    present, share = rows > 0, rows / max(rows.sum(), 1.0)
    tilts = {
        c: t
        for c, t in fitted.tilts.items()
        if (t.counts > 0).sum() > 1 and share[t.counts == 0].sum() <= LACKED
    }
    if not tilts or not _connected([t.counts > 0 for t in tilts.values()], present):
        return None
    held = np.sum([t.counts for t in tilts.values()], axis=0)[present]
    total = np.sum([t.counts for t in fitted.tilts.values()], axis=0)[present]
    if (held / total).mean() < 0.5:
        return None
    known = {c: t.counts > 0 for c, t in tilts.items()}
    weight = {c: known[c].sum() / (1.0 / t.counts[known[c]]).sum() for c, t in tilts.items()}

    def mean(of: Mapping[str, FloatArray]) -> FloatArray:
        """(Y, S) the mean of the tables (Y, S) of some clients; 0 for a class without rows."""
        names = sorted(of)
        tables = np.stack([of[name][present] for name in names])
        held = np.stack([known[name][present, None] for name in names])
        answer = np.zeros((present.size, tables.shape[2]))
        answer[present] = mean_tables(tables, held, np.array([weight[name] for name in names]))
        return answer

    columns = tuple(dict.fromkeys(name for c in sorted(tilts) for name in tilts[c].columns))
    # Constants fitted in turns are those of whoever came last, given the tables of all others.
    whole = [c for c in tilts if known[c][present].all()]
    speak = sorted(tilts) if rows_are_split(fitted) or not whole else [max(whole)]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_q = np.log(share)
        shifts = {n: tilts[n].c - np.log(tilts[n].counts / tilts[n].counts.sum()) for n in speak}
    c = mean({n: np.where(known[n], shift, 0.0)[:, None] for n, shift in shifts.items()})[:, 0]
    tables = [mean({n: t.of(j) for n, t in tilts.items() if j in t.columns}) for j in columns]
    return Tilt(columns, np.asarray(c + log_q), tuple(tables), rows)


def _connected(held: Sequence[BoolArray], present: BoolArray) -> bool:
    """Whether clients that hold classes (Y,) compare all of them, some by way of others."""
    reached = held[0]
    for _ in held:
        for own in held:
            reached = reached | own if (reached & own).any() else reached
    return bool(reached[present].all())


def mean_tables(tables: FloatArray, held: BoolArray, weight: FloatArray) -> FloatArray:
    """(Y, S) the weighted mean over clients of tables (C, Y, S), `held` (C, Y, 1) saying which.

    What a table adds to all classes alike says nothing about them, and differs between clients
    that hold different classes: it is chosen for each so that their tables agree best.
    """
    w = weight[:, None, None] * held
    total = np.maximum(w.sum(axis=0), 1e-300)  # (Y, 1)
    if held.all():
        return np.asarray((w * tables).sum(axis=0) / total)
    mask = held[:, :, 0].astype(float)  # (C, Y)
    apart = np.where(held, (w * tables).sum(axis=0) / total - tables, 0.0).sum(axis=1)  # (C, S)
    shared = np.diag(mask.sum(axis=1)) - (mask / total[:, 0]) @ w[:, :, 0].T
    level = np.linalg.lstsq(shared, apart, rcond=None)[0]
    level -= weight @ level / weight.sum()
    return np.asarray((w * (tables + level[:, None])).sum(axis=0) / total)


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
