"""`joint`: rounds of federated training.

*Rows split*: the model of all rows together (`joint_rows.py`). *Columns split*, or both: EM for one
latent tree whose branches stay at the clients (`joint_columns.py`). Where columns are split and all
may use the label, the tree is m(x), without the label, and the label comes in as under `latent`: by
the tilt and the head. Else the label depends on the root of the tree.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedcircuits.density.tilt import Tilt
from fedcircuits.federation.agreement._shared.heads import (
    head_steps,
    tilts_and_then_head,
    with_heads,
)
from fedcircuits.federation.agreement._shared.keys import KEYS
from fedcircuits.federation.agreement._shared.tilts import tilt_steps
from fedcircuits.federation.agreement.base import Declared
from fedcircuits.federation.agreement.joint_columns import (
    CLASSES,
    MOST_CLASSES,
    glue_branches,
    train_branches,
)
from fedcircuits.federation.agreement.joint_rows import SHARED, glue_shared, train_in_rounds
from fedcircuits.federation.agreement.product import with_tilts
from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import FittedParts, TakeModels, fit
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.tilts import with_tilt
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
        tilt: columns split, models gathered: whether the label comes in by one tilt that all
            clients fit together, where their learners can; else it depends on the root.
        head: as for `product`.
    """

    n_rounds: int = 10
    n_classes: int | None = None
    n_clusters: int | None = None
    label_private: bool = False
    tilt: bool = True
    head: bool = True

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
        tilts: tuple[Step, ...] = ()
        if self.tilt and facts.setting == "vertical" and facts.label == "everybody":
            tilts = (*tilt_steps(facts), *(head_steps(facts) if self.head else ()))
        return (
            *tilts,
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
        tilts = self._fit_tilts(server, take)
        found = train_branches(
            server,
            take,
            n_rounds=self.n_rounds,
            n_classes=self.n_classes,
            n_clusters=self.n_clusters,
            label_private=self.label_private,
            label_left_out=tilts is not None,
        )
        if tilts is None:
            return found
        return with_heads(server, with_tilts(found, tilts), take, self.head)

    def _fit_tilts(self, server: Server, take: TakeModels) -> dict[str, Tilt] | None:
        """Tables of the label's tilt, where one circuit of all branches is multiplied by them."""
        if not self.tilt or server.setting != "vertical" or server.label is None:
            return None
        if self.label_private and not server.label_is_everywhere:
            return None
        return tilts_and_then_head(server, take, self.head)

    def glue(self, fitted: FittedParts) -> tuple[CircuitBuilder, int]:
        """The branches under their root; where rows are split, the one model."""
        if CLASSES not in fitted.tables:
            return glue_shared(fitted)
        made = glue_branches(fitted)
        return with_tilt(fitted, made) if fitted.tilts else made
