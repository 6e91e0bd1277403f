"""`joint` where columns are split: EM for one latent tree whose branches stay at the clients.

    p(x) = sum_l q(l) prod_S sum_{c in holders(S)} w(c | l, S) p_c(x_S | l)

The start is that of `latent`: clusters sent, classes fitted to the index tuples within the strata
of the label. In every round clients receive how much of each aligned row belongs to each class,
improve their branches p_c(x_S | l), and send how likely their part of each row is under each class;
the server multiplies and has the next shares. Rounds end when rows that nobody fits on no longer
gain; a last step then sees all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits import Assembler, Circuit
from fedcircuits.circuits.root_states import root_edges, state_circuit, state_nodes
from fedcircuits.density import Density
from fedcircuits.errors import ClientError, FedcircuitsError
from fedcircuits.federation.agreement._shared.aligned import (
    aligned_indices,
    assign_classes,
    cluster_everywhere,
    common_rows,
    spaces_with_label,
    strata_of_rows,
)
from fedcircuits.federation.agreement._shared.latent_classes import fit_tuples
from fedcircuits.federation.plan.weights import log_shares
from fedcircuits.federation.server.circuit_builder import SERVER, CircuitBuilder
from fedcircuits.federation.server.fitted_parts import (
    FittedParts,
    TakeModels,
    drop_or_raise,
    read_reports,
)
from fedcircuits.federation.server.remote import RemoteDensity
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import (
    LATENT_CLASSES,
    NONE,
    JobId,
    JobKind,
    ModelKey,
)
from fedcircuits.federation.wire.packing import pack_codes
from fedcircuits.federation.wire.seeds import named_rng

CLASSES = "classes"  # the table of rows of each class
LEAST_SHARE = 0.002  # less of a row than this is not worth a message
MOST_CLASSES = 64
VALIDATION_SHARE, MOST_VALIDATION_ROWS, LEAST_VALIDATION_ROWS = 0.1, 2000, 40
NEVER_NONE = 1e-9  # rows of a class at a client that has none: its branch has every class
IMPOSSIBLE = -1e4  # nats of a row under no class, where rounds are compared
LEAST_GAIN = 0.002  # nats a row that a round has to bring


def automatic_classes(n_rows: int) -> int:
    """R and K by aligned rows: as the states of a latent tree follow from its rows."""
    return int(np.clip(np.sqrt(n_rows / 4), 2, MOST_CLASSES))


@dataclass(frozen=True)
class Plan:
    """What is agreed before the first round.

    Attributes:
        numbers: (n,) rows that every client holds.
        held: (n,) which of them no step but the last is fitted on.
        jobs: the branches of each client; all holders' branches of a subspace have one id.
        label_in_evidence: whether evidence may depend on the label.
    """

    numbers: IntArray
    held: np.ndarray[Any, np.dtype[np.bool_]]
    jobs: dict[str, tuple[m.BranchJob, ...]]
    label_in_evidence: bool


def train_branches(
    server: Server,
    take: TakeModels,
    *,
    n_rounds: int,
    n_classes: int | None,
    n_clusters: int | None,
    label_private: bool,
    label_left_out: bool = False,
) -> FittedParts:
    """Rounds of shares and evidence.

    Args:
        server: columns split over its clients, or both.
        take: as for `Rule.train`.
        n_rounds: most rounds.
        n_classes: R, None for automatic.
        n_clusters: K at each client, None for automatic.
        label_private: whether the label's owner clusters without its label.
        label_left_out: whether the tree is without the label.
    """
    within = not (label_private or label_left_out)
    while True:
        size = automatic_classes(common_rows(server).size)
        share = _start(server, n_classes or size, n_clusters or size, within)
        plan = _plan(server, within, server.label if label_left_out else None)
        made = _rounds(server, take, plan, share, n_rounds)
        if made is not None:
            return made


def _rounds(
    server: Server, take: TakeModels, plan: Plan, share: FloatArray, n_rounds: int
) -> FittedParts | None:
    """Rounds from shares (n, R) on, and the models; None where a client was lost on the way."""
    score, seconds = -np.inf, dict.fromkeys(server.clients, 0.0)
    for number in range(n_rounds + 1):
        sent = worth_sending(np.where(plan.held[:, None], 0.0, share), server.min_rows)
        answers = _step(server, plan, number, sent, take, last=False)
        if answers is None:
            return None
        _add_seconds(seconds, answers)
        log_q = log_shares(sent.sum(axis=0) + 1.0 / sent.shape[1])  # (R,)
        log_joint = log_q + _evidence(plan, answers)
        log_total = logsumexp(log_joint, axis=1, keepdims=True)  # (n, 1)
        judged = log_total[plan.held if plan.held.any() else slice(None), 0]
        share = np.exp(log_joint - np.where(np.isfinite(log_total), log_total, 0.0))
        mean = float(np.maximum(judged, IMPOSSIBLE).mean())
        if mean < score + LEAST_GAIN:
            break
        score = mean
    share = worth_sending(share, server.min_rows)
    answers = _step(server, plan, number + 1, share, take, last=True)
    if answers is None:
        return None
    _add_seconds(seconds, answers)
    return replace(_made(server, plan, share, take, answers), seconds=seconds)


def _add_seconds(seconds: dict[str, float], answers: Mapping[str, m.BranchDone]) -> None:
    for client, answer in answers.items():
        seconds[client] += float(answer.seconds.sum())


def _start(server: Server, n_classes: int, n_clusters: int, within_label: bool) -> FloatArray:
    """(n, R) shares of aligned rows by their index tuples; other rows are mapped by their own."""
    clustered = cluster_everywhere(server, n_clusters, within_label)
    indices = aligned_indices(server, clustered, common_rows(server))
    strata = strata_of_rows(server, clustered, indices, within_label)
    sizes = [clustered[c].rows.size for c in server.clients]
    model = fit_tuples(indices, strata, sizes, n_classes, named_rng(server.seed, "latent"))
    if any(server.n_rows[c] > len(indices) for c in server.clients):
        nothing = np.zeros(0, dtype=np.int64)
        tables = {client: model.given_cluster(at) for at, client in enumerate(server.clients)}
        size = len(model.log_q)
        assign_classes(server, server.clients, LATENT_CLASSES, nothing, nothing, size, tables)
    log_joint = model.log_joint(indices)
    return np.asarray(np.exp(log_joint - logsumexp(log_joint, axis=1, keepdims=True)))


def _plan(server: Server, with_label: bool, left_out: str | None) -> Plan:
    common = common_rows(server)
    held = np.zeros(common.size, dtype=bool)
    n_held = min(MOST_VALIDATION_ROWS, int(VALIDATION_SHARE * common.size))
    if n_held >= LEAST_VALIDATION_ROWS:
        held[named_rng(server.seed, "joint").permutation(common.size)[:n_held]] = True
    jobs: dict[str, list[m.BranchJob]] = {}
    for s, (columns, holders) in enumerate(spaces_with_label(server)):
        mine = tuple(name for name in columns if name != left_out)
        for client in holders if mine else ():
            branch = m.BranchJob(JobId(JobKind.BRANCH, s), mine)
            jobs.setdefault(client, []).append(branch)
    return Plan(common, held, {c: tuple(own) for c, own in jobs.items()}, with_label)


def worth_sending(share: FloatArray, min_rows: float) -> FloatArray:
    """Shares (n, R) without the smallest and without classes of too few rows.

    What is left of a row adds up to one; a row without any part in it stays so.
    """
    kept = _to_one(share)
    while True:
        found = _to_one(np.where(kept < LEAST_SHARE, 0.0, kept))
        rows = found.sum(axis=0)  # (R,)
        small = (rows > 0) & (rows < min_rows)
        small[rows.argmax()] = False  # one is left, however few rows there are
        if not small.any():
            return found
        kept = _to_one(np.where(small, 0.0, kept))


def _to_one(share: FloatArray) -> FloatArray:
    """Rows that add up to one, but for those of nothing."""
    total = share.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(share, total, out=np.zeros_like(share), where=total > 0))


def _step(
    server: Server,
    plan: Plan,
    number: int,
    share: FloatArray,
    take: TakeModels,
    *,
    last: bool,
) -> dict[str, m.BranchDone] | None:
    """Send shares (n, R); return the replies, None where a client failed and is left out."""
    at, classes = np.nonzero(share)
    n_classes = share.shape[1]
    per_row = pack_codes(np.bincount(at, minlength=len(share)), n_classes + 1)
    packed = pack_codes(classes, n_classes)
    weights = share[at, classes].astype(np.float32)
    requests = {
        client: m.Branch(
            number,
            plan.jobs[client],
            server.choice(client, plan.numbers),
            n_classes,
            per_row,
            packed,
            weights,
            last,
            take.keep,
            plan.label_in_evidence,
        )
        for client in server.clients
    }
    failures: dict[str, ClientError] = {}
    answers = server.call(m.BRANCH, requests, failures)
    for client, error in failures.items():
        drop_or_raise(server, client, error)
    return None if failures else answers


def _evidence(plan: Plan, answers: Mapping[str, m.BranchDone]) -> FloatArray:
    """(n, R) log p(x | l) of aligned rows: products over subspaces, sums over holders."""
    by_space: dict[JobId, list[tuple[FloatArray, FloatArray]]] = {}
    for client, reply in answers.items():
        for each in reply.evidence:
            array, rows = each.log_probs, reply.class_rows + NEVER_NONE
            if len(array) != plan.numbers.size:
                raise ClientError(client, f"evidence of {len(array)} of {plan.numbers.size} rows")
            by_space.setdefault(each.job, []).append((array.astype(float), rows))
    total: FloatArray = np.zeros(())
    for holders in by_space.values():
        everyone = np.log(np.sum([rows for _, rows in holders], axis=0))  # (R,)
        weighted = [array + np.log(rows) - everyone for array, rows in holders]
        total = total + np.logaddexp.reduce(weighted, axis=0)
    return total


def _made(
    server: Server,
    plan: Plan,
    share: FloatArray,
    take: TakeModels,
    answers: Mapping[str, m.BranchDone],
) -> FittedParts:
    models: dict[ModelKey, Density] = {}
    rows: dict[ModelKey, float] = {}
    tables = {CLASSES: np.asarray(share.sum(axis=0))}
    for client, reply in answers.items():
        columns = {job.id: job.columns for job in plan.jobs[client]}
        tables[_rows_name(client)] = reply.class_rows.astype(float)
        for each in reply.models:
            key = ModelKey(client, each.name.job, each.name.cls)
            rows[key] = each.rows
            try:
                models[key] = take.model(client, each, server.schema.select(columns[key.job]))
            except FedcircuitsError as error:
                raise ClientError(client, f"a model that cannot be read: {error}") from None
            if not take.keep:
                _check(key, models[key], columns[key.job], share.shape[1])
    reports = {client: read_reports(client, reply.reports) for client, reply in answers.items()}
    return FittedParts(server.schema, server.label, models, rows, tables, reports=reports)


def _check(key: ModelKey, model: Density, columns: tuple[str, ...], n_classes: int) -> None:
    """A model over the columns asked for; one that has all classes has a root state for each."""
    if set(model.schema.names) != set(columns):
        raise ClientError(
            key.client, f"a model of {list(model.schema.names)}, expected {list(columns)}"
        )
    if key.cls == NONE and n_classes > 1:
        edges = root_edges(model)
        found = 0 if edges is None else edges[0].size
        if found != n_classes:
            raise ClientError(key.client, f"a model of {found} classes, expected {n_classes}")


# --- gluing ---------------------------------------------------------------------------------------


def glue_branches(fitted: FittedParts) -> tuple[CircuitBuilder, int]:
    """One circuit where all branches are here and have a root; else their classes one by one."""
    counts = fitted.tables[CLASSES]
    whole = _whole(fitted, counts)
    builder = CircuitBuilder()
    if whole is not None:
        builder.register([(whole, SERVER)])
        return builder, builder.part(whole)
    parts = {int(cls): _parts(fitted, int(cls)) for cls in np.flatnonzero(counts > 0)}
    spaces = {key.job for key in fitted.models}
    for spaced in parts.values():
        for holders in spaced.values():
            builder.register([(model, key.client) for key, model in holders])
    products, weights = [], []
    for cls, spaced in parts.items():
        if spaced.keys() != spaces:
            continue  # a class that some subspace has no model of
        factors = [
            builder.mixture(
                [builder.part(model) for _, model in holders],
                [_rows_of(fitted, key, cls) for key, _ in holders],
            )
            for holders in spaced.values()
        ]
        products.append(builder.product(factors))
        weights.append(float(counts[cls]))
    return builder, builder.mixture(products, weights)


def _rows_name(client: str) -> str:
    return f"rows of classes\x1f{client}"


def _rows_of(fitted: FittedParts, key: ModelKey, cls: int) -> float:
    """Return the rows of a class at a client, never quite none."""
    return float(fitted.tables[_rows_name(key.client)][cls]) + NEVER_NONE


def _parts(fitted: FittedParts, cls: int) -> dict[JobId, list[tuple[ModelKey, Density]]]:
    """Return the models of one class by subspace."""
    found: dict[JobId, list[tuple[ModelKey, Density]]] = {}
    for key, model in sorted(fitted.models.items(), key=lambda item: item[0]):
        if key.cls not in (NONE, cls):
            continue
        if key.cls == NONE and isinstance(model, Circuit):
            model = state_circuit(model, fitted.tables[CLASSES].size, cls)
        elif key.cls == NONE and isinstance(model, RemoteDensity):
            model = replace(model, key=replace(key.name, state=cls))
        found.setdefault(key.job, []).append((key, model))
    return found


def _whole(fitted: FittedParts, counts: FloatArray) -> Circuit | None:
    """All branches as one circuit that has each of them once."""
    models = sorted(fitted.models.items(), key=lambda item: item[0])
    circuits = [(key, model) for key, model in models if isinstance(model, Circuit)]
    if len(circuits) < len(models) or any(key.cls != NONE for key, _ in models):
        return None
    names = {name for _, model in circuits for name in model.schema.names}
    assembler = Assembler(fitted.schema.select([n for n in fitted.schema.names if n in names]))
    by_space: dict[JobId, list[tuple[ModelKey, list[int]]]] = {}
    for key, model in circuits:
        nodes = state_nodes(assembler, model, counts.size)
        by_space.setdefault(key.job, []).append((key, nodes))
    products = []
    classes = np.flatnonzero(counts > 0)
    for cls in classes:
        factors = [
            assembler.sum(
                [nodes[cls] for _, nodes in holders],
                log_shares([_rows_of(fitted, key, int(cls)) for key, _ in holders]),
            )
            for holders in by_space.values()
        ]
        products.append(assembler.product(factors))
    return Circuit.assemble(assembler, assembler.sum(products, log_shares(counts[classes])))
