"""`latent`: a latent class for every row, fitted to the clients' cluster indices.

The server fits P(k_1..k_C) = sum_l q(l) prod_c r_c(k_c | l) to the index tuples by EM, sends each
aligned row's class back, and clients fit p_c(x_S | l) for each class and subspace, by one circuit
over columns and class where their learner knows about labels:

    p(x) = sum_l q(l) prod_S sum_{c in holders(S)} w(c | l, S) p_c(x_S | l)

Rows are aligned that two clients or more hold: a tuple has a gap where a client does not have the
row. Rows that one client alone has are mapped through r(l | k_c). Where the label's owner clusters
within class, latent classes are fitted within its strata, so that a class never mixes labels.

The rest of it: `_shared/latent_classes.py` (the EM), `client/clustering.py` (the clusters k and the
draws of l) and `client/jobs.py` (the fits).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.density.tilt import Tilt
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement._shared.aligned import (
    aligned_indices,
    aligned_rows,
    assign_classes,
    cluster_everywhere,
    strata_of_rows,
)
from fedcircuits.federation.agreement._shared.class_models import by_cell, class_jobs, wholes
from fedcircuits.federation.agreement._shared.codes import CODE_STEPS, fit_by_codes
from fedcircuits.federation.agreement._shared.heads import (
    head_steps,
    tilts_and_then_head,
    with_heads,
)
from fedcircuits.federation.agreement._shared.latent_classes import LatentClasses, fit_tuples
from fedcircuits.federation.agreement._shared.tilts import APPLIED, tilt_steps
from fedcircuits.federation.agreement.base import Declared
from fedcircuits.federation.agreement.latent_table import (
    N_CLASSES,
    N_CLUSTERS,
    RANDOMISED,
    TRUSTED,
    glue_table,
    train_on_table,
)
from fedcircuits.federation.agreement.product import with_tilts
from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import FittedParts, TakeModels, fit
from fedcircuits.federation.server.heads import ClientHead
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.tilts import with_tilt
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import LATENT_CLASSES, ModelKey
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.federation.wire.steps import ALL, Facts, Step, step

CLASSES = 16
# The most are as many as go nine into a word of 64 bits: a row of two clients then takes 2.8 bytes.
ROWS_PER_CLUSTER, FEWEST_CLUSTERS, MOST_CLUSTERS = 256, 32, 138


def automatic_clusters(n_rows: int) -> int:
    """K by aligned rows: the finer, the more a class can be about what other clients hold."""
    return int(np.clip(n_rows // ROWS_PER_CLUSTER, FEWEST_CLUSTERS, MOST_CLUSTERS))


@dataclass(frozen=True)
class Latent(Declared):
    """Latent classes agreed over cluster indices.

    Attributes:
        n_classes: R, by default 16, from a table 24.
        n_clusters: K at each client, by default one for 256 aligned rows, 32 to 138; from a table
            32.
        label_private: cluster without the label at its owner.
        tilt: whether the label comes in by one tilt that all clients fit together, where their
            learners can (`server/tilts.py`); else by latent classes within its strata.
        head: as for `product`.
        table: fit the classes to the table of counts alone and send no row's class back
            (`latent_table.py`); the two settings below are for this.
        epsilon: of the Laplace noise on the table, None for no noise; of the randomised response,
            which needs one.
        mechanism: who sees what: "trusted" or "randomised-response".
    """

    n_classes: int | None = None
    n_clusters: int | None = None
    label_private: bool = False
    tilt: bool = True
    head: bool = True
    table: bool = False
    epsilon: float | None = None
    mechanism: str = TRUSTED

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "latent"

    def steps(self, facts: Facts) -> tuple[Step, ...]:
        """The cluster of aligned rows, their classes back, and fits."""
        if facts.setting == "horizontal":
            return ()
        most = self.n_clusters or (N_CLUSTERS if self.table else MOST_CLUSTERS)
        tilts: tuple[Step, ...] = ()
        if self.tilt and not self.table and facts.label == "everybody":
            tilts = (*tilt_steps(facts), *(head_steps(facts) if self.head else ()))
        if self.tilt and self.label_private and not self.table and facts.label == "some":
            tilts = (*CODE_STEPS, *APPLIED)
        within = not self.label_private
        epsilon = self.epsilon if self.mechanism == RANDOMISED else None
        cluster = step(
            m.CLUSTER, n_clusters=most, within_label=within, epsilon=epsilon, columns=ALL
        )
        return (*tilts, cluster, *(() if self.table else (step(m.ASSIGN),)), step(m.FIT))

    def train(self, server: Server, take: TakeModels) -> FittedParts:
        """Cluster, fit latent classes within strata, assign, fit one model a class."""
        if self.table:
            return train_on_table(
                server,
                take,
                n_classes=self.n_classes or N_CLASSES,
                n_clusters=self.n_clusters or N_CLUSTERS,
                epsilon=self.epsilon,
                mechanism=self.mechanism,
                label_private=self.label_private,
            )
        if self.epsilon is not None or self.mechanism != TRUSTED:
            raise FederationError(
                "epsilon and mechanism are for latent classes from a table of counts: pass "
                "table=True with them"
            )
        tilts, heads = self._fit_tilts(server, take)
        within_label = not self.label_private and tilts is None
        numbers = aligned_rows(server)
        n_clusters = self.n_clusters or automatic_clusters(numbers.size)
        clustered = cluster_everywhere(server, n_clusters, within_label)
        if within_label and server.in_use is not None:  # strata show the labels of the others
            numbers = np.intersect1d(numbers, server.in_use)
        indices = aligned_indices(server, clustered, numbers)
        strata = strata_of_rows(server, clustered, indices, within_label)
        sizes = [clustered[c].rows.size for c in server.clients]
        rng = named_rng(server.seed, "latent")
        model = fit_tuples(indices, strata, sizes, self.n_classes or CLASSES, rng)
        rows = self.assign(server, model, indices, numbers)
        found = fit_classes(
            server, take, rows, label_private=self.label_private, tilted=tilts is not None
        )
        if tilts is None:
            return found
        found = with_tilts(found, tilts)
        if self.label_private and not server.label_is_everywhere:
            left = set(heads) - set(server.clients)
            return found if left else replace(found, heads=heads)
        return with_heads(server, found, take, self.head)

    def _fit_tilts(
        self, server: Server, take: TakeModels
    ) -> tuple[dict[str, Tilt] | None, dict[str, ClientHead]]:
        """Tables of the label's tilt, and heads where its owner has fitted them by codes.

        No tables where there is no label for them or no learner has one.
        """
        if not self.tilt or server.label is None:
            return None, {}
        if self.label_private and not server.label_is_shared:
            return fit_by_codes(server, head=self.head and not take.keep) or (None, {})
        if self.label_private and not server.label_is_everywhere:
            return None, {}
        return tilts_and_then_head(server, take, self.head), {}

    def assign(
        self, server: Server, model: LatentClasses, indices: IntArray, numbers: IntArray
    ) -> FloatArray:
        """Send clients the class of aligned rows (n,); return (R,) rows of each class."""
        classes = model.log_joint(indices).argmax(axis=1)
        n_classes = len(model.log_q)
        tables = {client: model.given_cluster(at) for at, client in enumerate(server.clients)}
        assign_classes(
            server, server.clients, LATENT_CLASSES, numbers, classes, n_classes, tables, indices
        )
        return np.bincount(classes, minlength=n_classes).astype(float)

    def glue(self, fitted: FittedParts) -> tuple[CircuitBuilder, int]:
        """One product for every latent class that has a model in every subspace."""
        made = glue_table(fitted) if self.table else glue_classes(fitted)
        return with_tilt(fitted, made) if fitted.tilts else made


def fit_classes(
    server: Server,
    take: TakeModels,
    rows: FloatArray,
    *,
    label_private: bool,
    tilted: bool = False,
) -> FittedParts:
    """Models of every subspace, holder and latent class.

    Args:
        server: the run.
        take: as for `Rule.train`.
        rows: (R,) rows of each class.
        label_private: whether classes mix labels.
        tilted: whether the label comes in by a tilt.
    """
    classes = [int(cls) for cls in np.flatnonzero(rows > 0)]
    jobs = class_jobs(
        server,
        LATENT_CLASSES,
        lambda _: classes,
        dict.fromkeys(server.clients, rows.size),
        label_private=label_private,
        tilted=tilted,
    )
    return fit(server, jobs, take, FittedParts(server.schema, server.label, tables={"rows": rows}))


def glue_classes(fitted: FittedParts) -> tuple[CircuitBuilder, int]:
    """sum_l q(l) prod_S sum_c w(c | l, S) p_c(x_S | l).

    Where a client has shared and private columns, they depend on each other in its model of all of
    them: clients linked by shared columns are mixed, each with its own model and the others' models
    of what it lacks. A class without a model in some subspace is left out, and its rows with it.
    """
    builder = CircuitBuilder()
    builder.register([(fitted.models[k], k.client) for k in sorted(fitted.models)])
    held = by_cell(fitted)
    spaces = sorted({space for _, space in held})
    products, counts = [], []
    for cls, rows in enumerate(fitted.tables["rows"]):
        if rows <= 0 or any((cls, space) not in held for space in spaces):
            continue
        keys = {space: held[cls, space] for space in spaces}
        factors = [
            _linked(builder, fitted, {s: keys[s] for s in linked}, wholes(fitted, cls))
            for linked in _by_links(keys)
        ]
        products.append(factors[0] if len(factors) == 1 else builder.product(factors))
        counts.append(float(rows))
    return builder, builder.mixture(products, counts)


def _by_links(keys: Mapping[int, list[ModelKey]]) -> list[list[int]]:
    """Subspaces in groups that clients with models in several of them link, where one is shared."""
    groups: list[tuple[set[str], list[int]]] = []
    shared = {k.client for mine in keys.values() if len(mine) > 1 for k in mine}
    for space, mine in keys.items():
        clients = {k.client for k in mine}
        linked = [g for g in groups if g[0] & clients & shared]
        for g in linked:
            groups.remove(g)
        spaces = sorted([*(s for g in linked for s in g[1]), space])
        groups.append((clients.union(*(g[0] for g in linked)), spaces))
    return [spaces for _, spaces in groups]


def _linked(
    builder: CircuitBuilder,
    fitted: FittedParts,
    keys: Mapping[int, list[ModelKey]],
    every: list[ModelKey],
) -> int:
    """One node over the columns of some subspaces that shared columns link, for one class."""

    def mixed(space: int) -> int:
        parts = [builder.part(fitted.models[k]) for k in keys[space]]
        return builder.mixture(parts, [fitted.rows[k] for k in keys[space]])

    def times(factors: list[int]) -> int:
        return factors[0] if len(factors) == 1 else builder.product(factors)

    here = {k.client for mine in keys.values() for k in mine}
    own = {k.client: k for k in every if k.client in here}
    if not own:
        return times([mixed(space) for space in keys])
    children, weights = [], []
    for client in sorted(here):
        mine = [k for each in keys.values() for k in each if k.client == client]
        lacking = [s for s, each in keys.items() if all(k.client != client for k in each)]
        if client in own:
            mine = [own[client]]
        children.append(
            times([*(builder.part(fitted.models[k]) for k in mine), *map(mixed, lacking)])
        )
        weights.append(fitted.rows[mine[0]])
    return builder.mixture(children, weights)
