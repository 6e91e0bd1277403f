"""fedcircuits: learn one tractable joint distribution from tables that stay where they are.

`learn` fits one table, `federate` several clients' tables, `load` reads a saved model. Names are
imported when first used, so that `import fedcircuits` itself is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcircuits import engines, errors, learners
    from fedcircuits.api import datasets, partition
    from fedcircuits.api.estimators import (
        CircuitClassifier,
        CircuitDensity,
        CircuitRegressor,
        FederatedClassifier,
    )
    from fedcircuits.api.federate import federate
    from fedcircuits.api.learn import learn
    from fedcircuits.api.saved import load
    from fedcircuits.api.settings import RunSettings
    from fedcircuits.circuits import Circuit, build
    from fedcircuits.density import Density, Learner
    from fedcircuits.density.fit_report import FitReport
    from fedcircuits.density.pictures import show
    from fedcircuits.engines import LocalEngine, ProcessEngine, Transport
    from fedcircuits.errors import FedcircuitsError, FedcircuitsWarning
    from fedcircuits.federation.agreement import (
        Anchors,
        Em,
        Independent,
        Joint,
        Latent,
        ProductOfClasses,
        Rule,
    )
    from fedcircuits.federation.model.ensemble import FederatedEnsemble
    from fedcircuits.federation.model.federated_circuit import FederatedCircuit
    from fedcircuits.federation.model.remote_circuit import RemoteCircuit
    from fedcircuits.federation.policy.policy import Policy
    from fedcircuits.federation.wire.ledger import Ledger
    from fedcircuits.schema import MISSING, Schema, Table, Variable
    from fedcircuits.schema.events import above, below, between, not_, one_of

__version__ = "0.1.0"

# What each module defines, and the modules that have a name of their own.
_NAMES = {
    "api.estimators": (
        "CircuitClassifier", "CircuitDensity", "CircuitRegressor", "FederatedClassifier",
    ),
    "api.federate": ("federate",),
    "api.learn": ("learn",),
    "api.saved": ("load",),
    "api.settings": ("RunSettings",),
    "circuits": ("Circuit",),
    "density": ("Density", "Learner"),
    "density.fit_report": ("FitReport",),
    "density.pictures": ("show",),
    "engines": ("LocalEngine", "ProcessEngine", "Transport"),
    "errors": ("FedcircuitsError", "FedcircuitsWarning"),
    "federation.agreement": (
        "Anchors", "Em", "Independent", "Joint", "Latent", "ProductOfClasses", "Rule",
    ),
    "federation.model.federated_circuit": ("FederatedCircuit",),
    "federation.model.ensemble": ("FederatedEnsemble",),
    "federation.model.remote_circuit": ("RemoteCircuit",),
    "federation.policy.policy": ("Policy",),
    "federation.wire.ledger": ("Ledger",),
    "schema": ("MISSING", "Schema", "Table", "Variable"),
    "schema.events": ("above", "below", "between", "not_", "one_of"),
}  # fmt: skip
_MODULES = {
    "build": "circuits.build",
    "datasets": "api.datasets",
    "engines": "engines",
    "errors": "errors",
    "learners": "learners",
    "partition": "api.partition",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "MISSING",
    "Anchors",
    "Circuit",
    "CircuitClassifier",
    "CircuitDensity",
    "CircuitRegressor",
    "Density",
    "Em",
    "FedcircuitsError",
    "FedcircuitsWarning",
    "FederatedCircuit",
    "FederatedClassifier",
    "FederatedEnsemble",
    "FitReport",
    "Independent",
    "Joint",
    "Latent",
    "Learner",
    "Ledger",
    "LocalEngine",
    "Policy",
    "ProcessEngine",
    "ProductOfClasses",
    "RemoteCircuit",
    "Rule",
    "RunSettings",
    "Schema",
    "Table",
    "Transport",
    "Variable",
    "__version__",
    "above",
    "below",
    "between",
    "build",
    "datasets",
    "engines",
    "errors",
    "federate",
    "learn",
    "learners",
    "load",
    "not_",
    "one_of",
    "partition",
    "show",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(f"fedcircuits.{_MODULES[name]}")
    elif name in _HOME:
        value = getattr(import_module(f"fedcircuits.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module 'fedcircuits' has no attribute {name!r}")
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
