"""Learners: a table in, a density out. Each is imported when it is first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcircuits.learners.auto import Auto
    from fedcircuits.learners.einet import EiNet
    from fedcircuits.learners.factorised import Factorised
    from fedcircuits.learners.gaussian_mixture import GaussianMixture
    from fedcircuits.learners.hclt.learner import Hclt, Mixture
    from fedcircuits.learners.learnspn import LearnSPN

_HOME = {
    "Auto": "fedcircuits.learners.auto",
    "EiNet": "fedcircuits.learners.einet",
    "Factorised": "fedcircuits.learners.factorised",
    "GaussianMixture": "fedcircuits.learners.gaussian_mixture",
    "Hclt": "fedcircuits.learners.hclt.learner",
    "LearnSPN": "fedcircuits.learners.learnspn",
    "Mixture": "fedcircuits.learners.hclt.learner",
}
# The names users write, and the classes behind them.
BY_NAME = {
    "hclt": "Hclt",
    "mixture": "Mixture",
    "learnspn": "LearnSPN",
    "einet": "EiNet",
    "factorised": "Factorised",
    "gaussian-mixture": "GaussianMixture",
    "auto": "Auto",
}

__all__ = [
    "BY_NAME",
    "Auto",
    "EiNet",
    "Factorised",
    "GaussianMixture",
    "Hclt",
    "LearnSPN",
    "Mixture",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'fedcircuits.learners' has no attribute {name!r}")
