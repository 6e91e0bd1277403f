"""A head over clients with different columns: codes of rows go across the border, sealed.

Clients with the same columns form a group; their trees are averaged, and one small tree numbers the
leaves for all of them. A client's second trees have the codes of other groups as inputs, missing
where nobody of the group has the row. Rows that every group holds and one client with the label
holds too are left out to pool the groups' trees with the tilt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedcircuits.arrays import IntArray
from fedcircuits.density.tilt import Tilt, n_states_of
from fedcircuits.errors import ClientError
from fedcircuits.federation.agreement._shared.aligned import aligned_rows, drawn, name_rows
from fedcircuits.federation.agreement._shared.keys import KEYS
from fedcircuits.federation.agreement._shared.tilts import TRIES, fit_tilts, scored_by_others
from fedcircuits.federation.client.label.tilting import tables_of
from fedcircuits.federation.server.fitted_parts import FittedParts
from fedcircuits.federation.server.heads import ClientHead, gains_for_certain
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.tilts import combined
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.steps import MANY, Step, step

# Left-out rows: a fifth of the rows, of few rows a third up to the second number.
HELD_SHARE, FEW_SHARE, FEW_HELD, MOST_HELD, LEAST_HELD = 0.2, 1 / 3, 200, 4_000, 200
STEPS: tuple[Step, ...] = (
    *KEYS,
    step(m.NAME_ROWS, MANY),
    step(m.FIT_CODE_TREES, TRIES),
    step(m.FIT_TREES_ON_CODES, TRIES),
    step(m.SCORE_TILT, MANY),
    step(m.POOL_ACROSS, TRIES),
)


@dataclass
class Border:
    """One attempt at a head, all sealed for the keys that clients have now.

    Attributes:
        server: the run.
        groups: clients with the same columns, by the first of them.
        pooler: the client that pools.
        held: (n,) rows that are left out.
        tilt: fitted to the other rows.
        turns: the step that each client's codes are sealed for.
        pooling: the step that the pool's pieces are sealed for.
        scorers: whose tables score which columns of which left-out rows.
        own: the trees of every client over its own columns.
        codes: pieces for every client, of groups that are not its own.
    """

    server: Server
    groups: dict[str, list[str]]
    pooler: str
    held: IntArray
    tilt: Tilt
    turns: dict[str, str] = field(init=False)
    pooling: str = field(init=False)
    scorers: list[tuple[str, list[str], IntArray]] = field(init=False)
    own: dict[str, m.CodeTreesFitted] = field(default_factory=dict)
    codes: dict[str, list[m.GroupPiece]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        server, pooler = self.server, self.pooler
        self.turns = {client: server.next_step() for client in server.clients}
        self.pooling = server.next_step()
        every = {c: self.tilt.select(columns_of(server, c)) for c in server.clients}
        others = list(scored_by_others(server, pooler, every, self.held))
        self.scorers = [(pooler, columns_of(server, pooler), self.held), *others]

    @property
    def group_of(self) -> dict[str, str]:
        """The group of every client."""
        return {client: g for g, members in self.groups.items() for client in members}

    def others(self, client: str) -> list[str]:
        """The other groups, in order."""
        return [g for g in self.groups if client not in self.groups[g]]

    def held_by(self, client: str) -> IntArray:
        """(n,) left-out rows that a client scores: those no earlier one of its group has."""
        rows = np.intersect1d(self.held, self.server.aligned[client])
        for other in self.groups[self.group_of[client]]:
            if other == client:
                break
            rows = np.setdiff1d(rows, self.server.aligned[other])
        return rows

    def sealed(self, client: str, rows: IntArray, recipient: str, step: str) -> m.SealFor:
        """What a client seals values about rows for."""
        name = name_rows(self.server, client, rows)
        return m.SealFor(name, rows.size, self.server.keys[recipient], step)

    def to_pool(self, client: str, layer: int) -> m.SealFor:
        """What outputs of left-out rows are sealed for: alone (0) or across (1)."""
        clients = sorted(self.server.clients)
        at = len(self.scorers) + layer * len(clients) + clients.index(client)
        step = m.piece_step(self.pooling, at)
        return self.sealed(client, self.held_by(client), self.pooler, step)

    def recipients(self, client: str) -> list[tuple[str, IntArray]]:
        """Who gets a client's codes of which rows, every row of a group once."""
        found = []
        for other in self.server.clients:
            if self.group_of[other] == self.group_of[client]:
                continue
            both = np.intersect1d(self.server.aligned[client], self.server.aligned[other])
            for each in self.groups[self.group_of[client]]:
                if each == client:
                    break
                both = np.setdiff1d(both, self.server.aligned[each])
            if both.size >= self.server.min_rows:
                found.append((other, both))
        return found

    def fit_code_trees(self) -> bool:
        """Have every client boost trees and send codes of rows; return whether all have trees."""
        server = self.server
        leaders = list(self.groups)
        followers = [c for c in server.clients if c not in leaders]
        for some in (leaders, followers):
            to = {client: self.recipients(client) for client in some}
            asked = {}
            number = {other: len(self.codes.get(other, ())) for other in server.clients}
            for client in some:
                places = []
                for other, rows in to[client]:
                    step = m.piece_step(self.turns[other], number[other])
                    places.append(self.sealed(client, rows, other, step))
                    number[other] += 1
                first = self.own.get(self.group_of[client])
                asked[client] = m.FitCodeTrees(
                    columns_of(server, client),
                    n_classes_of(server),
                    self.to_pool(client, 0),
                    tuple(places),
                    first.leaf if first else {},
                    first.width if first else 1.0,
                    server.min_rows,
                )
            self.own |= server.call(m.FIT_CODE_TREES, asked) if asked else {}
            if not all(self.own[client].trees for client in some):
                return False
            for client in some:
                for (other, rows), piece in zip(to[client], self.own[client].codes, strict=True):
                    at = self.others(other).index(self.group_of[client])
                    name = name_rows(server, other, rows)
                    self.codes.setdefault(other, []).append(
                        m.GroupPiece(at, name, rows.size, piece)
                    )
        return True

    def fit_trees_on_codes(self) -> dict[str, m.TreesOnCodesFitted]:
        """Return every client's trees on codes; none where a client has another key by now."""
        server = self.server
        asked = {
            client: m.FitTreesOnCodes(
                columns_of(server, client),
                n_classes_of(server),
                self.to_pool(client, 1),
                server.keys[client],
                self.turns[client],
                tuple(self.codes.get(client, ())),
                len(self.others(client)),
                server.min_rows,
            )
            for client in server.clients
        }
        found = server.call(m.FIT_TREES_ON_CODES, asked)
        return found if all(found[c].key == server.keys[c] for c in found) else {}

    def pool(self, on_codes: Mapping[str, m.TreesOnCodesFitted]) -> m.PooledAcross:
        """Weights of the groups' trees, fitted where the label is."""
        server, pooler = self.server, self.pooler
        key = server.keys[pooler]
        tilts: list[m.ScorePiece] = []
        for client, columns, rows in self.scorers:
            name, step = name_rows(server, client, rows), m.piece_step(self.pooling, len(tilts))
            ask = m.ScoreTilt(tables_of(self.tilt.select(columns)), name, rows.size, key, step)
            sealed = server.call(m.SCORE_TILT, {client: ask})[client]
            piece = m.Piece(sealed.values, client)
            tilts.append(m.ScorePiece(name_rows(server, pooler, rows), rows.size, piece))

        def pieces(
            found: Mapping[str, m.CodeTreesFitted | m.TreesOnCodesFitted],
        ) -> tuple[m.GroupPiece, ...]:
            answer = []
            for client in sorted(found):
                rows = self.held_by(client)
                at = list(self.groups).index(self.group_of[client])
                name = name_rows(server, pooler, rows)
                answer.append(m.GroupPiece(at, name, rows.size, found[client].outputs))
            return tuple(answer)

        request = m.PoolAcross(
            name_rows(server, pooler, self.held),
            self.held.size,
            key,
            self.pooling,
            self.tilt.c,
            tuple(tilts),
            pieces(self.own),
            pieces(on_codes),
            len(self.groups),
        )
        return server.call(m.POOL_ACROSS, {pooler: request})[pooler]

    def heads(
        self, on_codes: Mapping[str, m.TreesOnCodesFitted], pooled: m.PooledAcross
    ) -> dict[str, ClientHead]:
        """Every client's trees, with its part of the pool."""
        assert pooled.pool is not None
        answer = {}
        for client in self.server.clients:
            group, own = self.group_of[client], self.own[client]
            at = list(self.groups).index(group)
            pool = replace(pooled.pool, trees=pooled.pool.trees[at : at + 1])
            answer[client] = ClientHead.of(
                columns_of(self.server, client),
                on_codes[client].trees if pooled.across else own.trees,
                pool,
                pool.shift.size,
                len(self.groups),
                group,
                self.others(client) if pooled.across else (),
                (own.trees, own.leaf, own.width) if pooled.across else None,
            )
        return answer


