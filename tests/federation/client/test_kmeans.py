"""Clusters of a client's rows: as close to their rows as scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans

from fedcircuits.federation.client.kmeans import centres_of, nearest


def _apart(X: np.ndarray, C: np.ndarray) -> float:
    return float(((X[:, None] - C[None]) ** 2).sum(axis=2).min(axis=1).mean())


def test_centres_are_about_as_close_as_those_of_scikit_learn(rng: np.random.Generator) -> None:
    X = np.concatenate([rng.random((1500, 3)), rng.normal(0.5, 0.05, (500, 3))])
    ours = _apart(X, centres_of(X, 24, rng))
    theirs = _apart(X, KMeans(24, n_init=4, random_state=0).fit(X).cluster_centers_)
    assert ours < 1.1 * theirs


def test_groups_far_apart_are_the_clusters(rng: np.random.Generator) -> None:
    groups = np.repeat(np.arange(5), 40)
    X = 10.0 * groups[:, None] + rng.normal(0, 0.1, (200, 2))
    C = centres_of(X, 5, rng)
    assert len(set(zip(groups.tolist(), nearest(X, C).tolist(), strict=True))) == 5


@pytest.mark.parametrize("k", [1, 4])
def test_rows_that_are_all_alike_have_a_centre(k: int, rng: np.random.Generator) -> None:
    X = np.full((50, 2), 0.25)
    C = centres_of(X, k, rng)
    assert C.shape == (k, 2)
    np.testing.assert_allclose(C, 0.25)
