"""`fc.federate`: learn one model from tables split by rows, by columns, or by both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

from fedcircuits.api.client_spec import ClientLearner, learner_in_words
from fedcircuits.api.learn import DEFAULT_LEARNER
from fedcircuits.api.load import classifier_from_bytes, from_message
from fedcircuits.api.open_engine import Clients, open_engine
from fedcircuits.api.progress import Progress, shown
from fedcircuits.api.settings import Engine, Learners, Placement, RunSettings, Trust
from fedcircuits.api.watched import Stages, Watched
from fedcircuits.errors import ClientError, FederationError, unknown_name, warn
from fedcircuits.federation.agreement import Rule, make_rule, refused_ones, with_label_use
from fedcircuits.federation.agreement.newcomer import fit_like, together
from fedcircuits.federation.agreement.planning import check_allowed, planner
from fedcircuits.federation.model.ensemble import FederatedEnsemble, train_ensemble
from fedcircuits.federation.model.federated_circuit import FederatedCircuit
from fedcircuits.federation.model.headed_federation import HeadedFederation
from fedcircuits.federation.model.remote_circuit import RemoteCircuit
from fedcircuits.federation.policy.policy import QUERIES, Policy
from fedcircuits.federation.server.fitted_parts import FittedParts, LostClientError, TakeModels
from fedcircuits.federation.server.remote import RemoteDensity
from fedcircuits.federation.server.server import Planner, Server
from fedcircuits.federation.server.settings import LabelUse
from fedcircuits.federation.server.why import Why
from fedcircuits.federation.wire.ledger import Ledger
from fedcircuits.federation.wire.requests import LABEL_SENT
from fedcircuits.federation.wire.transport import RefusedError, Transport
from fedcircuits.schema import Data, Kind, Schema


@overload
def federate(
    clients: Clients | None = None,
    id: str | None = None,
    label: str | None = None,
    *,
    operation: Literal["average", "vote"],
    **settings: Any,
) -> FederatedEnsemble: ...


@overload
def federate(
    clients: Clients | None = None,
    id: str | None = None,
    label: str | None = None,
    *,
    label_use: LabelUse = "sent",
    learner: Learners = DEFAULT_LEARNER,
    agreement: str | Rule = "auto",
    engine: Engine = "local",
    engine_options: Mapping[str, Any] | None = None,
    placement: Placement = "gathered",
    operation: Literal["mixture"] = "mixture",
    kinds: Mapping[str, Kind] | None = None,
    drop: Sequence[str] = (),
    missing_values: Sequence[object] = (),
    schema: Schema | None = None,
    seed: int = 0,
    min_rows: int = 5,
    timeout: float | None = None,
    allow_missing: bool = False,
    id_secret: str = "",
    trust: Trust | None = None,
    policies: Policy | Mapping[str, Policy] | None = None,
    progress: Progress | bool | None = None,
    **options: Any,
) -> FederatedCircuit: ...


def federate(
    clients: Clients | None = None,
    id: str | None = None,
    label: str | None = None,
    *,
    progress: Progress | bool | None = None,
    **settings: Any,
) -> FederatedCircuit | FederatedEnsemble:
    """Learn one model from tables that stay where they are.

    Args:
        clients: name to rows (DataFrame, CSV or Parquet, image array, with "ray" also a reference
            to an object of the cluster), or a list of such tables, which are named by their files
            or client-1, client-2, ...; None where the engine runs already and has its members.
        id: column that aligns rows of different clients; never a variable.
        label: column to be predicted well; held by all clients or by some.
        progress: True for a bar on standard error (terminal or notebook), or a function that is
            called with the fraction done and a few words.
        **settings: the other settings, which `RunSettings` documents (learner, agreement, engine,
            placement, operation, seed, ...), and options of the agreement rule.

    Returns:
        A `FederatedCircuit`, or a `FederatedEnsemble` for operation "average" and "vote".
    """
    chosen = RunSettings.from_keywords(id=id, label=label, **settings)
    with shown(progress) as report:
        return _federate(chosen, clients, None if report is None else Stages(report))


def _federate(
    chosen: RunSettings, clients: Clients | None, stages: Stages | None
) -> FederatedCircuit | FederatedEnsemble:
    """Open the engine, train, and let the clients go where the models were gathered."""
    transport = open_engine(chosen, clients, stages)
    run = FederationRun(chosen, transport)
    is_ours = transport is not chosen.engine  # one that was passed in is its maker's to close
    watched = transport if stages is None else Watched(transport, stages)
    try:
        made = run.train(watched)
        if isinstance(watched, Watched):
            watched.is_quiet = True
    except BaseException:
        if is_ours:
            transport.close()
        raise
    if is_ours and chosen.placement == "gathered" and not _is_remote(made):
        transport.close()
        return replace(made, run=replace(run, transport=None))
    return made


# Rules that do nothing with a label that others hold; `em` still reveals its own to the server.
LABEL_STAYS = ("independent", "em")


@dataclass(frozen=True)
class FederationRun:
    """One run: its settings, and the engine for as long as clients are held.

    Attributes:
        settings: of the run.
        transport: the engine; None once the clients were let go.
    """

    settings: RunSettings
    transport: Transport | None = field(default=None, repr=False)

    def train(self, transport: Transport) -> FederatedCircuit | FederatedEnsemble:
        """Train with the members of an engine and return the model."""
        settings = self.settings
        server = Server.start(transport, settings, self._planner())
        self._check_kinds(server)
        self._match_rows(server)
        if settings.operation != "mixture":
            made = train_ensemble(
                server,
                settings.operation,
                settings.placement == "remote",
                classifier_from_bytes,
                **settings.options,
            )
            server.warn_of_lost()
            return replace(made, run=self, id=settings.id, secret=settings.id_secret)
        lost: dict[str, str] = {}
        while True:
            try:
                rule, fitted, why = self._train_rule(server)
                break
            except LostClientError as error:
                lost[error.client] = str(error)
                server.lose(error.client, str(error))
            except ClientError as error:  # before or after it had fitted anything
                if not self.settings.allow_missing or error.client not in server.clients:
                    raise
                server.lose(error.client, str(error))
            except FederationError as error:  # the rule does not do without those who are lost
                if not server.dropped:
                    raise
                why_not = "; ".join(server.reasons.values())
                raise FederationError(f"{why_not}. Without it: {error}") from None
        fed = self._glue(rule, fitted, server, why=why)
        if lost and not self.settings.allow_missing:
            raise FederationError(
                f"{'; '.join(lost.values())}. The model of the others is in this error's `rest`; "
                "allow_missing=True goes on without those variables",
                rest=fed,
            )
        if server.label is not None and server.label not in fed.schema:
            raise FederationError(
                f"the label {server.label!r} is not in the model that the rule {rule.name!r} made: "
                "pass label_use='sent' and id=, or another agreement="
            )
        server.warn_of_lost()
        return fed

    def _check_kinds(self, server: Server) -> None:
        """Refuse kinds of columns that no client has; clients left out may have had them."""
        known = [*server.schema.names, *([] if self.settings.id is None else [self.settings.id])]
        for name, kind in self.settings.kinds.items():
            if name not in known and not server.dropped:
                raise FederationError(f"kinds: {unknown_name('column', name, known)}")
            if name in server.schema and server.schema[name].kind != kind:
                raise FederationError(
                    f"the column {name!r} is {server.schema[name].kind}, and kinds= says {kind}: a "
                    "client with a policy names kinds itself, in [kinds] of the policy"
                )

    def _match_rows(self, server: Server) -> None:
        """Align rows by id and share the label where asked; nothing where only rows are split."""
        settings = self.settings
        if server.setting == "horizontal":
            return
        if settings.id is not None:
            server.align()
            some = server.label_holders and not server.label_is_shared
            if server.label_use == "sent" and some and self._rule_name != "independent":
                self._send_label(server)
        elif server.setting == "vertical":
            raise FederationError(
                f"the clients {', '.join(map(repr, server.clients))} share no column, so rows must "
                "be matched by an id: pass id="
            )

    @property
    def _rule_name(self) -> str:
        agreement = self.settings.agreement
        return agreement if isinstance(agreement, str) else agreement.name

    def _send_label(self, server: Server) -> None:
        """Send the label to the clients that lack it; "used" where a policy refuses that."""
        try:
            for client, why in server.struck.get(LABEL_SENT, {}).items():
                raise RefusedError(client, why)
            if self._rule_name not in LABEL_STAYS:
                server.share_label()
        except RefusedError as error:
            if self._rule_name == "product" or self.settings.operation != "mixture":
                raise  # nothing can be done without it
            server.label_use = "used"
            warn(f"the label {server.label!r} is used and not sent (label_use='used'): {error}")

    def _planner(self, rule: Rule | None = None) -> Planner:
        """What makes the plan that clients consent to; for a given rule, or as the settings say."""
        settings = self.settings
        return planner(
            rule or settings.agreement,
            settings.options,
            learner=learner_in_words(settings.learner),
            id=settings.id,
            label_sent=settings.label_use == "sent",
            placement=settings.placement,
            trust=settings.trust,
            questions=QUERIES,
            operation=settings.operation,
        )

    def _take(self, server: Server) -> TakeModels:
        """How models are taken: as bytes, or as references to where they stay."""
        return TakeModels(
            self.settings.placement == "remote",
            from_message,
            lambda client, name, schema, size: RemoteDensity(server, client, name, schema, size),
        )

    def _train_rule(self, server: Server) -> tuple[Rule, FittedParts, Why]:
        take, agreement = self._take(server), self.settings.agreement
        if not isinstance(agreement, str):
            reason = "given by the caller"
            rule = with_label_use(agreement, server)
            why = Why.asked_for(rule.name, rule.reveals, reason)
            check_allowed(server, rule)
            return rule, rule.train(server, take), why
        refused: dict[Rule, str] = {}
        while True:
            rule, why = make_rule(agreement, server, take, self.settings.options, refused)
            if agreement != "auto":
                check_allowed(server, rule)
            try:
                fitted = rule.train(server, take)
                break
            except RefusedError as error:
                if agreement != "auto":
                    raise
                refused[rule] = str(error)
        if refused:
            left_out = refused_ones(refused)
            reasons = "".join(
                f"\n  - {each.rule}: {each.outcome.removeprefix('refused: ')}" for each in left_out
            )
            warn(f"auto took the rule {rule.name!r}; policies of clients refuse:{reasons}")
        return rule, fitted, why.with_refused(refused_ones(refused))

    def _glue(
        self, rule: Rule, fitted: FittedParts, server: Server, **facts: Any
    ) -> FederatedCircuit:
        given = {
            "setting": server.setting,
            "ledger": server.ledger,
            "dropped": server.dropped,
            "n_rows": server.n_rows,
            "id": self.settings.id,
            "run": self,
            **facts,
        }
        if self.settings.placement == "remote":
            return RemoteCircuit.glue(rule, fitted, secret=self.settings.id_secret, **given)
        kind = HeadedFederation if fitted.heads else FederatedCircuit
        return kind.glue(rule, fitted, **given)

    # --- later ------------------------------------------------------------------------------------

    def join(
        self, fed: FederatedCircuit, name: str, data: Data, learner: str | ClientLearner | None
    ) -> FederatedCircuit:
        """Return a horizontal federation with one client more, which alone trains."""
        assert fed.fitted is not None
        assert fed.rule is not None
        mine = self.settings.learner if learner is None else learner
        if isinstance(mine, Mapping):
            raise FederationError(f"client {name!r}: say which learner it uses (learner=)")
        engine = self.settings.engine
        alone = replace(
            self.settings,
            learner=mine,
            engine="local" if isinstance(engine, Transport) else engine,
            schema=fed.fitted.schema,
        )
        transport = open_engine(alone, {name: data})
        try:
            server = Server.start(transport, alone, self._planner(fed.rule))
            if set(server.schema.names) != set(fed.fitted.schema.names):
                missing = set(fed.fitted.schema.names) - set(server.schema.names)
                lacks = ", ".join(map(repr, sorted(missing)[:5]))
                raise ClientError(name, f"its table lacks columns of the federation: {lacks}")
            found = fit_like(fed.fitted, name, server, self._take(server))
        except BaseException:
            transport.close()
            raise
        if self.settings.placement != "remote":
            transport.close()
        return self._glue(
            fed.rule,
            together(fed.fitted, found),
            server,
            ledger=Ledger([*fed.ledger.entries, *server.ledger.entries]),
            dropped={k: v for k, v in fed.dropped.items() if k != name},
            n_rows={**fed.n_rows, **server.n_rows},
            why=fed.why,
        )

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
        """Release the clients; an engine that was passed in stays open for its owner."""
        if self.transport is not None and self.transport is not self.settings.engine:
            self.transport.close()


@dataclass(frozen=True)
class _Some:
    """An engine restricted to some of its clients."""

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


def _is_remote(made: FederatedCircuit | FederatedEnsemble) -> bool:
    """Whether models stayed at clients though they were to be gathered: they cannot be encoded."""
    return isinstance(made, FederatedEnsemble) and made.is_remote
