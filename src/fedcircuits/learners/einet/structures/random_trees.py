"""Random binary trees (RAT): balanced random halvings, repeated and mixed at the root."""

from __future__ import annotations

import numpy as np

from fedcircuits.errors import LearningError
from fedcircuits.learners.einet.structures.regions import GraphBuilder, RegionGraph


def random_trees(
    n_variables: int, depth: int, repetitions: int, rng: np.random.Generator
) -> RegionGraph:
    """Random binary trees over the variables that share only their root.

    Args:
        n_variables: Variables to split.
        depth: Halvings from root to leaves; branches that reach one variable stop early.
        repetitions: Independent trees, partitions of the one root region.
        rng: Source of the random halvings.

    Returns:
        The region graph.
    """
    if n_variables < 1 or depth < 0 or repetitions < 1:
        raise LearningError(
            f"random trees: {n_variables} variables, depth {depth}, {repetitions} repetitions; "
            "expected at least 1, 0 and 1"
        )
    builder = GraphBuilder(n_variables)
    root = builder.region("root", range(n_variables))
    if depth == 0 or n_variables == 1:
        return builder.finish(root, "random-trees")
    for repetition in range(repetitions):
        queue: list[tuple[int, np.ndarray, int, str]] = [
            (root, np.arange(n_variables), depth, f"{repetition}:")
        ]
        while queue:
            region, variables, left_over, name = queue.pop()
            order = rng.permutation(variables)
            half = (len(order) + int(rng.integers(2))) // 2 if len(order) % 2 else len(order) // 2
            children = []
            for side, part in (("l", order[:half]), ("r", order[half:])):
                child = builder.region(name + side, (int(v) for v in part))
                children.append(child)
                if left_over > 1 and len(part) > 1:
                    queue.append((child, part, left_over - 1, name + side))
            builder.split(region, children)
    return builder.finish(root, "random-trees")
