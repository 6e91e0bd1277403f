"""Leaf families, one per file; `FAMILIES` is the registry that files are read back with."""

from __future__ import annotations

from .base import Family, Params, Stats
from .bernoulli import Bernoulli
from .binomial import Binomial
from .categorical import Categorical
from .discretised import DiscretisedGaussian
from .gaussian import Gaussian

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