@dataclass(frozen=True)
class Attempt:
    """A head that was pooled."""

    border: Border
    on_codes: Mapping[str, m.TreesOnCodesFitted]
    pooled: m.PooledAcross


def heads_across(server: Server) -> dict[str, ClientHead]:
    """Every client's trees and the pool of all; none where too few rows or no trees are there."""
    tilts = tilts_without(server)
    made = None if tilts is None else attempt(server, tilts, *left_out(server))
    return {} if made is None else made.border.heads(made.on_codes, made.pooled)


def left_out(server: Server) -> tuple[dict[str, list[str]], str, IntArray]:
    """Clients in groups, the one that pools, and the rows (n,) that fits of a head leave out."""
    groups = groups_of(server)
    pooler, rows = rows_to_pool(server, groups)
    few = min(FEW_HELD, int(FEW_SHARE * rows.size))
    n_held = min(MOST_HELD, max(few, int(HELD_SHARE * rows.size)))
    return groups, pooler, np.sort(drawn(server, "head", rows)[:n_held])


def tilts_without(server: Server) -> dict[str, Tilt] | None:
    """Every client's tilt, fitted to the rows that a head does not leave out, if they are enough.

    Tables of all rows go on from these: they are fitted first.
    """
    if not (can_pool(server) and server.label_is_shared):
        return None
    groups, _, held = left_out(server)
    if not enough(server, groups, held):
        return None
    return fit_tilts(server, within=np.setdiff1d(aligned_rows(server), held))


