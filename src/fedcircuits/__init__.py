"""fedcircuits: learn one tractable joint distribution from tables that stay where they are."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedcircuits.api.learn import learn
from fedcircuits.api.load import load
from fedcircuits.circuits import Circuit, build
from fedcircuits.density import Density, Learner
from fedcircuits.errors import FedcircuitsError, FedcircuitsWarning
from fedcircuits.schema import MISSING, Schema, Table, Variable
from fedcircuits.schema.events import above, below, between, not_, one_of

if TYPE_CHECKING:
    from fedcircuits import learners
    from fedcircuits.api import partition
    from fedcircuits.api.estimators import CircuitClassifier, CircuitDensity
    from fedcircuits.api.federate import federate

__version__ = "0.1.0"

# What needs scikit-learn is imported when it is first asked for: it takes half a second.
_LATER = {
    "CircuitClassifier": "fedcircuits.api.estimators",
    "CircuitDensity": "fedcircuits.api.estimators",
    "federate": "fedcircuits.api.federate",
}

_MODULES = {"learners": "fedcircuits.learners", "partition": "fedcircuits.api.partition"}

__all__ = [
    "MISSING",
    "Circuit",
    "CircuitClassifier",
    "CircuitDensity",
    "Density",
    "FedcircuitsError",
    "FedcircuitsWarning",
    "Learner",
    "Schema",
    "Table",
    "Variable",
    "__version__",
    "above",
    "below",
    "between",
    "build",
    "federate",
    "learn",
    "learners",
    "load",
    "not_",
    "one_of",
    "partition",
]


def __getattr__(name: str) -> Any:
    if name in ("learners", "partition"):
        return import_module(
            {"learners": "fedcircuits.learners", "partition": "fedcircuits.api.partition"}[name]
        )
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'fedcircuits' has no attribute {name!r}")
