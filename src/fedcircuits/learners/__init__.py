"""Learners: a table in, a density out."""

from fedcircuits.learners.factorised import Factorised

__all__ = ["Factorised"]
