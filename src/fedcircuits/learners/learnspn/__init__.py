"""LearnSPN: sums by clustering rows, products by testing columns, leaves on the schema's grid."""

from fedcircuits.learners.learnspn.learner import LearnSPN

__all__ = ["LearnSPN"]
