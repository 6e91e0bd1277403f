"""`fc.federate`: one call for rows split, columns split, or both."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedcircuits.api.client_spec import (
    CLIENT_FROM_SPEC,
    classifier_of,
    client_of,
    learner_maker,
    learner_record,
)
from fedcircuits.api.learn import DEFAULT_LEARNER
from fedcircuits.api.load import from_bytes
from fedcircuits.api.tables import as_table
from fedcircuits.density import Learner
from fedcircuits.engines import LocalEngine, engine_named
from fedcircuits.errors import ClientError, FederationError
from fedcircuits.federation.agreement import Rule, check_name, make_rule
from fedcircuits.federation.client.spec import ClientSpec
from fedcircuits.federation.model.circuit import FederatedCircuit
from fedcircuits.federation.model.ensemble import FederatedEnsemble, train_ensemble
from fedcircuits.federation.model.remote_circuit import RemoteCircuit
from fedcircuits.federation.server.fitted_parts import FittedParts, Job, LostClientError, fit
from fedcircuits.federation.server.remote import RemoteDensity
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.settings import ServerSettings
from fedcircuits.federation.wire.ledger import Ledger
from fedcircuits.federation.wire.transport import Transport
from fedcircuits.schema import Data, Kind, Schema

Placement = Literal["gathered", "remote"]
Engine = str | Transport | Callable[..., Transport]
Learners = str | Learner | Mapping[str, str | Learner]


def federate(
    clients: Mapping[str, Data] | None = None,
    id: str | None = None,
    label: str | None = None,
    *,
    share_label: bool = False,
    learner: Any = DEFAULT_LEARNER,
    agreement: str | Rule = "auto",
    engine: Engine = "local",
    engine_options: Mapping[str, Any] | None = None,
    placement: Placement = "gathered",
    operation: Literal["mixture", "average", "vote"] = "mixture",
    kinds: Mapping[str, Kind] | None = None,
    missing_values: Sequence[object] = (),
    schema: Schema | None = None,
    seed: int = 0,
    min_rows: int = 5,
    timeout: float | None = None,
    allow_missing: bool = False,
    id_secret: str = "",
    **options: Any,
) -> Any:
    """Learn one model from tables that stay where they are.

    Args:
        clients: name to rows (DataFrame, CSV or Parquet, image array, with "ray" also a reference
            to an object of the cluster); None where the engine runs already and has its members.
        id: column that aligns rows of different clients; never a variable.
        label: column to be predicted well; held by all clients or by some.
        share_label: send the owner's label to the other clients, over the ids.
        learner: for all clients, or one by client name.
        agreement: rule, or "auto".
        engine: "local" (in this process), "processes" (one for each client), "ray" (a cluster),
            "nvflare" (organisations), or an engine.
        engine_options: of the named engine, as its class documents them.
        placement: "gathered" brings the client models here, "remote" leaves them where they are.
        operation: "mixture" for a density of sums and products; "average" or "vote" for a
            classifier made of any client models (`FederatedEnsemble`).
        kinds: kinds of columns, where a guess would be wrong.
        missing_values: spellings of a missing value besides those pandas knows.
        schema: agreed in an earlier run; by default it is agreed on now.
        seed: the same seed gives the same model.
        min_rows: a sketch of a column says nothing that fewer rows stand behind.
        timeout: seconds a client has for each message; no limit by default.
        allow_missing: go on without the variables of a client that fails and alone holds them.
        id_secret: mixed into digests of ids; clients know it, the server does not.
        **options: of the named rule.

    Returns:
        A `FederatedCircuit`, or a `FederatedEnsemble` for "average" and "vote".
    """
    run = FederationRun(
        id, label, share_label, learner, agreement, engine, dict(engine_options or {}),
        placement, operation,
        dict(kinds or {}), tuple(missing_values), schema, seed, min_rows, timeout, allow_missing,
        id_secret, options,
    )  # fmt: skip
    return run.start(clients)


@dataclass(frozen=True)
class FederationRun:
    """The settings of a run, and its server while clients are held. See `federate`."""

    id: str | None
    label: str | None
    share_label: bool
    learner: Any
    agreement: str | Rule
    engine: Engine
    engine_options: Mapping[str, Any]
    placement: Placement
    operation: str
    kinds: dict[str, Any]
    missing_values: tuple[object, ...]
    schema: Schema | None
    seed: int
    min_rows: int
    timeout: float | None
    allow_missing: bool
    id_secret: str
    options: Mapping[str, Any]
    transport: Transport | None = field(default=None, repr=False)

    def start(self, clients: Mapping[str, Data] | None) -> FederatedCircuit | FederatedEnsemble:
        """Start clients, train, and let go of them unless models stay there."""
        if self.placement not in ("gathered", "remote"):
            raise FederationError(f"placement is gathered or remote, found {self.placement!r}")
        if isinstance(self.agreement, str):
            check_name(self.agreement)
        transport = self._transport(clients)
        run = replace(self, transport=transport)
        try:
            made = run.train(transport)
        except BaseException:
            if transport is not self.engine:
                transport.close()
            raise
        stays = self.placement == "remote" or getattr(made, "is_remote", False)
        if not stays and transport is not self.engine:
            transport.close()
            made = replace(made, run=replace(run, transport=None))
        return made

    def _transport(self, clients: Mapping[str, Data] | None) -> Transport:
        engine = engine_named(self.engine) if isinstance(self.engine, str) else self.engine
        if isinstance(engine, Transport) and not isinstance(engine, type):
            if clients is not None:
                raise FederationError("an engine that runs has its clients: pass clients=None")
            return engine
        if not clients:
            raise FederationError("federate needs at least one client")
        specs = {str(name): self._spec(str(name), data, engine) for name, data in clients.items()}
        if engine is LocalEngine:
            _check_options(engine, self.engine_options)
            members = {
                name: client_of(spec, learner_maker(self._learner_of(name)))
                for name, spec in specs.items()
            }
            return LocalEngine(members)
        encoded = {}
        for name, spec in specs.items():
            kind, learner_options = learner_record(self._learner_of(name), name)
            encoded[name] = replace(spec, learner=kind, options=learner_options).to_bytes()
        options = dict(self.engine_options)
        there = {str(name): data for name, data in clients.items() if _is_there(engine, data)}
        if there:
            options["rows"] = there
        _check_options(engine, options)
        made: Transport = engine(encoded, CLIENT_FROM_SPEC, **options)
        return made

    def _spec(self, name: str, data: Data, engine: Any) -> ClientSpec:
        kinds = dict(self.kinds)
        if self.label is not None:
            kinds.setdefault(self.label, "categorical")
        if _is_there(engine, data):
            table: pd.DataFrame | Path = pd.DataFrame()  # the engine itself hands it to the client
        elif hasattr(engine, "is_there") and isinstance(data, (str, os.PathLike)):
            table = Path(data)  # a file of the client's machine, which need not be this one
        else:
            table = as_table(name, data)
        return ClientSpec(name, table, "", {}, self.id, kinds, self.missing_values, self.id_secret)

    def _learner_of(self, client: str) -> Any:
        if not isinstance(self.learner, Mapping):
            return self.learner
        if client not in self.learner:
            raise FederationError(f"no learner is named for client {client!r}")
        return self.learner[client]

    def _server(self, transport: Transport, schema: Schema | None) -> Server:
        settings = ServerSettings(
            label=self.label,
            seed=self.seed,
            min_rows=self.min_rows,
            timeout=self.timeout,
            schema=schema,
            allow_missing=self.allow_missing,
        )
        return Server.start(transport, settings)

    def train(self, transport: Transport) -> FederatedCircuit | FederatedEnsemble:
        """One run with the members of a transport."""
        server = self._server(transport, self.schema)
        self._match_rows(server)
        if self.operation != "mixture":
            remote = self.placement == "remote"
            made = train_ensemble(server, self.operation, remote, classifier_of, **self.options)
            return replace(made, run=self, id=self.id, secret=self.id_secret)
        lost: dict[str, str] = {}
        while True:
            try:
                rule, fitted = self._train_rule(server)
                break
            except LostClientError as error:
                lost[error.client] = str(error)
                server.lose(error.client, str(error))
            except ClientError as error:  # before or after it had fitted anything
                if not self.allow_missing or error.client not in server.clients:
                    raise
                server.lose(error.client, str(error))
        fed = self._glue(rule, fitted, server)
        if lost and not self.allow_missing:
            raise FederationError(
                f"{'; '.join(lost.values())}. The model of the others is in this error's `rest`; "
                "allow_missing=True goes on without those variables",
                rest=fed,
            )
        return fed

    def _match_rows(self, server: Server) -> None:
        if server.setting == "horizontal":
            return
        if self.id is not None:
            server.align()
            if self.share_label and self.label is not None and not server.label_is_shared:
                server.share_label()
        elif server.setting == "vertical":
            raise FederationError(
                f"the clients {', '.join(map(repr, server.clients))} share no column, so rows must "
                "be matched by an id: pass id="
            )

    def _take(self, server: Server) -> dict[str, Any]:
        """How models are taken: as bytes, or as references to where they stay."""
        return {
            "keep": self.placement == "remote",
            "decode": from_bytes,
            "remote": lambda client, key, schema, size: RemoteDensity(
                server, client, key, schema, size
            ),
        }

    def _train_rule(self, server: Server) -> tuple[Rule, FittedParts]:
        take = self._take(server)
        if not isinstance(self.agreement, str):
            return self.agreement, self.agreement.train(server, take)
        rule, scores = make_rule(self.agreement, server, take, self.options)
        return rule, replace(rule.train(server, take), scores=scores)

    def _glue(
        self, rule: Rule, fitted: FittedParts, server: Server, **facts: Any
    ) -> FederatedCircuit:
        told = {
            "setting": server.setting,
            "ledger": server.ledger,
            "dropped": server.dropped,
            "n_rows": server.n_rows,
            "id": self.id,
            "run": self,
            **facts,
        }
        if self.placement == "remote":
            return RemoteCircuit.glue(rule, fitted, secret=self.id_secret, **told)
        return FederatedCircuit.glue(rule, fitted, **told)

    # --- later ------------------------------------------------------------------------------------

    def join(self, fed: FederatedCircuit, name: str, data: Any, learner: Any) -> FederatedCircuit:
        """Let a client join a horizontal federation: it alone trains."""
        assert fed.fitted is not None
        assert fed.rule is not None
        engine = self.engine if not isinstance(self.engine, Transport) else "local"
        mine = self.learner if learner is None else learner
        if isinstance(mine, Mapping):
            raise FederationError(f"client {name!r}: say which learner it uses (learner=)")
        alone = replace(self, learner=mine, engine=engine, agreement=fed.rule, transport=None)
        transport = alone._transport({name: data})
        try:
            server = alone._server(transport, fed.fitted.schema)
            if set(server.schema.names) != set(fed.fitted.schema.names):
                missing = set(fed.fitted.schema.names) - set(server.schema.names)
                raise ClientError(name, f"it lacks {', '.join(map(repr, sorted(missing)[:5]))}")
            found = alone._fit_like(fed.fitted, name, server)
        except BaseException:
            transport.close()
            raise
        if self.placement != "remote":
            transport.close()
        return self._glue(
            fed.rule,
            _together(fed.fitted, found),
            server,
            ledger=Ledger([*fed.ledger.entries, *server.ledger.entries]),
            dropped={k: v for k, v in fed.dropped.items() if k != name},
            n_rows={**fed.n_rows, **server.n_rows},
        )

    def _fit_like(self, others: FittedParts, name: str, server: Server) -> FittedParts:
        """Have the newcomer fit what the others have fitted: every job is on all columns."""
        jobs = {
            job: Job(name, job, server.schema.names, per_label=code >= 0, mixed=code >= 0)
            for _, job, code in others.models
        }
        if any(not job.startswith("S") for job in jobs):
            raise FederationError("a client that was trained alone is clustered: train again")
        tables = {}
        if "label" in others.tables:
            tables["label"] = np.asarray(server.label_counts[name])
        found = FittedParts(server.schema, server.label, tables=tables)
        return fit(server, list(jobs.values()), self._take(server), found)

    def retrain(self, clients: list[str]) -> FederatedCircuit:
        """Train again with some of the clients, schema and grids agreed anew."""
        if self.transport is None:
            raise FederationError(
                "the clients were let go after training (placement='gathered'): call federate again"
            )
        made = self.train(_Some(self.transport, clients))
        assert isinstance(made, FederatedCircuit)
        return made

    def close(self) -> None:
        """Let go of the clients; an engine that was passed in is its maker's to close."""
        if self.transport is not None and self.transport is not self.engine:
            self.transport.close()


