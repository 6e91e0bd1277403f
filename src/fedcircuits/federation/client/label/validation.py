"""Evidence about validation rows: computed at each client, scored at the label's owner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.circuits.evaluation_plan import EvaluationPlan
from fedcircuits.circuits.passes import sum_product, up
from fedcircuits.circuits.structure import Structure
from fedcircuits.density import Density
from fedcircuits.density.tilt import log_within_states, n_states_of, state_values
from fedcircuits.errors import FedcircuitsError, StorageError
from fedcircuits.federation.client.dispatch import handles
from fedcircuits.federation.client.jobs import labels, without_label
from fedcircuits.federation.client.label.evidence import Evidence, parted
from fedcircuits.federation.client.label.tilting import Tilting
from fedcircuits.federation.client.mailbox import Expected, Mailbox
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import NONE, ModelName
from fedcircuits.schema import Table

ROWS_PER_PASS = 4096
EVIDENCE = "evidence"  # purpose of sealed log-likelihoods


def evidence(
    what: str, n_rows: int, model: Density, rows: Table, label: str | None, name: str
) -> FloatArray:
    """Return log-likelihoods of a client's own rows under one of its models.

    Args:
        what: "log_prob" (n,), or "label" (n, Y): with every class of the label.
        n_rows: that were asked for.
        model: of the client.
        rows: the named rows, over all columns.
        label: name of the label.
        name: of the client, for errors.
    """
    if len(rows) != n_rows:
        raise FedcircuitsError(f"client {name!r} holds {len(rows)} of the {n_rows} rows asked for")
    table = replace(rows.columns(list(model.schema.names)), schema=model.schema)
    if what == "log_prob":
        return model.log_prob_table(table)
    if what == "label":
        return label_log_joint(model, table, label)
    raise FedcircuitsError(f"expected the question 'log_prob' or 'label', found {what!r}")


def judged(
    request: m.Judge,
    mail: Mailbox,
    known_labels: tuple[IntArray, BoolArray] | None,
    own_values: Callable[[], list[FloatArray]],
    counted: BoolArray,
) -> m.Judged:
    """Return the mean log-loss of the label and mean log p(x, y); without a label, of p(x).

    Rows that the circuit holds impossible are left out, and the number of rows shows it. A label
    that is impossible in a possible row is one that the trial's rows lack: weak evidence about
    a fit to all rows: it counts as a class of one row more than there are.

    Args:
        request: a circuit and the sealed values of its leaves.
        mail: that opens them.
        known_labels: codes of the named rows and whether they are known; None without a label.
        own_values: log-likelihoods under the models of the client itself.
        counted: which of the named rows the means are taken over.
    """
    own = mail.key.public
    if request.key != own:
        return m.Judged(0.0, 0.0, 0, own)
    log_joint = _log_joint(request, [*_opened(request, mail), own_values()])
    log_prob = logsumexp(log_joint, axis=1)  # (n,) log p(x)
    counted = counted & (log_prob > -np.inf)
    if known_labels is None:
        nats = _mean(log_prob[counted])
        return m.Judged(-nats, nats, int(counted.sum()), own)
    codes, known = known_labels[0], known_labels[1] & counted
    log_posterior = log_posteriors(log_joint[known], codes[known])
    nats = _mean(log_prob[known] + log_posterior)
    return m.Judged(-_mean(log_posterior), nats, int(known.sum()), own)


def log_posteriors(log_joint: FloatArray, labels: IntArray) -> FloatArray:
    """(n,) log p(y | x) from log p(x, y) (n, Y); 1 / (n + 1) where the label is impossible."""
    chosen = log_joint[np.arange(labels.size), labels] - logsumexp(log_joint, axis=1)
    return np.where(chosen > -np.inf, chosen, -np.log(labels.size + 1.0))


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if values.size else 0.0


def _opened(request: m.Judge, mail: Mailbox) -> list[list[FloatArray]]:
    """Log-likelihoods under the models of every piece."""

    def reader(models: tuple[ModelName, ...]) -> Callable[[Any], list[FloatArray]]:
        return lambda values: Evidence.of_bytes(values, request.n_rows).of_models(models)

    pieces = [
        Expected(each.piece, EVIDENCE, request.rows, reader(each.models)) for each in request.pieces
    ]
    return mail.open(request.step, pieces)


def _log_joint(request: m.Judge, found: list[list[FloatArray]]) -> FloatArray:
    """(n, Y) log p(x, y) of the named rows: one upward pass for each class."""
    arrays = {name: getattr(request, name) for name in ("is_sum", "first_edge", "child")}
    arrays["log_weight"] = request.log_weight
    n_leaves, n_classes = request.constants.shape
    structure = Structure.from_arrays(n_leaves, arrays)
    n = request.n_rows
    leaves = np.empty((n_leaves, n, n_classes))
    for at, (piece, place) in enumerate(zip(request.piece_of, request.place, strict=True)):
        values = request.constants[at] if piece < 0 else found[int(piece)][int(place)]
        try:
            leaves[at] = values
        except ValueError:
            shape = (n, n_classes)
            raise StorageError(f"evidence of shape {values.shape}, expected {shape}") from None
    answer = np.empty((n, n_classes))
    plan = EvaluationPlan.of(structure)
    for start in range(0, n, ROWS_PER_PASS):
        rows = slice(start, start + ROWS_PER_PASS)
        for y in range(n_classes):
            passed = np.zeros((structure.n_nodes, leaves[:, rows].shape[1]))
            passed[:n_leaves] = leaves[:, rows, y]
            up(plan, passed, sum_product)
            answer[rows, y] = passed[-1]
    return answer


def label_log_joint(model: Density, table: Table, label: str | None) -> FloatArray:
    """(n, Y) log p(x, y) for every class, or (n, 1) log p(x) of a model without the label."""
    if label is None or label not in model.schema:
        return model.log_prob_table(table)[:, None]
    at = model.schema.position(label)
    hidden = table.hide(at)
    variable = model.schema.variables[at]
    if not variable.is_coded:
        return _log_joint_of_states(model, table, at)
    with np.errstate(divide="ignore"):
        log_posterior = np.log(model.posterior_table(hidden, at))
    return np.asarray(model.log_prob_table(hidden)[:, None] + log_posterior)


def _log_joint_of_states(model: Density, table: Table, at: int) -> FloatArray:
    """(n, S) log-mass of x and every state of a number at one position."""
    variable = model.schema.variables[at]
    observed, values = table.observed.copy(), table.values.copy()
    observed[:, at] = True
    answer = np.empty((len(table), n_states_of(variable)))
    states = state_values(variable)
    within = log_within_states(variable, states)
    for state, value in enumerate(states):
        values[:, at] = value
        asked = replace(table, values=values, observed=observed)
        answer[:, state] = model.log_prob_table(asked) - within[state]
    return answer


class Validation(Tilting):
    """The part of a client that computes and scores evidence about validation rows."""

    @handles(m.PUBLIC_KEY)
    def _public_key(self, request: m.AskKey) -> m.PublicKey:
        """The key that values for this client are sealed with."""
        del request
        return self._mail.public_key()

    @handles(m.JUDGE)
    def _judge(self, request: m.Judge) -> m.Judged:
        """Log-loss of the label; the label itself stays here."""
        known = self._labels_of(request.rows) if self._label else None

        def own_values() -> list[FloatArray]:
            if not request.own:
                return []
            found = self._evidence(request.own, request.rows, request.n_rows)
            return found.of_models(request.own)

        counted = self._counted_of(request.rows)[self._aligned.named(request.rows)]
        return judged(request, self._mail, known, own_values, counted)

    def _labels_of(self, name: str) -> tuple[IntArray, BoolArray]:
        """Label codes of named rows, and whether they are known."""
        rows = self._aligned.named(name)
        codes, known = labels(self._have(), self._label, self.name)
        return codes[rows], known[rows]

    @handles(m.ASK)
    def _ask(self, request: m.Ask) -> m.Answer:
        """Log-likelihoods of aligned rows, for the weights of the rule `em`."""
        rows = self._have().rows(self._aligned.named(request.rows))
        if not request.label_in_evidence:
            rows = without_label(rows, self._label)
        model = self._model(request.model)
        return m.Answer(evidence(request.what, request.n_rows, model, rows, self._label, self.name))

    @handles(m.ASK_SEALED)
    def _ask_sealed(self, request: m.AskSealed) -> m.Sealed:
        """Log-likelihoods of aligned rows, sealed for the client that scores them."""
        packed = self._evidence(request.models, request.rows, request.n_rows).packed()
        return self._mail.seal(packed, request.key, EVIDENCE, request.step, request.rows)

    def _evidence(self, models: Sequence[ModelName], name: str, n_rows: int) -> Evidence:
        """Log-likelihoods of named rows under models of the client."""
        rows = self._have().rows(self._aligned.named(name))
        tilts = {each.tilt for each in models}
        untilted, _ = parted(models, apart=True)
        held = {frozenset({*self._model(each).schema.names} - {self._label}) for each in untilted}
        whole = bool(rows.columns(sorted(frozenset().union(*held))).observed.all())
        # The tables score all their columns: models of a part of these have other scores each.
        apart = whole and len(tilts) == 1 and "" not in tilts
        apart = apart and held == {frozenset(self._tilts[next(iter(tilts))].columns)}
        untilted, _ = parted(models, apart=apart)
        bases = [
            evidence("label", n_rows, self._model(each), rows, self._label, self.name)
            for each in untilted
        ]
        if not apart:
            return Evidence(bases, None, np.zeros(len(models)))
        scores = self._tilts[tilts.pop()].scores(rows)
        shared = scores.mean(axis=1, keepdims=True)
        constants = [
            -float(self._log_z(replace(each, tilted_class=NONE))[each.tilted_class])
            for each in models
        ]
        return Evidence([e + shared for e in bases], scores - shared, np.array(constants))
