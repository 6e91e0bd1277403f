"""Algorithm 1 as a pure function: the indicator matrix, subspaces, and products."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedcircuits.federation.plan.indicator import feature_indicator
from fedcircuits.federation.plan.plan import MOST_PRODUCTS, PlanError, plan
from fedcircuits.federation.plan.subspaces import Subspace, subspaces


def matrix(*rows: str) -> np.ndarray:
    """One row a client: "110" holds the first two of three features."""
    return np.array([[c == "1" for c in row] for row in rows])


def test_indicator_says_who_holds_what() -> None:
    held = {"b": ["x", "z"], "a": ["y"]}
    M = feature_indicator(held, ["a", "b"], ["x", "y", "z"])
    assert M.tolist() == matrix("010", "101").tolist()


def test_subspaces_are_the_distinct_columns() -> None:
    found = subspaces(matrix("1101", "0111"))
    assert found == (
        Subspace((0,), (0,)),
        Subspace((1, 3), (0, 1)),
        Subspace((2,), (1,)),
    )
    assert [s.is_shared for s in found] == [False, True, False]


def test_subspaces_are_disjoint_and_cover_what_is_held(rng: np.random.Generator) -> None:
    for _ in range(50):
        M = rng.random((rng.integers(1, 6), rng.integers(1, 9))) < 0.4
        found = subspaces(M)
        features = [j for s in found for j in s.features]
        assert sorted(features) == np.flatnonzero(M.any(axis=0)).tolist()
        for s in found:
            for j in s.features:
                assert tuple(np.flatnonzero(M[:, j])) == s.holders
        assert len({s.holders for s in found}) == len(found)


def test_disjoint_clients_have_private_subspaces_only() -> None:
    made = plan(matrix("1100", "0011"), 2)
    assert made.shared == ()
    assert [s.holders for s in made.private] == [(0,), (1,)]
    assert made.products == ((0, 0), (0, 1), (1, 0), (1, 1))


def test_identical_clients_share_one_subspace_and_have_one_product() -> None:
    made = plan(matrix("111", "111", "111"), 4)
    assert made.shared == (Subspace((0, 1, 2), (0, 1, 2)),)
    assert made.private == ()
    assert made.products == ((),)


def test_one_client_is_its_own_clusters() -> None:
    made = plan(matrix("11"), 3)
    assert made.shared == ()
    assert made.private == (Subspace((0, 1), (0,)),)
    assert made.products == ((0,), (1,), (2,))


def test_one_client_and_one_cluster_is_one_product() -> None:
    assert plan(matrix("11"), 1).products == ((0,),)


def test_a_feature_nobody_holds_is_named_and_left_out() -> None:
    made = plan(matrix("100", "010"), 1)
    assert made.unheld == (2,)
    assert all(2 not in s.features for s in (*made.shared, *made.private))


def test_nothing_held_at_all_is_an_error() -> None:
    with pytest.raises(PlanError, match="no client holds any feature"):
        plan(matrix("00", "00"), 2)


def test_a_client_with_nothing_private_takes_part_in_shared_sums_only() -> None:
    made = plan(matrix("110", "010"), 2)
    assert made.shared == (Subspace((1,), (0, 1)),)
    assert [s.holders for s in made.private] == [(0,)]
    assert made.products == ((0,), (1,))


def test_three_clients_make_every_kind_of_subspace() -> None:
    made = plan(matrix("1001101", "0101011", "0010111"), 1)
    assert [s.holders for s in made.private] == [(0,), (1,), (2,)]
    assert {s.holders for s in made.shared} == {(0, 1), (0, 2), (1, 2), (0, 1, 2)}


def test_no_clusters_is_an_error() -> None:
    with pytest.raises(PlanError, match="at least 1"):
        plan(matrix("10", "01"), 0)


def test_fewer_products_than_clusters_cannot_cover_them() -> None:
    with pytest.raises(PlanError, match=r"3 products cannot cover 4 clusters"):
        plan(matrix("10", "01"), 4, 3, glueing="random")


def test_as_many_products_as_clusters_use_each_cluster_once() -> None:
    made = plan(matrix("100", "010", "001"), 5, 5, seed=3, glueing="random")
    for space in range(3):
        assert sorted(chosen[space] for chosen in made.products) == list(range(5))


@pytest.mark.parametrize("n_products", [9, 10, 1000])
def test_as_many_products_as_combinations_means_all_of_them(n_products: int) -> None:
    made = plan(matrix("10", "01"), 3, n_products, glueing="random")
    assert made.products == tuple(itertools.product(range(3), repeat=2))
    assert made == plan(matrix("10", "01"), 3)


@pytest.mark.parametrize("seed", range(5))
def test_random_products_differ_and_cover_every_cluster(seed: int) -> None:
    K, P = 4, 7
    made = plan(matrix("100", "010", "001"), K, P, seed, "random")
    assert len(made.products) == P
    assert len(set(made.products)) == P
    for space in range(3):
        assert {chosen[space] for chosen in made.products} == set(range(K))


def test_the_seed_decides_random_products() -> None:
    M = matrix("100", "010", "001")
    again = [plan(M, 4, 6, seed, "random").products for seed in (1, 1, 2)]
    assert again[0] == again[1] != again[2]


def test_random_without_a_number_uses_all_combinations() -> None:
    assert len(plan(matrix("10", "01"), 3, glueing="random").products) == 9


def test_naive_glueing_is_one_product_of_mixtures() -> None:
    made = plan(matrix("10", "01"), 3, glueing="naive")
    assert made.products == ((),)
    assert made.n_clusters == 3


def test_too_many_combinations_are_refused_with_a_way_out() -> None:
    with pytest.raises(PlanError, match="random glueing with fewer products"):
        plan(np.eye(5, dtype=bool), 8)
    assert MOST_PRODUCTS < 8**5
    assert len(plan(np.eye(5, dtype=bool), 8, 20, glueing="random").products) == 20
