"""`anchors`: clusters of the shared columns tie each client's private columns to them.

    p(x) = sum_s q(s) [sum_c w(c | s) p_c(x_S | s)] prod_c [sum_k q_c(k | s) p_c(x_Pc | k)]

s is a cluster of the *shared* columns that all holders agree on (federated k-means: sums and counts
per centre, some rounds, so not one pass), k client c's own cluster of its private columns, and
q_c(k | s) is counted where both are seen. No aligned row is needed. A class of the label without
anchors of its own has the columns of all rows and the weight of half a row.

Several shared subspaces have an anchor each. They form a tree of most information through the
tables q(s_j | s_i) of clients that hold two of them, and a client's private columns hang below that
of its anchors that predicts them best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits import Circuit
from fedcircuits.density.tilt import n_states_of
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement._shared.anchor_tree import (
    TRACE,
    anchor_tree,
    conditional,
    table_information,
)
from fedcircuits.federation.agreement._shared.federated_kmeans import (
    Space,
    agreed_centres,
    rows_around,
)
from fedcircuits.federation.agreement._shared.keys import KEYS
from fedcircuits.federation.agreement._shared.masked_sums import (
    BeginAgainError,
    call_all,
    masked_sum,
)
from fedcircuits.federation.agreement.base import Declared
from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import (
    FittedParts,
    TakeModels,
    fit,
    label_leaves,
)
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import (
    PRIVATE_CLUSTERS,
    Grouping,
    GroupingKind,
    Job,
    JobId,
    JobKind,
)
from fedcircuits.federation.wire.steps import SET, Facts, Step, step


@dataclass(frozen=True)
class Anchors(Declared):
    """Anchor clusters of the shared columns.

    Attributes:
        n_anchors: number of anchors of each shared subspace.
        n_clusters: private clusters at each client.
        n_rounds: rounds of federated k-means.
    """

    n_anchors: int = 16
    n_clusters: int = 16
    n_rounds: int = 10

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "anchors"

    def steps(self, facts: Facts) -> tuple[Step, ...]:
        """Rounds of k-means, tables of counts, and fits."""
        if facts.setting != "hybrid":
            return ()
        n = facts.n_spaces
        return (
            *KEYS,
            step(m.START, n, n_clusters=self.n_anchors),
            step(m.CENTRES, n * self.n_rounds, masked_with=SET),
            step(m.ANCHOR_ROWS, n),
            step(m.CLUSTER, n_clusters=self.n_clusters, send_rows=False),
            step(m.TABLE_OF, n * n),
            step(m.FIT),
        )

    @staticmethod
    def applies(server: Server) -> bool:
        """Whether some columns are shared beside others."""
        return server.setting == "hybrid" and any(s.is_shared for s in server.subspaces)

    @staticmethod
    def keeps_label(server: Server) -> bool:
        """Whether the label is modelled: all hold it, or one that has columns of its own."""
        if server.label is None or server.label_is_shared:
            return True
        shared = {n for space in _shared_spaces(server) for n in (*space.names, server.label)}
        return any(set(server.held[c]) - shared for c in server.label_holders)

    def train(self, server: Server, take: TakeModels) -> FittedParts:
        """Anchors, private clusters, tables, then fit."""
        if not self.applies(server):
            raise FederationError(
                "anchors need columns that several clients share beside others that they do not; "
                f"found {server.setting}: use agreement='latent' with an id, or 'independent'"
            )
        if not self.keeps_label(server):
            raise FederationError(
                f"anchors would leave the label {server.label!r} out of the model: only "
                f"{', '.join(map(repr, server.label_holders))} hold it, without columns of their "
                "own; pass id= with label_use='sent', which sends it to the others, or "
                "agreement='independent'"
            )
        try:
            fitted, jobs = self._agreed(server)
        except BeginAgainError:
            return self.train(server, take)
        return fit(server, jobs, take, fitted)

    def _agreed(self, server: Server) -> tuple[FittedParts, list[tuple[str, Job]]]:
        """Tables of anchors and clusters, and what is to be fitted."""
        server.share_keys()
        spaces = _shared_spaces(server)
        within = server.label_is_shared
        tables: dict[str, FloatArray] = {"spaces": np.array([float(len(spaces))])}
        jobs: list[tuple[str, Job]] = []
        for i, space in enumerate(spaces):
            centres = agreed_centres(server, space, self.n_anchors, self.n_rounds, within)
            last = rows_around(server, space, centres, within)
            tables[f"strata {i}"] = centres[:, 0]
            for client in space.holders:
                tables[f"once {i} {client}"] = last[client].once
                jobs += [
                    (client, Job(_anchor(i, int(s)), space.names, space.group, int(s)))
                    for s in np.flatnonzero(last[client].rows)
                ]
        tables |= _pair_tables(server, spaces, tables)
        jobs += self._private(server, spaces, within, tables)
        label = server.label if within else None
        return FittedParts(server.schema, label, tables=tables), jobs

    def _private(
        self, server: Server, spaces: list[Space], within: bool, tables: dict[str, FloatArray]
    ) -> list[tuple[str, Job]]:
        """Clusters of private columns, and the anchor each client's hang below."""
        shared = {name for space in spaces for name in space.names}
        private = {
            c: [n for n in server.held[c] if n not in shared and (n != server.label or not within)]
            for c in server.clients
        }
        owners = [c for c in server.clients if [n for n in private[c] if n != server.label]]
        request = {
            c: m.Cluster(PRIVATE_CLUSTERS, private[c], self.n_clusters, True, False) for c in owners
        }
        clustered = call_all(server, m.CLUSTER, request) if request else {}
        jobs = []
        for client in owners:
            size = clustered[client].rows.size
            tables[f"rows {client}"] = clustered[client].rows.astype(float)
            found = {
                i: _meet(
                    server,
                    [client],
                    PRIVATE_CLUSTERS,
                    space.group,
                    tables[f"strata {i}"].size,
                    size,
                )
                for i, space in enumerate(spaces)
                if client in space.holders
            }
            if found:
                best = max(found, key=lambda i: (table_information(found[i]), -i))
                tables[f"hangs {client}"] = np.array([float(best)])
                tables[f"meets {client}"] = found[best]
            for k in range(size):
                job = JobId(JobKind.CLUSTER, part=k)
                jobs.append((client, Job(job, tuple(private[client]), PRIVATE_CLUSTERS, k)))
        return jobs

    def glue(self, fitted: FittedParts) -> tuple[CircuitBuilder, int]:
        """Anchors above shared sums, private mixtures and the anchors below them."""
        return _Gluing(fitted).glue()


