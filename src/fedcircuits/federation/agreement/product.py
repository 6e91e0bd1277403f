"""`product`: the label is known everywhere, and ties the clients together.

    p(x, y) = q(y) [y] prod_S sum_{c in holders(S)} w(c | y, S) p_c(x_S | y)

With one subspace this is the horizontal mixture with weights per class, w(c | y) = n_cy / n_y: size
weights for the density, class weights for classification. With private subspaces only it is the
product of per-class client models. No byte is exchanged per row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedcircuits.arrays import IntArray
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement._shared.aligned import common_rows, name_rows
from fedcircuits.federation.agreement._shared.validation import (
    EVIDENCE,
    TRIES,
    only_rows,
    scored,
    sealed_by_number,
)
from fedcircuits.federation.agreement.base import Declared
from fedcircuits.federation.client.calibration import Calibration
from fedcircuits.federation.plan.weights import log_shares
from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import (
    REBASE,
    FittedParts,
    TakeModels,
    fit,
    indicator_leaf,
    rebased,
)
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import Job, JobId, JobKind
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.federation.wire.steps import Facts, Step, step

VALIDATION_SHARE, LEAST_ROWS = 0.1, 200


@dataclass(frozen=True)
class ProductOfClasses(Declared):
    """Per-class client models, multiplied over subspaces and mixed over holders.

    Where only some clients hold the label, its owners have sent it to the others (`label_use`).

    Attributes:
        calibration_rows: most aligned rows left out of the fits, on which the clients' evidence is
            weighed; 0 for none.
        rebase: where rows are split and class shares differ between clients, average their
            posteriors re-based to the global prior; the density stays the mixture.
    """

    calibration_rows: int = 10_000
    rebase: bool = True

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "product"

    def steps(self, facts: Facts) -> tuple[Step, ...]:
        """Fits; columns split: evidence to weigh."""
        if facts.label == "nobody":
            return ()
        if facts.setting == "horizontal":
            return (step(m.FIT),)
        if facts.label == "some":
            return ()
        calibration = (step(m.USE_ROWS, 2), *EVIDENCE, step(m.CALIBRATE, TRIES))
        return (step(m.FIT), *(calibration if self.calibration_rows else ()))

    def train(self, server: Server, take: TakeModels) -> FittedParts:
        """One job for each subspace and holder."""
        if server.label is None or not server.label_holders:
            raise FederationError("the rule 'product' needs a label; use 'latent'")
        held = server.label_holders
        lacking = [client for client in server.clients if client not in held]
        if lacking:
            raise FederationError(
                f"the rule 'product' needs the label at every client; "
                f"{', '.join(map(repr, lacking))} lack(s) it: "
                + (
                    "no row of theirs is aligned with one whose label is known, use 'latent'"
                    if server.label_use == "sent" and server.aligned
                    else "pass label_use='sent' and id=, or use agreement='latent'"
                )
            )
        jobs = []
        for s, space in enumerate(server.subspaces):
            names = [server.features[j] for j in space.features]
            for client in (server.clients[c] for c in space.holders):
                columns = [n for n in server.schema.names if n in names or n == server.label]
                mixed = server.setting == "horizontal"
                job = Job(_space(s), tuple(columns), per_label=True, mixed=mixed)
                jobs.append((client, job))
        # Rows split: counts add up. Columns split: a row is counted once, by whoever has most.
        counts = [server.label_counts[c] for c in held]
        total = np.sum(counts, axis=0) if len(server.subspaces) == 1 else np.max(counts, axis=0)
        tables = {"label": total}
        if self.rebase and len(server.subspaces) == 1:
            tables[REBASE] = np.ones(1)
        fitted = FittedParts(server.schema, server.label, tables=tables)
        rows = self._validation_rows(server)
        if not rows.size:
            return rebased(fit(server, jobs, take, fitted))
        kept = np.setdiff1d(np.unique(np.concatenate(list(server.aligned.values()))), rows)
        with only_rows(server, kept, 1.0):
            return calibrated(server, fit(server, jobs, take, fitted), rows)

    def _validation_rows(self, server: Server) -> IntArray:
        """Aligned rows to calibrate on; none where rows are few."""
        common = common_rows(server)
        n_rows = min(self.calibration_rows, int(VALIDATION_SHARE * common.size))
        if n_rows < LEAST_ROWS or len(server.subspaces) < 2:
            return common[:0]
        return np.sort(named_rng(server.seed, "calibration").permutation(common)[:n_rows])

    def glue(self, fitted: FittedParts) -> tuple[CircuitBuilder, int]:
        """q(y) times products over subspaces of sums over holders."""
        label, builder = fitted.label, CircuitBuilder()
        assert label is not None
        codes = sorted({key.cls for key in fitted.models})
        spaces = sorted({key.job for key in fitted.models}, key=str)
        leaves = {y: indicator_leaf(fitted.schema, label, y) for y in codes}
        builder.register([(leaf, "server") for leaf in leaves.values()])
        builder.register([(fitted.models[k], k.client) for k in sorted(fitted.models)])
        classes, rows = [], []
        for y in codes:
            factors = [builder.part(leaves[y])]
            for space in spaces:
                held = [k for k in sorted(fitted.models) if k.job == space and k.cls == y]
                if not held:
                    break  # nobody who holds this subspace has seen the class
                children = [builder.part(fitted.models[k]) for k in held]
                factors.append(builder.mixture(children, [fitted.rows[k] for k in held]))
            else:
                classes.append(builder.product(factors))
                rows.append(self._class_rows(fitted, y, spaces))
        return builder, builder.mixture(classes, rows)

    def _class_rows(self, fitted: FittedParts, y: int, spaces: list[JobId]) -> float:
        """Rows of a class: added up where rows are split, one count where columns are."""
        if len(spaces) == 1:
            return sum(n for key, n in fitted.rows.items() if key.cls == y)
        return float(fitted.tables["label"][y])


def calibrated(server: Server, found: FittedParts, rows: IntArray) -> FittedParts:
    """Weigh the subspaces' evidence on validation rows; the label's owner does the fitting."""
    assert server.label is not None
    spaces = sorted({key.job for key in found.models}, key=str)
    codes = range(server.schema[server.label].n_codes)
    held = {
        (s, y): [k for k in sorted(found.models) if (k.job, k.cls) == (space, y)]
        for s, space in enumerate(spaces)
        for y in codes
    }
    if not all(held.values()):
        return found  # a class is unknown to a whole subspace

    def ask(client: str, key: str) -> m.Calibrated:
        pieces = [
            m.WeightedPiece(
                s, y, float(weight), sealed_by_number(server, model, rows, "log_prob", key)
            )
            for (s, y), keys in held.items()
            for model, weight in zip(keys, log_shares([found.rows[k] for k in keys]), strict=True)
        ]
        name = name_rows(server, client, rows)
        prior = log_shares(found.tables["label"])
        request = m.Calibrate(name, rows.size, key, len(spaces), tuple(pieces), prior)
        return server.call(m.CALIBRATE, {client: request})[client]

    reply = scored(server, ask)
    if reply.gain <= 0:
        return found
    return replace(found, calibration=Calibration(reply.weights, reply.bias, reply.gain))


def _space(number: int) -> JobId:
    return JobId(JobKind.SUBSPACE, number)
