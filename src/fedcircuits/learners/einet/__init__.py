"""EiNets: tensorised circuits for image-size data, on CPU and GPU. Needs the extra `einet`."""

from fedcircuits.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError("EiNet", "einet") from error

from fedcircuits.learners.einet.density.einet_density import EiNetDensity, unroll
from fedcircuits.learners.einet.head.classified_einet import ClassifiedEiNet
from fedcircuits.learners.einet.learner import EiNet
from fedcircuits.learners.einet.network.answering_device import answering_on
from fedcircuits.learners.einet.structures.hidden_tree import hidden_chow_liu_tree
from fedcircuits.learners.einet.structures.poon_domingos import poon_domingos
from fedcircuits.learners.einet.structures.random_trees import random_trees

__all__ = [
    "ClassifiedEiNet",
    "EiNet",
    "EiNetDensity",
    "answering_on",
    "hidden_chow_liu_tree",
    "poon_domingos",
    "random_trees",
    "unroll",
]
