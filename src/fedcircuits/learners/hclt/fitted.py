"""What a fit of the table learners returns (`FittedTree`)."""

from __future__ import annotations

from dataclasses import dataclass

from fedcircuits.learners.hclt.head.fit_head import Head
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree
from fedcircuits.learners.hclt.tree.class_tree import ClassTree
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree


@dataclass(frozen=True)
class FittedTree:
    """A fitted tree or mixture with its tilt, its head and a report of the fit.

    Attributes:
        model: Plain normalised tables, one class without a label.
        tree: The circuit m over x that the classes share.
        tilted: The tilted parameters; none without a label.
        head: Boosted trees and their pool over the columns, where a head was kept.
        report: Times, sizes, curves and choices, ready for JSON.
    """

    model: ClassTree
    tree: LatentTree
    tilted: TiltedTree | None
    head: Head | None
    report: dict[str, object]
