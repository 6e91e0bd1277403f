"""The contracts: what every density answers, and what a learner must offer."""

from fedcircuits.density.density import Density, Given, Learner, outcome_codes, powers

__all__ = ["Density", "Given", "Learner", "outcome_codes", "powers"]
