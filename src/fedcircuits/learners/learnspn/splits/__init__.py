"""Splits: which columns depend on each other, and which rows belong together."""

from fedcircuits.learners.learnspn.splits.components import components
from fedcircuits.learners.learnspn.splits.em_rows import em_rows
from fedcircuits.learners.learnspn.splits.gtest import dependent_by_gtest, g_statistics
from fedcircuits.learners.learnspn.splits.kmeans import kmeans_rows
from fedcircuits.learners.learnspn.splits.rdc import dependent_by_rdc, rdc_matrix

__all__ = [
    "components",
    "dependent_by_gtest",
    "dependent_by_rdc",
    "em_rows",
    "g_statistics",
    "kmeans_rows",
    "rdc_matrix",
]