class _Gluing:
    """One gluing: nodes of the builder by subspace and anchor."""

    def __init__(self, fitted: FittedParts) -> None:
        self._found = fitted
        self._tables = fitted.tables
        self._builder = CircuitBuilder()
        n = int(self._tables["spaces"][0])
        self._strata = [self._tables[f"strata {i}"].astype(np.int64) for i in range(n)]
        pairs = {(i, j): f"pair {i} {j}" for i in range(n) for j in range(i + 1, n)}
        self._pairs = {p: self._tables[t] for p, t in pairs.items() if t in self._tables}
        self._tree = anchor_tree(n, self._pairs)
        self._keys = sorted(fitted.models)
        self._clients = sorted({key.client for key in self._keys})

    def glue(self) -> tuple[CircuitBuilder, int]:
        """The builder and its root."""
        builder, found, label = self._builder, self._found, self._found.label
        leaves = {}
        if label is not None:
            leaves = label_leaves(found.schema, label, np.ones(n_states_of(found.schema[label])))
            builder.register([(leaf, "server") for leaf in leaves.values()])
        builder.register([(found.models[k], k.client) for k in self._keys])
        nodes: dict[int, dict[int, int]] = {}  # by subspace: anchor to node
        apart = []
        for i in reversed(self._tree.order):
            each = {s: self._factors(i, s, nodes) for s in range(self._strata[i].size)}
            factors = {s: found for s, found in each.items() if found is not None}
            if leaves and i == self._tree.order[0]:
                apart.append(self._over_classes(factors, leaves))
                continue
            nodes[i] = {s: builder.product(found) for s, found in factors.items()}
            if self._tree.parent[i] < 0:
                rows = [self._rows(i, s) for s in nodes[i]]
                apart.append(builder.mixture(list(nodes[i].values()), rows))
        apart.reverse()
        apart += [self._private(c, None) for c in self._clients if self._hangs(c) is None]
        return builder, builder.product(apart)

    def _over_classes(self, factors: dict[int, list[int]], leaves: dict[int, Circuit]) -> int:
        """The mixture over the anchors of the first subspace, each with its class of the label.

        A class that no anchor has rows of (it has fewer than `MIN_ROWS` at every client) gets the
        columns of all rows and the weight of `TRACE` rows: improbable, but not impossible.

        Args:
            factors: by anchor, what is multiplied there beside the label.
            leaves: by class, its indicator.
        """
        builder, strata = self._builder, self._strata[self._tree.order[0]]
        rows = {s: self._rows(self._tree.order[0], s) for s in factors}
        parts = [builder.product([*f, builder.part(leaves[strata[s]])]) for s, f in factors.items()]
        unseen = sorted(set(leaves) - {strata[s] for s in factors if rows[s] > 0})
        if unseen:
            everywhere = [builder.product(found) for found in factors.values()]
            all_rows = builder.mixture(everywhere, list(rows.values()))
            parts += [builder.product([all_rows, builder.part(leaves[y])]) for y in unseen]
        return builder.mixture(parts, [*rows.values(), *[TRACE] * len(unseen)])

    def _factors(self, i: int, s: int, nodes: dict[int, dict[int, int]]) -> list[int] | None:
        """What is multiplied at an anchor; None where nobody fitted its shared columns."""
        builder, found = self._builder, self._found
        held = [k for k in self._keys if k.job == _anchor(i, s)]
        if not held:
            return None
        parts = [builder.part(found.models[k]) for k in held]
        factors = [builder.mixture(parts, [found.rows[k] for k in held])]
        factors += [self._private(c, s) for c in self._clients if self._hangs(c) == i]
        for j in self._tree.children(i):
            counts = self._pairs[i, j] if i < j else self._pairs[j, i].T
            table = conditional(counts, self._strata[i], self._strata[j])[s]
            factors.append(
                builder.mixture(list(nodes[j].values()), [float(table[t]) for t in nodes[j]])
            )
        return factors

    def _hangs(self, client: str) -> int | None:
        """The subspace a client's private columns hang below; -1 where it has none."""
        if f"rows {client}" not in self._tables:
            return -1
        at = self._tables.get(f"hangs {client}")
        return None if at is None else int(at[0])

    def _private(self, client: str, s: int | None) -> int:
        """A client's private columns given an anchor, or by themselves."""
        own = [k for k in self._keys if k.client == client and k.job.kind is JobKind.CLUSTER]
        shares = self._tables[f"rows {client}"]
        if s is not None:
            meets = self._tables[f"meets {client}"]
            anywhere = np.zeros(len(meets), dtype=np.int64)
            shares = conditional(meets, anywhere, np.zeros(meets.shape[1], dtype=np.int64))[s]
        parts = [self._builder.part(self._found.models[k]) for k in own]
        return self._builder.mixture(parts, [float(shares[k.job.part]) for k in own])

    def _rows(self, i: int, s: int) -> float:
        """Rows at an anchor, each counted once."""
        held = [self._tables.get(f"once {i} {c}") for c in self._clients]
        return float(sum(rows[s] for rows in held if rows is not None))


