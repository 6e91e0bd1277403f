"""Weights of the sums at the server: rho by hand, shares."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.federation.agreement import Independent
from fedcircuits.federation.client.clustering import clusters_per_stratum
from fedcircuits.federation.plan.weights import (
    comparisons,
    known_log_shares,
    log_shares,
    rho,
    shares,
)
from fedcircuits.learners import Factorised


def test_shares_sum_to_one_and_zero_stays_zero() -> None:
    assert shares([3, 1]).tolist() == [0.75, 0.25]
    assert log_shares([0, 2]).tolist() == [-np.inf, 0.0]


def test_shares_of_nothing_are_an_error() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        shares([0, 0])
    with pytest.raises(ValueError, match="at least one row"):
        shares([1, -2])
    assert shares([0.25]).tolist() == [1.0]


def test_a_class_without_a_row_counts_as_half_a_row() -> None:
    found = np.exp(known_log_shares(np.array([6.0, 0.0, 1.0, 0.25])))
    np.testing.assert_allclose(found * 7.25, [6.0, 0.5, 1.0, 0.5], rtol=1e-12)


def test_classes_are_compared_by_the_rows_of_both() -> None:
    found = comparisons(np.array([3.0, 6.0, 0.0, 0.0]))
    expected = np.zeros((4, 4))
    expected[0, 1] = expected[1, 0] = 2.0  # 3 * 6 / 9
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_rho_adds_up_below_sums_and_products() -> None:
    shared_sum = rho([100, 60])  # two holders of a shared subspace
    assert shared_sum == 160
    assert rho([shared_sum, 30, 20]) == 210  # a product over it and two clusters


def frames() -> dict[str, pd.DataFrame]:
    """Client a: s, p in 30 rows, clusters of 20 and 10. Client b: s, q in 50 rows, 45 and 5."""
    a = pd.DataFrame({"s": ["u", "v"] * 15, "p": ["0"] * 20 + ["1"] * 10})
    b = pd.DataFrame({"s": ["u", "v"] * 25, "q": ["0"] * 45 + ["1"] * 5})
    return {"a": a, "b": b}


def test_rho_of_a_hybrid_federation_by_hand() -> None:
    fed = fc.federate(
        frames(), learner=Factorised(smoothing=1e-9), agreement=Independent(n_clusters=2)
    )
    # The shared sum holds 80 rows and is below every product: rho = 80 + n_p + n_q.
    rows = {("0", "0"): 80 + 20 + 45, ("0", "1"): 80 + 20 + 5}
    rows |= {("1", "0"): 80 + 10 + 45, ("1", "1"): 80 + 10 + 5}
    total = sum(rows.values())
    for (p, q), n in rows.items():
        found = np.exp(fed.log_prob(pd.DataFrame({"p": [p], "q": [q]})).iloc[0])
        assert found == pytest.approx(n / total, abs=1e-6)
    # Holders of the shared column weigh |D_c| / |D|; both say one half.
    assert np.exp(fed.log_prob(pd.DataFrame({"s": ["u"]})).iloc[0]) == pytest.approx(0.5)


def test_clusters_go_to_strata_by_the_square_root_of_their_rows() -> None:
    assert clusters_per_stratum(np.array([900.0, 100.0]), 16).tolist() == [12, 4]
    assert clusters_per_stratum(np.array([1e6, 1.0, 0.0]), 4).tolist() == [3, 1, 0]
