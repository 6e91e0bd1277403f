"""Disjoint subspaces of the feature space (section 3.3, Algorithm 1, lines 3-7)."""

from __future__ import annotations

from dataclasses import dataclass

from fedcircuits.federation.plan.indicator import BoolMatrix


@dataclass(frozen=True)
class Subspace:
    """Features that reside on the same set of clients.

    Attributes:
        features: S, as columns of M.
        holders: O_S, as rows of M.
    """

    features: tuple[int, ...]
    holders: tuple[int, ...]

    @property
    def is_shared(self) -> bool:
        """Whether several clients hold it: it becomes a sum (Assumption 1)."""
        return len(self.holders) > 1


def subspaces(M: BoolMatrix) -> tuple[Subspace, ...]:
    """One subspace for each distinct column u of M, in order of first appearance.

    A feature that nobody holds has no subspace.
    """
    found: dict[bytes, list[int]] = {}
    for j in range(M.shape[1]):
        if M[:, j].any():
            found.setdefault(M[:, j].tobytes(), []).append(j)
    return tuple(
        Subspace(tuple(features), tuple(int(i) for i in M[:, features[0]].nonzero()[0]))
        for features in found.values()
    )