def _shared_spaces(server: Server) -> list[Space]:
    """The shared subspaces, those of most holders first."""
    found = [s for s in server.subspaces if s.is_shared]
    found.sort(key=lambda s: -len(s.holders))
    return [
        Space(
            tuple(server.features[j] for j in s.features),
            tuple(server.clients[c] for c in s.holders),
            Grouping(GroupingKind.ANCHORS, i),
        )
        for i, s in enumerate(found)
    ]


def _pair_tables(
    server: Server, spaces: list[Space], tables: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """How often anchors of two subspaces meet, where a client holds both."""
    answer = {}
    for i, one in enumerate(spaces):
        for j in range(i + 1, len(spaces)):
            both = [c for c in one.holders if c in spaces[j].holders]
            sizes = tables[f"strata {i}"].size, tables[f"strata {j}"].size
            if both:
                answer[f"pair {i} {j}"] = _meet(server, both, spaces[j].group, one.group, *sizes)
    return answer


def _meet(
    server: Server,
    clients: list[str],
    group: Grouping,
    anchors: Grouping,
    n_anchors: int,
    n_clusters: int,
) -> FloatArray:
    """(anchors, clusters) how often they meet at some clients, whose counts are added."""

    def ask(masked_with: list[str], nonce: str) -> m.AskTable:
        return m.AskTable(group, anchors, n_anchors, n_clusters, masked_with, nonce)

    found = masked_sum(server, m.TABLE_OF, clients, ask, lambda reply: reply.counts)
    return np.asarray(found["counts"])


def _anchor(space: int, number: int) -> JobId:
    return JobId(JobKind.ANCHOR, space, number)
