"""`product`: the label is known everywhere, and ties the clients together.

    p(x, y) = q(y) [y] prod_S sum_{c in holders(S)} w(c | y, S) p_c(x_S | y)

Where all learners have tables of agreed states for leaves, p_c(x_S | y) is the client's model of
all its rows times one tilt for the class (`server/tilts.py`):

    p(x, y) = (1/Z) prod_S sum_c w(c | S) m_c(x_S)  exp(c_y + sum_j g_yj(x_j))

The tilt is averaged over clients with the same columns and fitted in turns over clients with
different ones. Other learners fit the classes one by one, and weights are those of the classes,
w(c | y) = n_cy / n_y. Either way it is one circuit for density and label.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedcircuits.density.tilt import Tilt, n_states_of
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement._shared.heads import (
    head_steps,
    tilts_and_then_head,
    with_heads,
)
from fedcircuits.federation.agreement._shared.tilts import tilt_steps
from fedcircuits.federation.agreement.base import Declared
from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import (
    FittedParts,
    TakeModels,
    fit,
    label_leaves,
)
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.tilts import with_tilt
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import Job, JobId, JobKind
from fedcircuits.federation.wire.steps import Facts, Step, step


@dataclass(frozen=True)
class ProductOfClasses(Declared):
    """Client models multiplied over subspaces and mixed over holders, one tilt for the label.

    Where only some clients hold the label, its owners have sent it to the others (`label_use`).

    Attributes:
        tilt: whether one tilt is fitted by all clients together, where their learners can; else
            every client fits the classes by itself.
        head: whether boosted trees are pooled into p(y | x) where left-out rows gain for certain;
            False gives a circuit, exact throughout. Models that stay have none.
    """

    tilt: bool = True
    head: bool = True

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "product"

    def steps(self, facts: Facts) -> tuple[Step, ...]:
        """The tilt, in turns where columns are split, and fits."""
        if facts.label == "nobody" or (facts.label == "some" and facts.setting != "horizontal"):
            return ()
        tilt = tilt_steps(facts) if self.tilt else ()
        head = head_steps(facts) if self.tilt and self.head else ()
        return (*tilt, step(m.FIT), *head)

    def train(self, server: Server, take: TakeModels) -> FittedParts:
        """The tilt in turns, then one job for each subspace and holder."""
        if server.label is None or not server.label_holders:
            raise FederationError("the rule 'product' needs a label; use 'latent'")
        lacking = [client for client in server.clients if client not in server.label_holders]
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
        tilts = tilts_and_then_head(server, take, self.head) if self.tilt else None
        if tilts is None:
            return self._train_by_class(server, take)
        jobs = []
        for s, space in enumerate(server.subspaces):
            names = tuple(server.features[j] for j in space.features)
            jobs += [(server.clients[c], Job(_space(s), names)) for c in space.holders]
        found = fit(server, jobs, take, FittedParts(server.schema, server.label))
        return with_heads(server, with_tilts(found, tilts), take, self.head)

    def _train_by_class(self, server: Server, take: TakeModels) -> FittedParts:
        """Every client's models of the classes."""
        held, jobs = server.label_holders, []
        for s, space in enumerate(server.subspaces):
            names = [server.features[j] for j in space.features]
            for client in (server.clients[c] for c in space.holders):
                columns = [n for n in server.schema.names if n in names or n == server.label]
                mixed = server.setting == "horizontal"
                job = Job(
                    _space(s),
                    tuple(columns),
                    per_label=True,
                    mixed=mixed,
                    n_classes=n_states_of(server.schema[server.label or ""]),
                )
                jobs.append((client, job))
        # Rows split: counts add up. Columns split: a row is counted once, by whoever has most.
        counts = [server.label_counts[c] for c in held]
        total = np.sum(counts, axis=0) if len(server.subspaces) == 1 else np.max(counts, axis=0)
        fitted = FittedParts(server.schema, server.label, tables={"label": total})
        return fit(server, jobs, take, fitted)

    def glue(self, fitted: FittedParts) -> tuple[CircuitBuilder, int]:
        """q(y) times products over subspaces of sums over holders."""
        if fitted.tilts:
            return with_tilt(fitted, product_of_spaces(fitted))
        label, builder = fitted.label, CircuitBuilder()
        assert label is not None
        codes = sorted({key.cls for key in fitted.models})
        spaces = sorted({key.job for key in fitted.models}, key=str)
        counts = np.zeros(n_states_of(fitted.schema[label]))
        counts[codes] = [self._class_rows(fitted, y, spaces) for y in codes]
        leaves = label_leaves(fitted.schema, label, counts)
        builder.register([(leaf, "server") for leaf in leaves.values()])
        builder.register([(fitted.models[k], k.client) for k in sorted(fitted.models)])
        classes = []
        for y, leaf in leaves.items():
            factors = [builder.part(leaf)]
            for space in spaces:
                held = [k for k in sorted(fitted.models) if k.job == space and k.cls == y]
                if not held:  # nobody who holds this subspace has seen the class: it says nothing
                    held = [k for k in sorted(fitted.models) if k.job == space]
                children = [builder.part(fitted.models[k]) for k in held]
                factors.append(builder.mixture(children, [fitted.rows[k] for k in held]))
            classes.append(builder.product(factors))
        return builder, builder.mixture(classes, [counts[y] for y in leaves])

    def _class_rows(self, fitted: FittedParts, y: int, spaces: list[JobId]) -> float:
        """Rows of a class: added up where rows are split, one count where columns are."""
        if len(spaces) == 1:
            return sum(n for key, n in fitted.rows.items() if key.cls == y)
        return float(fitted.tables["label"][y])


def with_tilts(fitted: FittedParts, tilts: dict[str, Tilt]) -> FittedParts:
    """The fitted parts with the tilts of the clients that have models among them."""
    clients = {key.client for key in fitted.models}
    return replace(fitted, tilts={c: tilt for c, tilt in tilts.items() if c in clients})


def product_of_spaces(fitted: FittedParts) -> tuple[CircuitBuilder, int]:
    """m(x) = prod_S sum_c w(c | S) m_c(x_S)."""
    builder = CircuitBuilder()
    keys = sorted(fitted.models)
    builder.register([(fitted.models[k], k.client) for k in keys])
    factors = []
    for space in sorted({k.job for k in keys}, key=str):
        held = [k for k in keys if k.job == space]
        parts = [builder.part(fitted.models[k]) for k in held]
        factors.append(builder.mixture(parts, [fitted.rows[k] for k in held]))
    return builder, factors[0] if len(factors) == 1 else builder.product(factors)


def _space(number: int) -> JobId:
    return JobId(JobKind.SUBSPACE, number)
