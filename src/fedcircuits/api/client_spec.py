"""A client from what describes it: in this process, in one of its own, or on another machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

from fedcircuits import encoding, learners
from fedcircuits.api.learn import make_learner
from fedcircuits.api.load import decode
from fedcircuits.density import Learner, LearnsClassifier
from fedcircuits.errors import FederationError
from fedcircuits.federation.client.classifiers import Classifier, classifier_from_record
from fedcircuits.federation.client.client import Client, MakeLearner
from fedcircuits.federation.client.spec import ClientSpec

# What a process of its own calls to make a client of a client spec.
CLIENT_FROM_SPEC = "fedcircuits.api.client_spec:client_from_spec"
# Classifiers are no learners of densities; they serve federations that average or vote.
CLASSIFIERS = {"tree": "TreeClassifier", "forest": "ForestClassifier"}
_JSON = (bool, int, float, str, type(None))


def client_from_spec(data: bytes) -> Client:
    """The client in a client spec."""
    spec = ClientSpec.from_bytes(data)
    return client_of(spec, learner_maker(spec.learner, spec.options))


def client_of(spec: ClientSpec, make_learner: MakeLearner) -> Client:
    """A client with a learner that need not be one that travels."""
    return Client(
        spec.name,
        spec.frame(),
        make_learner,
        id=spec.id,
        kinds=spec.kinds,
        missing_values=spec.missing_values,
        id_secret=spec.id_secret,
    )


def classifier_of(data: bytes, label: str) -> Classifier:
    """The classifier in some bytes."""
    record = encoding.unpack(data, name="the classifier")
    return classifier_from_record(record, label, decode)


def learner_maker(learner: Any, options: Mapping[str, Any] | None = None) -> MakeLearner:
    """The learner of a client, made anew for each job with or without the label."""
    if isinstance(learner, str):
        name = learner
        if name in CLASSIFIERS:
            from fedcircuits.learners import trees

            made = getattr(trees, CLASSIFIERS[name])(**(options or {}))
            return lambda _: made
        make_learner(name, options or {}, {})  # an unknown name is told now
        return lambda label: make_learner(name, options or {}, {"label": label})
    if is_dataclass(learner) and "label" in {field.name for field in fields(learner)}:
        chosen: Any = learner
        return lambda label: replace(chosen, label=label)
    if not isinstance(learner, (Learner, LearnsClassifier)):
        raise FederationError(f"a learner has fit(table, rng), found {type(learner).__name__}")
    return lambda _: learner


def learner_record(learner: Any, client: str) -> tuple[str, dict[str, Any]]:
    """A learner as name and options, so that it can travel."""
    if isinstance(learner, str):
        learner_maker(learner)
        return learner, {}
    kind = type(learner).__name__
    names = {
        **{v: k for k, v in learners.BY_NAME.items()},
        **{v: k for k, v in CLASSIFIERS.items()},
    }
    if kind in names and type(learner).__module__.startswith("fedcircuits.learners."):
        options = {
            field.name: getattr(learner, field.name)
            for field in fields(learner)
            if field.name != "label" and getattr(learner, field.name) != _default(field)
        }
        if all(isinstance(value, _JSON) for value in options.values()):
            return names[kind], options
    raise FederationError(
        f"client {client!r}: a learner of type {kind} cannot travel to a process of its own (only "
        f"{', '.join(sorted(names.values()))} with plain options can); use engine='local'"
    )


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default
