"""fedcircuits: learn one tractable joint distribution from tables that stay where they are."""

from fedcircuits.api import learn, load
from fedcircuits.circuits import Circuit, build
from fedcircuits.density import Density, Learner
from fedcircuits.errors import FedcircuitsError, FedcircuitsWarning
from fedcircuits.schema import MISSING, Schema, Table, Variable

__version__ = "0.1.0"

__all__ = [
    "MISSING",
    "Circuit",
    "Density",
    "FedcircuitsError",
    "FedcircuitsWarning",
    "Learner",
    "Schema",
    "Table",
    "Variable",
    "__version__",
    "build",
    "learn",
    "load",
]
