"""What several rules need about aligned rows: who holds them, and in which cluster they are.

A client knows its aligned rows in the order of the federation; nothing that is sent about them
names a row. A message about some of them comes with a choice, one bit a row, or with how they were
drawn, where the client has all rows that these were drawn from.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.errors import ClientError, FederationError, StorageError
from fedcircuits.federation.plan.indicator import feature_indicator
from fedcircuits.federation.plan.subspaces import Subspace, subspaces
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.ids import fingerprint
from fedcircuits.federation.wire.names import CLUSTERS, Grouping
from fedcircuits.federation.wire.packing import pack_codes, squeeze, unpack_codes
from fedcircuits.federation.wire.seeds import drawn_order

MOST_RANKED = 256  # classes whose ranks fit into a byte


def common_rows(server: Server) -> IntArray:
    """Numbers of the rows that every client holds, sorted."""
    if not server.aligned:
        return np.zeros(0, dtype=np.int64)
    common = server.aligned[server.clients[0]]
    for client in server.clients[1:]:
        common = np.intersect1d(common, server.aligned[client])
    return np.sort(common)


def aligned_rows(server: Server) -> IntArray:
    """Numbers of the rows that two clients or more hold, sorted."""
    here = [server.aligned[client] for client in server.clients if client in server.aligned]
    if not here:
        return np.zeros(0, dtype=np.int64)
    numbers, holders = np.unique(np.concatenate(here), return_counts=True)
    return np.asarray(numbers[holders > 1])


def aligned_share(server: Server) -> float:
    """Least share of a client's rows that another client holds too."""
    numbers = aligned_rows(server)
    nowhere = np.zeros(0, dtype=np.int64)
    return min(
        int(np.isin(server.aligned.get(client, nowhere), numbers).sum())
        / max(1, server.n_rows[client])
        for client in server.clients
    )


def name_rows(server: Server, client: str, numbers: IntArray) -> str:
    """A name for some of a client's aligned rows (n,), sorted; the client is sent it once."""
    name = fingerprint(np.ascontiguousarray(numbers, dtype=np.int64).tobytes())[:16]
    if (client, name) not in server.named_rows:
        draw = _draw_of(server, client, numbers)
        choice = server.choice(client, numbers if draw is None else server.aligned[client])
        request = m.NameRows(name, choice, draw)
        server.call(m.NAME_ROWS, {client: request})
        server.named_rows.add((client, name))
    return name


def drawn(server: Server, what: str, numbers: IntArray) -> IntArray:
    """Numbers of rows (n,), sorted, in an order that the seed draws for a purpose."""
    order = numbers[drawn_order(numbers.size, server.seed, what)]
    server.drawn[what] = order
    return order


def _draw_of(server: Server, client: str, numbers: IntArray) -> m.Draw | None:
    """How a client can draw some of its aligned rows by itself; None where it takes bits."""
    mine = server.aligned[client]
    for what, order in server.drawn.items():
        if order.size != mine.size or not np.isin(order, mine).all():
            continue
        inside = np.isin(order, numbers)
        for rest in (False, True):
            places = np.flatnonzero(inside != rest)
            if places.size and places[-1] - places[0] + 1 == places.size:
                return m.Draw(server.seed, what, int(places[0]), int(places[-1]) + 1, rest)
    return None


def assign_classes(
    server: Server,
    clients: list[str],
    group: Grouping,
    numbers: IntArray,
    classes: IntArray,
    n_classes: int,
    tables: Mapping[str, FloatArray] | None = None,
    indices: IntArray | None = None,
) -> None:
    """Send clients the class of aligned rows, and r(l | k) to those with other rows too.

    Of a row in cluster k some classes are far likelier than others: where clusters are given, a
    class is sent as its rank among those of k, frequent ranks in fewer bits.

    Args:
        server: the run.
        clients: who is sent the classes.
        group: the grouping that is made.
        numbers: (n,) rows, sorted.
        classes: (n,) their classes.
        n_classes: R.
        tables: (K_c, R) r(l | k) by client, for the other rows.
        indices: (n, C) cluster of each row at each client, as the client has it.
    """
    requests = {}
    for client in clients:
        mine = np.isin(numbers, server.aligned[client])
        nothing = np.zeros((0, n_classes), dtype=np.float16)
        alone = tables is not None and int(mine.sum()) < server.n_rows[client]
        table = tables[client].astype(np.float16) if alone and tables is not None else nothing
        choice = server.choice(client, numbers)
        packed, source = pack_codes(classes[mine], n_classes), CLUSTERS if tables else None
        ranks = np.zeros((0, n_classes), dtype=np.uint8)
        if tables is not None and indices is not None and n_classes <= MOST_RANKED:
            order = np.argsort(-tables[client], axis=1, kind="stable")  # (K, R)
            place = np.argsort(order, axis=1)
            index = indices[mine, server.clients.index(client)]
            squeezed = squeeze(place[index, classes[mine]].astype(np.uint8))
            if squeezed.size + order.size < packed.size:
                packed, ranks = squeezed, order.astype(np.uint8)
        requests[client] = m.Assign(group, source, choice, packed, table, ranks)
    server.call_unless_repeated(m.ASSIGN, requests)


