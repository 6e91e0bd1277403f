"""Validation rows: left out of fits, scored where the label is, no cell and no label in transit.

A circuit is scored on aligned rows by number: every client says how likely its part of a row is
under each of its models, the server carries those numbers up through sums and products, and the
label's owner compares the outcome with its label.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.evaluation_plan import EvaluationPlan
from fedcircuits.circuits.passes import sum_product, up
from fedcircuits.federation.agreement._shared.aligned import choice_of, name_rows
from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import FittedParts
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import ModelKey
from fedcircuits.schema import Table

ROWS_PER_PASS = 4096


def ask_by_number(server: Server, key: ModelKey, numbers: IntArray, what: str) -> FloatArray:
    """A client's answer about aligned rows of its own: "log_prob" (n,) or "label" (n, Y)."""
    request = m.Ask(key.name, what, name_rows(server, key.client, numbers), numbers.size)
    return np.asarray(server.call(m.ASK, {key.client: request})[key.client].values)


@contextmanager
def only_rows(server: Server, numbers: IntArray, share: float) -> Iterator[None]:
    """Fits inside use these aligned rows and a share of the others; afterwards all rows again."""
    everything = dict.fromkeys(server.clients, m.UseRows(np.zeros(0, dtype=np.uint8), 1.0))
    some = {c: m.UseRows(choice_of(server, c, numbers), share) for c in server.clients}
    server.call(m.USE_ROWS, some)
    try:
        yield
    finally:
        here = {c: request for c, request in everything.items() if c in server.clients}
        server.call(m.USE_ROWS, here)


def log_joint_by_number(
    server: Server, fitted: FittedParts, builder: CircuitBuilder, root: int, numbers: IntArray
) -> FloatArray:
    """(n, Y) log p(x, y) of aligned rows for every class y; (n, 1) log p(x) without a label.

    Args:
        server: the run.
        fitted: whose models are still known to their clients.
        builder: glued from them.
        root: its root.
        numbers: (n,) rows that every client holds.
    """
    n_classes = 1 if server.label is None else server.schema[server.label].n_codes
    keys = {id(model): key for key, model in fitted.models.items()}
    structure, kept = builder.graph.below(root, len(builder.parts))
    leaves = np.empty((kept.size, numbers.size, n_classes))
    for at, part in enumerate(kept):
        model = builder.parts[part]
        if id(model) in keys:
            leaves[at] = ask_by_number(server, keys[id(model)], numbers, "label")
        else:  # the label's indicator, which lives here
            every = Table.empty(model.schema, n_classes)
            every.values[:, 0], every.observed[:, 0] = np.arange(n_classes), True
            leaves[at] = model.log_prob_table(every)
    answer = np.empty((numbers.size, n_classes))
    plan = EvaluationPlan.of(structure)
    for start in range(0, numbers.size, ROWS_PER_PASS):
        rows = slice(start, start + ROWS_PER_PASS)
        for y in range(n_classes):
            values = np.zeros((structure.n_nodes, leaves[:, rows].shape[1]))
            values[: kept.size] = leaves[:, rows, y]
            up(plan, values, sum_product)
            answer[rows, y] = values[-1]
    return answer


def judge(server: Server, log_joint: FloatArray, numbers: IntArray) -> float:
    """Mean log-loss of the label, from its owner; without a label the mean of -log p(x)."""
    holders = server.label_holders
    if not holders:
        return -float(log_joint.mean())
    name = name_rows(server, holders[0], numbers)
    request = {holders[0]: m.Judge(name, log_joint)}
    return server.call(m.JUDGE, request)[holders[0]].log_loss
