"""Leaf families, one per file; `FAMILIES` is the registry that files are read back with."""

from __future__ import annotations

from fedcircuits.learners.einet.leaves.base import Family, Params, Stats
from fedcircuits.learners.einet.leaves.bernoulli import Bernoulli
from fedcircuits.learners.einet.leaves.binomial import Binomial
from fedcircuits.learners.einet.leaves.categorical import Categorical
from fedcircuits.learners.einet.leaves.discretised import DiscretisedGaussian
from fedcircuits.learners.einet.leaves.gaussian import Gaussian

FAMILIES: dict[str, type[Family]] = {
    family.name: family
    for family in (Bernoulli, Binomial, Categorical, DiscretisedGaussian, Gaussian)
}

__all__ = [
    "FAMILIES",
    "Bernoulli",
    "Binomial",
    "Categorical",
    "DiscretisedGaussian",
    "Family",
    "Gaussian",
    "Params",
    "Stats",
]
