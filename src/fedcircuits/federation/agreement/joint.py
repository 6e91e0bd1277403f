"""`joint`: rounds of federated training.

*Rows split*: the model of all rows together (`joint_rows.py`). *Columns split*, or both: EM for one
latent tree whose branches stay at the clients (`joint_columns.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from fedcircuits.federation.agreement._shared.keys import KEYS
from fedcircuits.federation.agreement.base import Declared
from fedcircuits.federation.agreement.joint_columns import (
    CLASSES,
    MOST_CLASSES,
    glue_branches,
    train_branches,
)
from fedcircuits.federation.agreement.joint_rows import SHARED, glue_shared, train_in_rounds
from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import FittedParts, TakeModels, fit
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import Job
from fedcircuits.federation.wire.steps import ALL, MANY, SET, Facts, Step, step


@dataclass(frozen=True)
class Joint(Declared):
    """Rounds of federated training: of sums where rows are split, of EM where columns are.

    Attributes:
        n_rounds: columns split: most rounds after the start.
        n_classes: columns split: R, by default sqrt(aligned rows / 4), at most 64.
        n_clusters: columns split: K at each client, to start from; by default as many.
        label_private: columns split: cluster without the label at its owner.
    """

    n_rounds: int = 10
    n_classes: int | None = None
    n_clusters: int | None = None
    label_private: bool = False

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "joint"

    @property
    def glues_again(self) -> bool:
        """Where columns are split the branches of all clients are in one circuit."""
        return True

    def steps(self, facts: Facts) -> tuple[Step, ...]:
        """Rows split: rounds of sums; columns split: clusters, then rounds of evidence."""
        if facts.setting == "horizontal":
            masked = SET if facts.n_clients > 1 else None
            return (*KEYS, step(m.ROUND, MANY, masked_with=masked), step(m.FIT))
        within = not self.label_private
        most = self.n_clusters or MOST_CLASSES
        return (
            step(m.CLUSTER, n_clusters=most, within_label=within, columns=ALL),
            step(m.ASSIGN),
            step(m.BRANCH, self.n_rounds + 2, label_in_evidence=within),
        )

    def train(self, server: Server, take: TakeModels) -> FittedParts:
        """Rounds of sums, or of shares and evidence."""
        if len(server.clients) == 1 and server.dropped:  # nobody is left to train with
            alone = Job(SHARED, server.schema.names)
            return fit(
                server, [(server.clients[0], alone)], take, FittedParts(server.schema, server.label)
            )
        if server.setting == "horizontal":
            return train_in_rounds(server, take)
        return train_branches(
            server,
            take,
            n_rounds=self.n_rounds,
            n_classes=self.n_classes,
            n_clusters=self.n_clusters,
            label_private=self.label_private,
        )

    def glue(self, fitted: FittedParts) -> tuple[CircuitBuilder, int]:
        """The branches under their root; where rows are split, the one model."""
        if CLASSES in fitted.tables:
            return glue_branches(fitted)
        return glue_shared(fitted)
