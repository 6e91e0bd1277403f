"""`joint`: rounds of federated training.

*Rows split*: the model of all rows together (`joint_rows.py`).

*Columns split*: a few rounds of federated EM that start from `latent`. In each round clients send
log p_c(x_S | l) of aligned rows, the server computes responsibilities and sends them down, and
clients refit every class on the rows that belong to it, in part. The density nears the centralised
one; classification does not gain. Rounds end when the likelihood of aligned rows no longer rises,
and the best round is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp

from fedcircuits.federation import messages as m
from fedcircuits.federation.agreement.aligned import PHASE, choice_of, common_rows
from fedcircuits.federation.agreement.class_models import by_cell
from fedcircuits.federation.agreement.joint_rows import SHARED, glue_shared, train_in_rounds
from fedcircuits.federation.agreement.latent import (
    Latent,
    fit_classes,
    glue_classes,
)
from fedcircuits.federation.agreement.validation import ask_by_number
from fedcircuits.federation.glue import Network
from fedcircuits.federation.packing import pack_codes
from fedcircuits.federation.server import Server
from fedcircuits.federation.training import Ingredients
from fedcircuits.federation.weights import log_shares
from fedcircuits.schema.grid import FloatArray, IntArray

LEAST_SHARE = 0.02  # less of a row than this is not worth a message


@dataclass(frozen=True)
class Joint:
    """Federated EM. The attributes are of columns split; where rows are, the learner has its own.

    Attributes:
        n_rounds: most rounds after `latent`.
        n_classes: R.
        n_clusters: K at each client, to start from.
        label_private: cluster without the label at its owner.
    """

    n_rounds: int = 1
    n_classes: int = 24
    n_clusters: int = 32
    label_private: bool = False

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "joint"

    @property
    def leaves_client(self) -> tuple[str, ...]:
        """What leaves a client."""
        start = Latent(self.n_classes, self.n_clusters, self.label_private).leaves_client
        return (
            *(f"columns split: {words}" for words in start),
            "columns split, every round: log-likelihood of each aligned row under each class model",
            "rows split: counts of pairs of states; every round: expected counts or gradients, "
            "summed over the client's rows",
        )

    def train(self, server: Server, take: Mapping[str, Any]) -> Ingredients:
        """`latent`, then rounds of responsibilities and refits."""
        if server.setting == "horizontal":
            return train_in_rounds(server, take)
        start = Latent(self.n_classes, self.n_clusters, self.label_private)
        found, common = start.train(server, take), common_rows(server)
        best, score = found, -np.inf
        for round_ in range(self.n_rounds + 1):
            log_joint = _class_log_joint(server, found, common)
            log_total = logsumexp(log_joint, axis=1)
            mean = float(log_total[np.isfinite(log_total)].mean())
            if mean <= score:
                break
            best, score = found, mean
            if round_ < self.n_rounds:
                rows = _share(server, common, log_joint, log_total, f"J{round_}")
                found = fit_classes(
                    server, take, rows, label_private=self.label_private, group=f"J{round_}"
                )
        return best

    def glue(self, ingredients: Ingredients) -> tuple[Network, int]:
        """One product for every latent class; where rows are split, the one model."""
        if SHARED in {job.partition("@")[0] for _, job, _ in ingredients.models}:
            return glue_shared(ingredients)
        return glue_classes(ingredients)


def _class_log_joint(server: Server, found: Ingredients, numbers: IntArray) -> FloatArray:
    """(n, R) log q(l) p(x | l) of aligned rows; a class left out has -inf."""
    rows = found.tables["rows"]
    answer = np.tile(log_shares(rows), (numbers.size, 1))
    by_factor = by_cell(found)
    spaces = {space for _, space in by_factor}
    for cls in range(rows.size):
        for space in spaces:
            keys = by_factor.get((cls, space))
            if keys is None:
                answer[:, cls] = -np.inf
                continue
            weights = log_shares([found.rows[k] for k in keys])
            terms = [
                ask_by_number(server, k, numbers, "log_prob", PHASE) + w
                for k, w in zip(keys, weights, strict=True)
            ]
            answer[:, cls] += np.logaddexp.reduce(terms, axis=0)
    return answer


def _share(
    server: Server, numbers: IntArray, log_joint: FloatArray, log_total: FloatArray, group: str
) -> FloatArray:
    """Send responsibilities down; (R,) rows of each class."""
    share = np.exp(log_joint - np.where(np.isfinite(log_total), log_total, 0.0)[:, None])
    share[share < LEAST_SHARE] = 0.0
    total = share.sum(axis=1, keepdims=True)
    share = np.divide(share, total, out=np.zeros_like(share), where=total > 0)
    at, classes = np.nonzero(share)
    n_classes = share.shape[1]
    per_row = np.bincount(at, minlength=numbers.size)
    requests = {
        client: m.Share(
            group,
            choice_of(server, client, numbers),
            n_classes,
            pack_codes(per_row, n_classes + 1),
            pack_codes(classes, n_classes),
            share[at, classes].astype(np.float32),
        )
        for client in server.clients
    }
    server.call(PHASE, "share", requests, m.Ready)
    return np.asarray(share.sum(axis=0))
