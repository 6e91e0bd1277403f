"""Learners: a table in, a density out."""

from fedcircuits.learners.factorised import Factorised
from fedcircuits.learners.hclt.learner import Hclt, Mixture

__all__ = ["Factorised", "Hclt", "Mixture"]
