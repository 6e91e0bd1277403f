"""EiNets: tensorised circuits for image-size data, on CPU and GPU. Needs the extra `einet`."""

from fedcircuits.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError("EiNet", "einet") from error

from .chow_liu import hidden_chow_liu_tree
from .learner import EiNet
from .model import EiNetDensity
from .placement import answering_on
from .poon_domingos import poon_domingos
from .random_trees import random_trees
from .unroll import unroll

__all__ = [
    "EiNet",
    "EiNetDensity",
    "answering_on",
    "hidden_chow_liu_tree",
    "poon_domingos",
    "random_trees",
    "unroll",
]