def spaces_with_label(server: Server) -> list[tuple[tuple[str, ...], list[str]]]:
    """Columns and holders of each subspace (Algorithm 1, line 3), the label a feature as others."""
    names = server.schema.names

    def named(space: Subspace) -> tuple[tuple[str, ...], list[str]]:
        columns = tuple(names[j] for j in space.features)
        return columns, [server.clients[c] for c in space.holders]

    own = server.label_owners  # one that was sent the label uses it and does not model it again
    held = {
        client: [n for n in columns if n != server.label or client in own]
        for client, columns in server.held.items()
    }
    M = feature_indicator(held, server.clients, names)
    return [named(space) for space in subspaces(M)]


def cluster_everywhere(
    server: Server,
    n_clusters: int,
    within_label: bool,
    *,
    send_rows: bool = True,
    epsilon: float = 0.0,
) -> dict[str, m.Clustered]:
    """Have every client cluster its own columns and send the index of its aligned rows.

    Args:
        server: the run.
        n_clusters: K.
        within_label: whether the label's owner clusters within its classes.
        send_rows: whether indices are sent at all.
        epsilon: above 0, by randomised response.
    """
    requests = {
        client: m.Cluster(
            CLUSTERS, list(server.held[client]), n_clusters, within_label, send_rows, epsilon
        )
        for client in server.clients
    }
    return server.call_unless_repeated(m.CLUSTER, requests)


def aligned_indices(
    server: Server, clustered: Mapping[str, m.Clustered], rows: IntArray
) -> IntArray:
    """(n, C) clusters of rows at every client, -1 where a client does not hold the row.

    Args:
        server: the run.
        clustered: what the clients replied.
        rows: (n,) numbers, sorted.
    """
    if rows.size == 0:
        raise FederationError(
            "no row is held by the clients together, so nothing can be counted: use "
            "agreement='independent', or 'product' where the label is shared"
        )
    columns = []
    for client in server.clients:
        reply, numbers = clustered[client], server.aligned[client]
        try:
            index = unpack_codes(reply.indices, numbers.size, reply.rows.size)
        except StorageError as error:
            raise ClientError(client, f"a reply that cannot be read: {error}") from None
        mine = np.full(rows.size, -1, dtype=np.int64)
        here = np.isin(rows, numbers)
        mine[here] = index[np.searchsorted(numbers, rows[here])]
        columns.append(mine)
    return np.stack(columns, axis=1)


def strata_of_rows(
    server: Server, clustered: Mapping[str, m.Clustered], indices: IntArray, within_label: bool
) -> IntArray:
    """(n,) the stratum of each aligned row: its class, where the label's owners cluster within it.

    -1 where no owner holds the row, or none knows its class. Strata of a client are numbered by the
    classes that it has rows of, in their order; one more is of rows without a known class.
    """
    if not server.label_holders or not within_label:
        return np.zeros(len(indices), dtype=np.int64)
    strata = np.full(len(indices), -1, dtype=np.int64)
    for owner in server.label_owners:
        index = indices[:, server.clients.index(owner)]
        present = np.append(np.flatnonzero(server.label_counts[owner]), -1)
        at = np.minimum(clustered[owner].strata[index], present.size - 1)
        strata = np.where((strata < 0) & (index >= 0), present[at], strata)
    return strata
