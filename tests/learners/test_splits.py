"""Splits of LearnSPN: the fast forms equal the textbook ones, and find what is there."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components
from scipy.stats import binom, chi2_contingency
from sklearn.cross_decomposition import CCA

from fedcircuits.learners.learnspn.coded import Coded
from fedcircuits.learners.learnspn.splits import (
    components,
    dependent_by_gtest,
    dependent_by_rdc,
    em_rows,
    g_statistics,
    kmeans_rows,
    rdc_matrix,
)
from fedcircuits.learners.learnspn.splits.gtest import coarsen
from fedcircuits.learners.learnspn.splits.kmeans import column_tables, encode_rows
from fedcircuits.learners.learnspn.splits.rdc import column_features


def coded(states, ordered=None, weights=None, cards=None, has_missing=None) -> Coded:
    """Columns of states from rows (n, d)."""
    columns = np.ascontiguousarray(np.asarray(states).T, dtype=np.int32)
    d, n = columns.shape
    return Coded(
        columns,
        np.asarray(columns.max(axis=1) + 1 if cards is None else cards, dtype=np.int64),
        np.zeros(d, dtype=bool) if ordered is None else np.asarray(ordered),
        np.zeros(d, dtype=bool) if has_missing is None else np.asarray(has_missing),
        np.ones(n) if weights is None else np.asarray(weights, dtype=float),
    )


def mixed(rng: np.random.Generator, n: int = 1500) -> Coded:
    """Two ordered columns with a curved dependence, two linked categories, one column apart."""
    x = rng.integers(0, 40, n)
    y = np.clip((x - 20) ** 2 // 12 + rng.integers(0, 6, n), 0, 39)
    c = rng.integers(0, 5, n)
    e = np.where(rng.random(n) < 0.7, c, rng.integers(0, 5, n))
    apart = rng.integers(0, 3, n)
    rows = np.stack([x, y, c, e, apart], axis=1)
    return coded(rows, [True, True, False, False, False], cards=[40, 40, 5, 5, 3])


class TestRdc:
    def test_equals_a_cca_for_every_pair(self, rng):
        data = mixed(rng)
        found = rdc_matrix(data, np.random.default_rng(3))
        again = np.random.default_rng(3)
        rows = [column_features(data, j, again)[data.states[j]] for j in range(5)]
        for i in range(5):
            for j in range(i):
                # Textbook: canonical correlations are singular values of Q_i' Q_j.
                bases = []
                for x in (rows[i], rows[j]):
                    u, s, _ = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
                    bases.append(u[:, s > 1e-10 * s[0]])
                expected = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)[0]
                assert found[i, j] == pytest.approx(expected, abs=1e-7)

    def test_agrees_with_scikit_learns_iterative_cca(self, rng):
        data = mixed(rng)
        found = rdc_matrix(data, np.random.default_rng(3))
        again = np.random.default_rng(3)
        rows = [column_features(data, j, again)[data.states[j]] for j in range(5)]
        for i, j in ((0, 1), (2, 3), (1, 2), (3, 4)):
            cca = CCA(n_components=1, max_iter=2000, tol=1e-9)
            a, b = cca.fit_transform(rows[i], rows[j])
            # The iteration stops short of the maximum, never beyond it.
            reached = np.corrcoef(a[:, 0], b[:, 0])[0, 1]
            assert reached <= found[i, j] + 1e-6
            assert (reached > 0.4) == (found[i, j] > 0.4)

    @given(threshold=st.floats(0.02, 0.98), seed=st.integers(0, 10))
    def test_bounds_give_the_edges_of_the_full_matrix(self, threshold, seed):
        data = mixed(np.random.default_rng(seed), 400)
        edges = dependent_by_rdc(data, threshold, np.random.default_rng(seed))
        full = rdc_matrix(data, np.random.default_rng(seed)) > threshold
        np.fill_diagonal(full, False)
        assert np.array_equal(edges, full)

    def test_sees_curved_dependence_and_no_other(self, rng):
        edges = dependent_by_rdc(mixed(rng), 0.3, rng)
        expected = np.zeros((5, 5), dtype=bool)
        expected[0, 1] = expected[1, 0] = expected[2, 3] = expected[3, 2] = True
        assert np.array_equal(edges, expected)

    def test_of_two_binary_columns_is_their_correlation(self, rng):
        a = rng.integers(0, 2, 500)
        b = np.where(rng.random(500) < 0.8, a, 1 - a)
        found = rdc_matrix(coded(np.stack([a, b], axis=1)), rng)
        assert found[0, 1] == pytest.approx(abs(np.corrcoef(a, b)[0, 1]), abs=1e-10)

    def test_weights_count_like_repeated_rows(self, rng):
        data = mixed(rng, 300)
        times = rng.integers(1, 4, data.n_rows)
        repeated = data.take(np.arange(5), np.repeat(np.arange(data.n_rows), times))
        weighted = coded(data.states.T, data.ordered, times, data.cards)
        expected = rdc_matrix(repeated, np.random.default_rng(1))
        assert rdc_matrix(weighted, np.random.default_rng(1)) == pytest.approx(expected, abs=1e-7)

    def test_cells_missing_at_random_change_little(self, rng):
        data = mixed(rng, 8000)
        gaps = np.where(rng.random(data.states.shape) < 0.3, -1, data.states)
        sparse = coded(gaps.T, data.ordered, cards=data.cards)
        whole = rdc_matrix(data, np.random.default_rng(1))
        # .03 is three standard errors of a correlation at 3,900 rows that have both cells, and
        # the chance correlation of independent columns grows by as much.
        assert np.abs(rdc_matrix(sparse, np.random.default_rng(1)) - whole).max() < 0.06

    def test_constant_column_depends_on_nothing(self, rng):
        rows = np.stack([np.zeros(50), rng.integers(0, 2, 50)], axis=1)
        assert not dependent_by_rdc(coded(rows, cards=[3, 2]), 0.0, rng).any()

    def test_duplicate_columns_are_fully_dependent(self, rng):
        x = rng.integers(0, 30, 400)
        data = coded(np.stack([x, x], axis=1), [True, True])
        assert rdc_matrix(data, rng)[0, 1] == pytest.approx(1.0, abs=1e-9)


class TestGTest:
    @pytest.mark.parametrize("cards", [(2, 2, 2), (2, 3, 4)])
    def test_equals_scipys_statistic(self, rng, cards):
        rows = np.stack([rng.integers(0, c, 200) for c in cards], axis=1)
        rows[:, 1] = np.where(rng.random(200) < 0.3, np.minimum(rows[:, 0], 1), rows[:, 1])
        g, freedom = g_statistics(coded(rows, cards=cards))
        for i in range(3):
            for j in range(i):
                table = np.zeros((cards[i], cards[j]))
                np.add.at(table, (rows[:, i], rows[:, j]), 1)
                expected = chi2_contingency(table, correction=False, lambda_="log-likelihood")
                assert g[i, j] == pytest.approx(expected.statistic, abs=1e-8)
                assert freedom[i, j] == expected.dof

    def test_missing_cells_leave_their_rows_out_of_their_pairs(self, rng):
        rows = rng.integers(0, 2, (300, 3))
        rows[:, 1] |= rows[:, 0]
        gaps = np.where(rng.random(rows.shape) < 0.25, -1, rows)
        g, _ = g_statistics(coded(gaps, cards=[2, 2, 2]))
        for i, j in ((0, 1), (1, 2)):
            both = gaps[(gaps[:, i] >= 0) & (gaps[:, j] >= 0)][:, [i, j]]
            assert g[i, j] == pytest.approx(g_statistics(coded(both))[0][0, 1], abs=1e-8)

    def test_weights_count_like_repeated_rows(self, rng):
        rows, times = rng.integers(0, 2, (100, 4)), rng.integers(1, 5, 100)
        g, _ = g_statistics(coded(rows, weights=times))
        expected, _ = g_statistics(coded(np.repeat(rows, times, axis=0)))
        assert g == pytest.approx(expected, abs=1e-8)

    @pytest.mark.parametrize("cards", [2, 5])
    def test_finds_independent_columns_dependent_as_often_as_it_says(self, rng, cards):
        pairs = found = 0
        for _ in range(60):
            data = coded(rng.integers(0, cards, (600, 8)), cards=[cards] * 8)
            found += dependent_by_gtest(data, 0.05)[np.triu_indices(8, 1)].sum()
            pairs += 28
        # False-alarm rate 1e-4 if pairs were independent tests of exactly 5 %; the chi-squared
        # limit is a little off at 24 rows a cell, hence 6 %.
        assert found <= binom.isf(1e-4, pairs, 0.06)
        assert found >= binom.isf(1 - 1e-4, pairs, 0.04)

    def test_many_states_are_joined_in_order_and_by_frequency(self, rng):
        rows = np.stack([rng.integers(0, 90, 4000), rng.geometric(0.1, 4000) % 60], axis=1)
        few = coarsen(coded(rows, [True, False], cards=[90, 60]))
        assert few.cards.tolist() == [12, 12]
        by_value = [few.states[0][rows[:, 0] == v] for v in range(90)]
        assert all(len(set(g.tolist())) == 1 for g in by_value)
        assert np.all(np.diff([g[0] for g in by_value]) >= 0)
        assert (np.bincount(few.states[0]) > 200).all()

    def test_dependence_of_binned_numbers_is_seen(self, rng):
        edges = dependent_by_gtest(mixed(rng), 1e-4)
        assert edges[0, 1]
        assert edges[2, 3]
        assert edges.sum() == 4


@given(seed=st.integers(0, 200), d=st.integers(1, 30), share=st.floats(0, 0.3))
def test_components_are_those_of_scipy(seed, d, share):
    rng = np.random.default_rng(seed)
    graph = np.triu(rng.random((d, d)) < share, 1)
    graph = graph | graph.T
    _, expected = connected_components(graph, directed=False)
    assert np.array_equal(components(graph), expected)


def two_groups(rng: np.random.Generator, n: int = 400) -> tuple[Coded, np.ndarray]:
    """Rows of two kinds that differ in all of twelve columns."""
    kind = rng.integers(0, 2, n)
    rate = np.where(kind[:, None] == 1, 0.9, 0.1)
    return coded((rng.random((n, 12)) < rate).astype(int), cards=[2] * 12), kind


@pytest.mark.parametrize("split", [kmeans_rows, em_rows])
class TestRows:
    def test_finds_two_groups(self, split, rng):
        data, kind = two_groups(rng)
        labels = split(data, 2, rng)
        agree = np.mean(labels == kind)
        assert max(agree, 1 - agree) > 0.98

    def test_finds_them_with_missing_cells(self, split, rng):
        data, kind = two_groups(rng)
        gaps = np.where(rng.random(data.states.shape) < 0.3, -1, data.states)
        labels = split(coded(gaps.T, cards=data.cards), 2, rng)
        agree = np.mean(labels == kind)
        assert max(agree, 1 - agree) > 0.95

    def test_finds_three_groups_of_mixed_columns(self, split, rng):
        kind = rng.integers(0, 3, 600)
        number = np.clip(kind * 15 + rng.integers(0, 12, 600), 0, 49)
        category = np.where(rng.random(600) < 0.95, kind, rng.integers(0, 3, 600))
        other = np.where(rng.random(600) < 0.95, kind, rng.integers(0, 3, 600))
        rows = np.stack([number, category, other], axis=1)
        labels = split(coded(rows, [True, False, False], cards=[50, 3, 3]), 3, rng)
        majority = [np.bincount(kind[labels == k]).max() for k in np.unique(labels)]
        assert len(majority) == 3
        assert sum(majority) > 0.9 * 600

    def test_equal_rows_are_one_cluster(self, split, rng):
        labels = split(coded(np.ones((40, 3)), cards=[3, 2, 4]), 2, rng)
        assert len(set(labels.tolist())) == 1

    def test_more_clusters_than_rows_is_no_fault(self, split, rng):
        labels = split(coded(np.eye(3, dtype=int), cards=[2, 2, 2]), 8, rng)
        assert labels.shape == (3,)

    def test_same_seed_same_clusters(self, split, rng):
        data, _ = two_groups(rng)
        first, second = (split(data, 2, np.random.default_rng(5)) for _ in range(2))
        assert np.array_equal(first, second)

    def test_a_heavy_row_is_a_cluster_of_its_own(self, split):
        rows = np.array([[0, 0, 0, 0]] * 3 + [[1, 1, 1, 1]] * 3)
        data = coded(rows, weights=[1, 1, 1, 50, 50, 50], cards=[2] * 4)
        labels = split(data, 2, np.random.default_rng(0))
        assert len(set(labels[:3].tolist())) == 1
        assert len(set(labels[3:].tolist())) == 1
        assert labels[0] != labels[3]

    def test_rows_beyond_the_limit_are_assigned_too(self, split, rng, monkeypatch):
        monkeypatch.setitem(split.__globals__, "MAX_ROWS", 100)
        data, kind = two_groups(rng, 3000)
        agree = np.mean(split(data, 2, rng) == kind)
        assert max(agree, 1 - agree) > 0.97


def test_points_of_kmeans_have_mean_zero_and_unit_variance_a_column(rng):
    data = mixed(rng)
    points = encode_rows(data, column_tables(data)).astype(float)
    assert np.abs(points.mean(axis=0)).max() < 1e-5
    widths = [1, 1, 5, 5, 3]
    ends = np.concatenate([[0], np.cumsum(widths)])
    for first, last in itertools.pairwise(ends):
        assert points[:, first:last].var(axis=0).sum() == pytest.approx(1.0, abs=1e-4)


def test_observed_missing_is_apart_but_neither_high_nor_low(rng):
    states = np.concatenate([rng.integers(0, 10, 90), np.full(30, 10)])[:, None]
    data = coded(states, [True], cards=[11], has_missing=[True])
    points = encode_rows(data, column_tables(data))
    assert points.shape == (120, 2)
    assert points[90:, 0] == pytest.approx(points[:90, 0].mean(), abs=1e-5)
    assert points[90:, 1].min() > points[:90, 1].max()


@pytest.mark.parametrize("weighted", [False, True])
def test_counts_of_a_large_slice_are_taken_column_by_column(rng, weighted, monkeypatch):
    data = mixed(rng)
    gaps = np.where(rng.random(data.states.shape) < 0.2, -1, data.states).T
    weights = rng.random(data.n_rows) if weighted else None
    small = coded(gaps, data.ordered, weights, data.cards).counts
    monkeypatch.setattr("fedcircuits.learners.learnspn.coded.LARGE", 10)
    assert coded(gaps, data.ordered, weights, data.cards).counts == pytest.approx(small, abs=1e-9)


def test_scores_add_what_tables_say_of_observed_states():
    data = coded([[0, 2], [1, -1]], cards=[2, 3])
    tables = np.array([[1.0, 2.0, 10.0, 20.0, 30.0]])
    assert data.additive_scores(tables).tolist() == [[31.0, 2.0]]
