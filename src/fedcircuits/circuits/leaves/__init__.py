"""Leaf families, one a file, and the registry that names them in files and in `build`."""

from fedcircuits.circuits.leaves.base import LeafFamily, Params
from fedcircuits.circuits.leaves.categorical import Categorical
from fedcircuits.circuits.leaves.discretised_gaussian import DiscretisedGaussian
from fedcircuits.circuits.leaves.gaussian import Gaussian
from fedcircuits.circuits.leaves.histogram import CountTable, Histogram
from fedcircuits.circuits.leaves.poisson import Poisson
from fedcircuits.circuits.leaves.truncated_gaussian import TruncatedGaussian
from fedcircuits.circuits.leaves.uniform import Uniform
from fedcircuits.errors import StructureError

FAMILIES: dict[str, LeafFamily] = {
    family.name: family
    for family in (
        Gaussian(),
        TruncatedGaussian(),
        Uniform(),
        Histogram(),
        CountTable(),
        Poisson(),
        DiscretisedGaussian(),
        Categorical(),
    )
}


def family_named(name: str) -> LeafFamily:
    """The family of that name; an unknown one is an error that lists them."""
    try:
        return FAMILIES[name]
    except (KeyError, TypeError):
        known = ", ".join(sorted(FAMILIES))
        raise StructureError([f"no leaf family {name!r}; there are {known}"]) from None


__all__ = ["FAMILIES", "LeafFamily", "Params", "family_named"]
