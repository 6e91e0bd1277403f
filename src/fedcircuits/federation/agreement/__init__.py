"""How clients agree on what belongs together: one rule a file (FUSION of client circuits).

A rule has two halves: `train` sends messages and returns ingredients, `glue` is a pure function of
the ingredients. So a client can leave, and the rest is glued again without training.
"""

from fedcircuits.federation.agreement.anchors import Anchors
from fedcircuits.federation.agreement.base import Rule
from fedcircuits.federation.agreement.counts import Counts
from fedcircuits.federation.agreement.independent import Independent
from fedcircuits.federation.agreement.latent import Latent
from fedcircuits.federation.agreement.product import ProductOfClasses

__all__ = ["Anchors", "Counts", "Independent", "Latent", "ProductOfClasses", "Rule"]
