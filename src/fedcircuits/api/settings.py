"""The settings of a run of `federate`, in Python and in federation files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any, Literal, Self

from fedcircuits import learners
from fedcircuits.api.client_spec import CLASSIFIERS, ClientLearner
from fedcircuits.api.learn import DEFAULT_LEARNER
from fedcircuits.api.option_types import expected_of, least_of
from fedcircuits.errors import FederationError, LearningError, unknown_name
from fedcircuits.federation.agreement import Rule, options_of
from fedcircuits.federation.agreement.by_name import declared_options
from fedcircuits.federation.model.ensemble import OPTIONS
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.server.settings import ServerSettings
from fedcircuits.federation.wire.ids import check_secret
from fedcircuits.federation.wire.requests import ONE_OWNER
from fedcircuits.federation.wire.transport import Transport
from fedcircuits.schema import Kind

Placement = Literal["gathered", "remote"]
Trust = Literal["one owner"]
Operation = Literal["mixture", "average", "vote"]
Engine = str | Transport | Callable[..., Transport]
# Settings that have another name now, and what to write in their place.
RENAMED = {
    "share_label": "label_use='sent', which is the default (share_label=False: label_use='used')",
    "label_private": "label_use='used' (label_private=False: label_use='sent', the default)",
}
Learners = str | ClientLearner | Mapping[str, str | ClientLearner]


# What settings are, where another thing would fail far from here and in other words.
SHAPES: tuple[tuple[str, tuple[type[Any], ...], str], ...] = (
    ("id", (str, NoneType), "the name of one column"),
    ("label", (str, NoneType), "the name of one column"),
    ("kinds", (Mapping,), "a mapping {COLUMN: kind}"),
    ("engine_options", (Mapping,), "a mapping {OPTION: value}"),
    ("policies", (Policy, Mapping), "a policy, or a mapping {CLIENT: policy}"),
    ("missing_values", (list, tuple), "a list of values"),
    ("timeout", (int, float, NoneType), "a number of seconds > 0, or None for no limit"),
)


@dataclass(frozen=True, kw_only=True)
class RunSettings(ServerSettings):
    """All settings of one run of `federate`, checked when made.

    Attributes:
        id: column that aligns rows of different clients; never a variable.
        learner: for all clients, or one by client name.
        agreement: name of an agreement rule, a rule, or "auto".
        engine: "local" (in this process), "processes" (one for each client), "ray" (a cluster),
            "nvflare" (organisations), or an engine.
        engine_options: of the named engine, as its class documents them.
        placement: "gathered" brings the client models here, "remote" leaves them where they are.
        operation: "mixture" for a density of sums and products; "average" or "vote" for a
            classifier made of any client models (`FederatedEnsemble`).
        kinds: kinds of columns, where a guess would be wrong.
        drop: columns that no client learns or speaks of.
        missing_values: spellings of a missing value besides those pandas knows.
        id_secret: mixed into digests of ids; clients know it, the server does not.
        trust: "one owner" where all tables belong to one organisation, whose server may then see
            what rows can be reconstructed from (`em`, `joint` over columns); None where not.
        policies: what each client allows, by name, or one policy for all.
        options: of the named rule; `federate` takes them as keywords of their own.
    """

    id: str | None = None
    learner: Learners = DEFAULT_LEARNER
    agreement: str | Rule = "auto"
    engine: Engine = "local"
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    placement: Placement = "gathered"
    operation: Operation = "mixture"
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    drop: Sequence[str] = ()
    missing_values: Sequence[object] = ()
    id_secret: str = field(default="", repr=False)
    trust: Trust | None = None
    policies: Policy | Mapping[str, Policy] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, shapes, words in SHAPES:
            if not isinstance(value := getattr(self, what), shapes):
                raise FederationError(f"{what} is {words}, found {value!r}")
        if not isinstance(self.agreement, str) and not hasattr(self.agreement, "train"):
            raise FederationError(
                f"agreement is the name of a rule or a rule, found {self.agreement!r}"
            )
        if not isinstance(self.engine, str | Transport) and not callable(self.engine):
            raise FederationError(
                f"engine is the name of an engine, or one that runs, found {self.engine!r}"
            )
        super().__post_init__()
        if self.placement not in ("gathered", "remote"):
            raise FederationError(f"placement is gathered or remote, found {self.placement!r}")
        if self.operation not in ("mixture", "average", "vote"):
            raise FederationError(
                f"operation is mixture, average or vote, found {self.operation!r}"
            )
        if self.trust not in (None, ONE_OWNER):
            raise FederationError(f"trust is {ONE_OWNER!r} or None, found {self.trust!r}")
        check_secret(self.id_secret)
        for policy in self.policies.values() if isinstance(self.policies, Mapping) else ():
            if not isinstance(policy, Policy):
                raise FederationError(
                    f"policies holds a policy for each client, found {policy!r}: read a file with "
                    "fc.Policy.from_toml(path); in a federation file no policies are named, each "
                    "silo names its own"
                )
        if isinstance(self.drop, str) or not all(isinstance(name, str) for name in self.drop):
            raise FederationError(f"drop is a list of names of columns, found {self.drop!r}")
        for what in ("id", "label"):
            if getattr(self, what) in self.drop:
                raise FederationError(f"drop names {getattr(self, what)!r}, which is the {what}")
        self._check_options()
        for name in self.learner.values() if isinstance(self.learner, Mapping) else [self.learner]:
            known = {**learners.BY_NAME, **CLASSIFIERS}
            if isinstance(name, str) and name not in known:
                raise LearningError(unknown_name("learner", name, sorted(known)))

    def _check_options(self) -> None:
        """An option that the rule does not have may be a misspelt setting: suggest both."""
        if self.operation != "mixture":
            known = list(OPTIONS)
        elif isinstance(self.agreement, str):
            known = options_of(self.agreement)
        elif self.options:
            raise FederationError(
                f"the options {', '.join(self.options)} belong to the rule that was passed: "
                f"agreement={type(self.agreement).__name__}(...)"
            )
        for name in self.options:
            if name not in known:
                settings = [entry.name for entry in fields(self)]
                raise FederationError(unknown_name("option", name, [*known, *settings]))
        if self.operation == "mixture" and isinstance(self.agreement, str):
            declared = declared_options(self.agreement)
            for name, value in self.options.items():
                option, kind = declared[name]
                if (expected := expected_of(value, kind, least_of(option))) is not None:
                    raise FederationError(
                        f"option {name!r} of the rule {self.agreement!r} is {expected}, "
                        f"found {value!r}"
                    )

    @classmethod
    def from_keywords(cls, **given: Any) -> Self:
        """Return settings; keywords that are none of them are options of the agreement rule.

        None stands for the default of a setting that is a mapping.
        """
        for name, instead in RENAMED.items():
            if name in given:
                raise FederationError(f"{name} is now {instead}")
        known = {entry.name for entry in fields(cls)} - {"options"}
        own = {name: value for name, value in given.items() if name in known}
        own = {
            name: {} if value is None and name in ("kinds", "engine_options", "policies") else value
            for name, value in own.items()
        }
        return cls(**own, options={k: v for k, v in given.items() if k not in known})

    def learner_of(self, client: str) -> str | ClientLearner:
        """Return the learner of a client."""
        if not isinstance(self.learner, Mapping):
            return self.learner
        if client not in self.learner:
            raise FederationError(f"no learner is named for client {client!r}")
        return self.learner[client]

    def policy_of(self, client: str) -> Policy | None:
        """Return the policy of a client, None where it has none."""
        return self.policies if isinstance(self.policies, Policy) else self.policies.get(client)

    def kinds_with_label(self) -> dict[str, Kind]:
        """Return the kinds of columns, the label categorical unless it is given another kind."""
        label: dict[str, Kind] = {} if self.label is None else {self.label: "categorical"}
        return {**label, **self.kinds}
