"""The server: sends messages, merges schemas, holds no table."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self, TypeVar

import numpy as np

from fedcircuits.arrays import Bytes, IntArray
from fedcircuits.density.tilt import Tilt
from fedcircuits.encoding import sha256_of
from fedcircuits.errors import ClientError, FederationError, StorageError, warn
from fedcircuits.federation.server.holdings import Holdings
from fedcircuits.federation.server.merged_schema import (
    described_schema,
    with_grids,
    with_missing_states,
)
from fedcircuits.federation.server.settings import LabelUse, ServerSettings
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.ids import fingerprint, numbered, without_few
from fedcircuits.federation.wire.ledger import Ledger
from fedcircuits.federation.wire.packing import pack_choice
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.federation.wire.transport import (
    RefusedError,
    Transport,
    in_waves,
    why_away,
    why_failed,
)
from fedcircuits.federation.wire.verbs import Verb
from fedcircuits.schema import Schema

Planner = Callable[["Server"], m.Plan]
Request = TypeVar("Request", bound=m.Message)
Reply = TypeVar("Reply", bound=m.Message)


class Server(Holdings):
    """One run with a set of clients.

    Attributes:
        clients: names, sorted; those that dropped out are gone.
        schema: agreed by all, with grids.
        held: names of the variables each client holds, the label included.
        tilts: whether each client's learner fits a tilt of the label.
        n_rows: rows of each client.
        label: its name, or None.
        label_use: how it is used where only some hold it; "used" where a policy refuses "sent".
        label_counts: rows of each class at each client that holds the label.
        setting: horizontal, vertical or hybrid.
        aligned: number in the federation of every aligned row, ascending, by client.
        named_rows: (client, name) of rows that a client has a name for.
        drawn: (n,) numbers of rows in the order that was drawn for a purpose.
        in_use: (n,) aligned rows that fits are limited to; None for all.
        ledger: bytes so far.
        dropped: why a client is no longer in the run.
        lost: variables that left the run with a client; None where they were not known yet.
        min_rows: smallest group that clients are asked about.
        salt: of digests of ids in this run.
        keys: public keys of the clients, once shared.
        struck: candidates of the plan that clients do not allow: name to client to reason.

    Args:
        transport: the engine.
        settings: of the run. The constructor sends nothing: see `start`.
        planner: makes the plan of the run once columns are known; without one no plan is proposed,
            and only clients without a policy answer.
    """

    def __init__(
        self,
        transport: Transport,
        settings: ServerSettings | None = None,
        planner: Planner | None = None,
    ) -> None:
        self.transport = transport
        self._planner = planner
        self.struck: dict[str, dict[str, str]] = {}
        self.settings = settings or ServerSettings()
        self.label = self.settings.label
        self.label_use: LabelUse = self.settings.label_use
        self.seed = self.settings.seed
        self.min_rows = self.settings.min_rows
        self.timeout = self.settings.timeout
        self.ledger = Ledger()
        self.clients = sorted(transport.members())
        self.dropped: dict[str, str] = {}
        self.lost: dict[str, list[str] | None] = {}
        self.n_rows: dict[str, int] = {}
        self.held: dict[str, tuple[str, ...]] = {}
        self.tilts: dict[str, bool] = {}
        self.label_counts: dict[str, list[float]] = {}
        self._sent_label: list[str] = []  # owners that have sent it to others
        self.aligned: dict[str, IntArray] = {}
        self.named_rows: set[tuple[str, str]] = set()
        self.drawn: dict[str, IntArray] = {}
        self.in_use: IntArray | None = None
        # Who fitted tilts in turns to which rows, and the tilts: rules of a trial share them.
        self.fitted_tilts: dict[tuple[tuple[str, ...], bytes], dict[str, Tilt] | None] = {}
        self.salt = secrets.token_hex(16)
        self.keys: dict[str, str] = {}
        self._nonce, self._n_steps = secrets.token_hex(8), 0  # of sealed exchanges
        self._told: set[str] = set()  # replies whose bits are counted
        self._last: dict[str, tuple[dict[str, bytes], dict[str, Any]]] = {}  # by verb

    @classmethod
    def start(
        cls,
        transport: Transport,
        settings: ServerSettings | None = None,
        planner: Planner | None = None,
    ) -> Self:
        """Return a server whose clients have agreed on a plan and a schema."""
        server = cls(transport, settings, planner)
        server.agree_on_schema()
        return server

    # --- messages ---------------------------------------------------------------------------------

    def call(
        self,
        verb: Verb[Request, Reply],
        requests: Mapping[str, Request],
        failures: dict[str, ClientError] | None = None,
    ) -> dict[str, Reply]:
        """Send requests, count bytes and return the decoded replies by client.

        Args:
            verb: of the requests.
            requests: by client.
            failures: gets the failures by client; without it the first failure is raised.
        """
        answers: dict[str, Reply] = {}
        failed: dict[str, ClientError] = {}
        for payloads in in_waves(requests):
            for client, data in payloads.items():
                self.ledger.add(client, "to client", verb.phase, verb.name, data)
            for client, answer in self.transport.call(verb.name, payloads, self.timeout).items():
                if isinstance(answer, Exception):
                    failed[client] = why_away(client, answer)
                    continue
                shown: dict[str, Any] = {}
                asked = requests[client]
                try:
                    answers[client] = verb.read_reply(client, asked, payloads[client], answer)
                    shown = self._shown(verb, client, asked, answers[client], answer)
                except StorageError as error:
                    failed[client] = why_failed(client, answer, error)
                self.ledger.add(client, "to server", verb.phase, verb.name, answer, **shown)
        if failures is not None:
            failures |= failed
        elif failed:
            raise next(iter(failed.values()))
        return {c: answers[c] for c in sorted(answers)}

    def call_unless_repeated(
        self, verb: Verb[Request, Reply], requests: Mapping[str, Request]
    ) -> dict[str, Reply]:
        """As `call`; the replies as they are where the last requests of this verb were the same."""
        payloads = {client: requests[client].to_bytes() for client in requests}
        kept = self._last.get(verb.name)
        if kept is None or kept[0] != payloads:
            self._last.pop(verb.name, None)  # of a call that fails nothing is known
            kept = self._last[verb.name] = payloads, self.call(verb, requests)
        return kept[1]

    def _shown(
        self, verb: Verb[Any, Any], client: str, request: m.Message, reply: m.Message, data: bytes
    ) -> dict[str, Any]:
        """Level and clear bits a row of a reply; a repeated one reveals nothing new."""
        asked = vars(request)
        name = m.request_name(client, verb.name, sha256_of(data).encode())
        bits = 0.0 if name in self._told else verb.bits(asked, reply)
        self._told.add(name)
        return {"level": verb.level("server", asked), "bits": bits}

    # --- handshake --------------------------------------------------------------------------------

    def agree_on_schema(self) -> None:
        """Have the clients describe their columns, merge, and send each the merged schema.

        With `settings.schema`, that schema of an earlier run is used for the columns it names.
        """
        agreed = self.settings.schema
        if not self.clients:
            raise FederationError("a federation needs at least one client")
        ask = m.Describe(self.min_rows)
        asked = dict.fromkeys(self.clients, ask)
        described = self._call_or_drop(m.DESCRIBE, asked)
        empty = [client for client, found in described.items() if found.n_rows == 0]
        for client in empty:
            self.drop(client, "it has no rows")
        described = {c: d for c, d in described.items() if c not in empty}
        schemas = {c: described_schema(c, d) for c, d in described.items()}
        # The strictest policy decides: what is about smaller groups would be asked in vain.
        self.min_rows = max([self.min_rows, *(d.min_rows for d in described.values())])
        merged = Schema.merge(schemas)
        if self.label is not None and self.label not in merged:
            raise FederationError(
                f"no client holds the label {self.label!r}; columns are {', '.join(merged.names)} "
                f"(clients {', '.join(map(repr, schemas))})"
                + "".join(f"; client {c!r} was left out: {w}" for c, w in self.dropped.items())
            )
        if self.label_use == "no" and self.label is not None:
            merged, self.label = merged.select([n for n in merged.names if n != self.label]), None
        self.held = {c: tuple(n for n in s.names if n in merged) for c, s in schemas.items()}
        self.tilts = {c: d.tilts for c, d in described.items()}
        if agreed is None:
            merged = with_missing_states(merged, described, self.held, self.label)
            merged = with_grids(merged, described, self.label, self.min_rows)
        else:
            for client, names in self.held.items():
                unknown = [name for name in names if name not in agreed]
                if unknown:
                    raise ClientError(client, f"column {unknown[0]!r} is not in the agreed schema")
            merged = agreed.select([n for n in agreed.names if n in merged])
        requests = {}
        for client in self.clients:  # a client receives its own columns, not those of others
            held = set(self.held[client])
            own = merged.select([n for n in merged.names if n in held])
            requests[client] = m.Agree(own.to_json(), self.seed, self.label)
        self.schema: Schema = merged
        self._propose()
        requests = {client: requests[client] for client in self.clients}
        ready = self._call_or_drop(m.AGREE, requests)
        self.n_rows = {c: r.n_rows for c, r in ready.items()}
        self.label_counts = {c: r.label_counts for c, r in ready.items() if r.label_counts}

    def _propose(self) -> None:
        """Send the plan; what clients strike of it is kept in `struck`."""
        if self._planner is None:
            return
        plan = self._planner(self)
        plans = {c: replace(plan, columns=list(self.held[c])) for c in self.clients}
        # Of the plan, so that a run that is begun again asks for the same digests.
        self.salt = fingerprint(*(each.to_bytes() for each in plans.values()))[:32]
        self._nonce = fingerprint(b"steps", self.salt.encode())[:16]
        for client, reply in self._call_or_drop(m.PROPOSE, plans).items():
            for name, why in reply.struck.items():
                self.struck.setdefault(name, {})[client] = why

    def _call_or_drop(
        self, verb: Verb[Request, Reply], requests: Mapping[str, Request], refusable: bool = False
    ) -> dict[str, Reply]:
        """As `call`; with `allow_missing` who fails is left out, or refuses unless `refusable`."""
        if not self.settings.allow_missing:
            return self.call(verb, requests)
        failures: dict[str, ClientError] = {}
        answers = self.call(verb, requests, failures)
        for client, error in failures.items():
            if refusable and isinstance(error, RefusedError):
                raise error
            if self.held:
                self.lose(client, str(error))
            else:
                self.drop(client, str(error))
        return answers

    def drop(self, client: str, why: str) -> None:
        """Go on without a client, with a warning."""
        self.dropped[client] = why
        self.lost[client] = [] if self.held else None
        self.clients = [c for c in self.clients if c != client]
        if not self.clients:
            raise FederationError(f"no client is left; the last was {client!r}: {why}")

    @property
    def reasons(self) -> dict[str, str]:
        """Why each client that was left out is no longer in the run, the client named once."""
        named = {client: f"client {client!r}: " for client in self.dropped}
        return {c: named[c] + why.removeprefix(named[c]) for c, why in self.dropped.items()}

    def warn_of_lost(self) -> None:
        """Warn of every client that the model was made without: why, and what left with it."""
        for client, why in self.reasons.items():
            lost = self.lost.get(client)
            if lost is None:
                left = "variables that it alone holds are not in the model"
            elif lost:
                left = f"variables that left the model with it: {', '.join(map(repr, lost))}"
            else:
                left = "no variable left the model, since others hold its columns"
            warn(f"the model was made without the {why}; {left}")

    def lose(self, client: str, why: str) -> None:
        """Go on without a client and without the variables that only it holds."""
        self.drop(client, why)
        self.aligned.pop(client, None)
        self.label_counts.pop(client, None)
        held = {name for c in self.clients for name in self.held[c]}
        self.lost[client] = [name for name in self.schema.names if name not in held]
        self.schema = self.schema.select([n for n in self.schema.names if n in held])
        if self.label is not None and self.label not in held:
            if self.settings.allow_missing:
                raise FederationError(
                    f"client {client!r} is lost and it alone holds the label {self.label!r}: bring "
                    "it back, or pass label=None for a model of the other variables. "
                    f"It was lost because: {why}"
                )
            self.label = None  # the run ends with an error, whose `rest` is the others' model

    # --- alignment --------------------------------------------------------------------------------

    def share_keys(self) -> None:
        """Ask every client for its public key and send each the keys of all."""
        if all(client in self.keys for client in self.clients):
            return
        asked = dict.fromkeys(self.clients, m.AskKey())
        replies = self._call_or_drop(m.PUBLIC_KEY, asked)
        self.keys = {client: reply.key for client, reply in replies.items()}
        peers = m.Peers(self.keys, {client: reply.nonce for client, reply in replies.items()})
        self._call_or_drop(m.PEERS, dict.fromkeys(self.clients, peers))

    def next_step(self) -> str:
        """Return a name for what clients seal next for one message, never given before."""
        self._n_steps += 1
        among = fingerprint(*(client.encode() for client in self.clients))[:8]
        return f"{self._nonce}-{among}-{self._n_steps}"

    def _group_secret(self) -> tuple[str, dict[str, str]]:
        """The client that draws what digests are keyed with, and that secret, wrapped for each."""
        self.share_keys()
        first = self.clients[0]
        wrapped = self.call(m.GROUP_SECRET, {first: m.AskGroupSecret(self.salt)})[first].wrapped
        if set(wrapped) != set(self.clients) - {first}:
            raise ClientError(first, "a secret that is not wrapped for each of the other clients")
        return first, {**wrapped, first: ""}

    def align(self) -> None:
        """Number the rows that two or more clients hold; ids travel as keyed digests only."""
        leader, wrapped = self._group_secret()
        asked = {c: m.AskDigests(self.salt, leader, wrapped[c]) for c in self.clients}
        replies = self._call_or_drop(m.DIGESTS, asked)
        if len(self.clients) == 1:
            return  # the others were left out
        found = {c: replies[c].digests for c in self.clients}
        for client, told in found.items():
            if len(told) != self.n_rows[client]:
                raise ClientError(client, f"{len(told)} digests of {self.n_rows[client]} rows")
        # The seed decides, not the salt, which must not change the model.
        requests = {}
        every = numbered(found, named_rng(self.seed, "alignment"))
        kept = without_few(every, self.min_rows)
        if any(kept[client][0].size < every[client][0].size for client in every):
            shown = ", ".join(f"{c!r} {rows.size}" for c, (rows, _) in every.items())
            warn(
                f"rows that fewer than min_rows = {self.min_rows} of a client are shared are not "
                f"aligned; each client has in common with others: {shown}"
            )
        for client, (rows, numbers) in kept.items():
            requests[client] = m.Align(rows.astype(np.int32))
            self.aligned[client] = numbers
        self.named_rows.clear()
        self._call_or_drop(m.ALIGN, requests)

    def share_label(self) -> None:
        """Have the label's owners seal it for the clients that lack it, who open it.

        A client that holds no row with an owner stays without it.
        """
        assert self.label is not None
        owners, variable = self.label_holders, self.schema[self.label]
        others = [c for c in self.clients if c not in owners]
        self.share_keys()
        requests = {}
        for client in others:
            pieces: list[m.LabelPiece] = []
            for owner in (each for each in owners if each in self.clients):
                both = np.intersect1d(self.aligned[owner], self.aligned[client])
                if both.size:
                    step = m.piece_step(m.LABEL_PIECE, len(pieces))
                    ask = m.AskLabel(self.choice(owner, both), self.keys[client], step)
                    sent = self._call_or_drop(m.SEND_LABEL, {owner: ask}, refusable=True)
                    made = [m.Piece(sealed.values, owner) for sealed in sent.values()]
                    pieces += [m.LabelPiece(self.choice(client, both), each) for each in made]
            if pieces:
                requests[client] = m.TakeLabel([variable.to_json()], tuple(pieces))
        self._sent_label = owners
        taken = self._call_or_drop(m.TAKE_LABEL, requests, refusable=True)
        for client, ready in taken.items():
            self.held[client] = (*self.held[client], self.label)
            self.label_counts[client] = ready.label_counts

    def choice(self, client: str, numbers: IntArray) -> Bytes:
        """Which of a client's aligned rows have these numbers, as it travels."""
        return pack_choice(np.isin(self.aligned[client], numbers))