def _is_there(engine: Any, data: Any) -> bool:
    """Whether rows lie where the clients of an engine run, and only the engine can reach them."""
    return hasattr(engine, "is_there") and bool(engine.is_there(data))


def _check_options(engine: Any, options: Mapping[str, Any]) -> None:
    taken = list(inspect.signature(engine).parameters)[2:]  # after specs and make
    for name in options:
        if name not in taken:
            raise FederationError(
                f"the engine has no option {name!r}; it has {', '.join(taken) or 'none'}"
            )


@dataclass(frozen=True)
class _Some:
    """Some members of an engine."""

    whole: Transport
    chosen: list[str]

    def members(self) -> list[str]:
        return sorted(self.chosen)

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        return self.whole.call(verb, payloads, timeout)

    def close(self) -> None:
        self.whole.close()


def _together(a: FittedParts, b: FittedParts) -> FittedParts:
    """FittedParts of disjoint clients whose rows add up."""
    tables = {k: np.asarray(t + b.tables[k]) for k, t in a.tables.items() if k in b.tables}
    return replace(
        a,
        models={**a.models, **b.models},
        rows={**a.rows, **b.rows},
        tables=tables,
        seconds={**a.seconds, **b.seconds},
        reports={**a.reports, **b.reports},
        calibration=None,
    )