def gain_of_head(server: Server, tilts: Mapping[str, Tilt], judged: IntArray) -> float:
    """Nats a row that a head takes off the log-loss of rows that no fit has used, if for certain.

    Args:
        server: the run; clients leave these rows out.
        tilts: fitted to the other rows.
        judged: (n,) aligned rows.
    """
    groups = groups_of(server)
    pooler, rows = rows_to_pool(server, groups)
    held = np.intersect1d(judged, rows)
    if not enough(server, groups, held):
        return 0.0
    made = attempt(server, tilts, groups, pooler, held)
    if made is None or made.pooled.pool is None:
        return 0.0
    pool = made.pooled.pool
    kept = gains_for_certain(pool.gain, pool.error, pool.log_loss)
    return pool.gain if kept else 0.0


def attempt(
    server: Server,
    tilts: Mapping[str, Tilt],
    groups: dict[str, list[str]],
    pooler: str,
    held: IntArray,
) -> Attempt | None:
    """Trees of all clients and their pool; None where there are none.

    Args:
        server: the run.
        tilts: of the clients, fitted to other rows than `held`.
        groups: clients with the same columns.
        pooler: who pools.
        held: (n,) rows that are left out.
    """
    tilt = combined(FittedParts(server.schema, server.label, tilts=dict(tilts)))
    if tilt is None or not np.isfinite(tilt.c).all():
        return None
    for _ in range(TRIES):
        server.share_keys()
        border = Border(server, groups, pooler, held, tilt)
        if not border.fit_code_trees():
            return None
        on_codes = border.fit_trees_on_codes()
        if on_codes:
            pooled = border.pool(on_codes)
            if pooled.key == server.keys[pooler]:
                return None if pooled.pool is None else Attempt(border, on_codes, pooled)
        server.keys.clear()
    raise ClientError(pooler, f"keys changed during each of {TRIES} attempts: start it again")


def groups_of(server: Server) -> dict[str, list[str]]:
    """Clients with the same columns, by the first of them."""
    by_columns: dict[frozenset[str], list[str]] = {}
    for client in server.clients:
        by_columns.setdefault(frozenset(columns_of(server, client)), []).append(client)
    return {members[0]: members for members in by_columns.values()}


def rows_to_pool(server: Server, groups: Mapping[str, list[str]]) -> tuple[str, IntArray]:
    """The client with the label that holds most rows of all groups, and these rows (n,)."""
    common: IntArray | None = None
    for members in groups.values():
        mine = np.unique(np.concatenate([server.aligned[c] for c in members]))
        common = mine if common is None else np.intersect1d(common, mine)
    assert common is not None
    having = [*server.label_owners, *server.label_holders]
    pooler = max(having, key=lambda c: int(np.isin(common, server.aligned[c]).sum()))
    return pooler, np.intersect1d(common, server.aligned[pooler])


def can_pool(server: Server) -> bool:
    """Whether rows of several clients are aligned: without an id none is known to be shared."""
    return len(server.clients) > 1 and set(server.clients) <= set(server.aligned)


def name_left_out(server: Server) -> None:
    """Name the rows that a head leaves out, before anything else is asked about groups of rows.

    Under policies a client counts those alone that leave parts of enough rows; the finer its parts
    are by then, the fewer they are, and trees would be weighed by rows that they have seen.
    """
    able = can_pool(server) and server.label_is_shared
    if not (able and all(server.tilts[client] for client in server.clients)):
        return
    groups, _, held = left_out(server)
    if enough(server, groups, held):
        for client in server.clients:
            name_rows(server, client, np.intersect1d(held, server.aligned[client]))


def enough(server: Server, groups: Mapping[str, list[str]], held: IntArray) -> bool:
    """Whether left-out rows (n,) are enough to pool on, of every client."""
    of_client = [np.isin(held, server.aligned[c]).sum() for g in groups.values() for c in g]
    return (
        len(groups) > 1
        and held.size >= max(LEAST_HELD, server.min_rows)
        and min(of_client) >= server.min_rows
    )


def columns_of(server: Server, client: str) -> list[str]:
    """A client's columns without the label."""
    return [column for column in server.held[client] if column != server.label]


def n_classes_of(server: Server) -> int:
    """Classes of the label, or states of one that is a number."""
    assert server.label is not None
    return n_states_of(server.schema[server.label])
