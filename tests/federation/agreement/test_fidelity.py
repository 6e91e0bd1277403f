"""`independent` is the paper's construction (section 3.3): circuits built by hand say the same."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.rule import LEARNER, rows_split, small_table
from fedcircuits.federation.agreement import Independent, ProductOfClasses
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.learners import Mixture
from fedcircuits.schema import Table
from tolerances import LOG


def own_rows(fed: fc.Density, frame: pd.DataFrame) -> Table:
    """A client's rows under the agreed schema."""
    names = [n for n in fed.schema.names if n in frame.columns]
    return fed.schema.select(names).encode(frame, missing_as_state=True)


@pytest.mark.parametrize("learner", [LEARNER, Mixture(n_states=2, n_iterations=3)])
def test_horizontal_is_the_mixture_of_client_circuits_by_rows(learner: object) -> None:
    """K = 1: weights |D_c| / |D|, exactly."""
    frames = rows_split()
    fed = fc.federate(frames, learner=learner, agreement=Independent(n_clusters=1))
    rows = small_table(100, seed=4)
    total = sum(len(frame) for frame in frames.values())
    by_hand = np.zeros(len(rows))
    for name, frame in frames.items():
        alone = learner.fit(own_rows(fed, frame), named_rng(0, name, "S0"))  # type: ignore[attr-defined]
        by_hand += len(frame) / total * np.exp(alone.log_prob(rows))
    np.testing.assert_allclose(fed.log_prob(rows), np.log(by_hand), rtol=0, atol=LOG)


def test_horizontal_with_numbers_mixes_densities_in_one_unit(rng: np.random.Generator) -> None:
    """Clients far apart agree on one grid, so that their densities can be mixed."""
    frames = {
        "a": pd.DataFrame({"x": rng.normal(0, 1, 300), "z": rng.normal(5, 2, 300)}),
        "b": pd.DataFrame({"x": rng.normal(50, 9, 100), "z": rng.normal(-5, 1, 100)}),
    }
    fed = fc.federate(frames, learner=LEARNER, agreement=Independent(n_clusters=1))
    rows = pd.concat(frames.values())[::7]
    parts = {
        name: LEARNER.fit(own_rows(fed, frame), np.random.default_rng(0))
        for name, frame in frames.items()
    }
    by_hand = 0.75 * np.exp(parts["a"].log_prob(rows)) + 0.25 * np.exp(parts["b"].log_prob(rows))
    np.testing.assert_allclose(fed.log_prob(rows), np.log(by_hand), rtol=0, atol=LOG)


def test_vertical_naive_is_the_product_of_client_circuits() -> None:
    table = small_table()
    frames = {"a": table[["id", "x0", "x1"]], "b": table[["id", "x2", "x3", "x4"]]}
    fed = fc.federate(
        frames, id="id", learner=LEARNER, agreement=Independent(n_clusters=1, glueing="naive")
    )
    rows = small_table(100, seed=4)
    by_hand = sum(
        LEARNER.fit(own_rows(fed, frame.drop(columns="id")), np.random.default_rng(0)).log_prob(
            rows[[n for n in frame.columns if n != "id"]]
        )
        for frame in frames.values()
    )
    np.testing.assert_allclose(fed.log_prob(rows), by_hand, rtol=0, atol=LOG)


def test_label_weights_are_rows_per_class() -> None:
    """`product` on split rows: p(x, y) = sum_c (n_cy / n) p_c(x | y)."""
    frames = rows_split()
    fed = fc.federate(frames, label="y", learner=LEARNER, agreement=ProductOfClasses())
    rows = small_table(60, seed=4)
    n = sum(len(frame) for frame in frames.values())
    by_hand = np.zeros(len(rows))
    for frame in frames.values():
        table = own_rows(fed, frame)
        joint = type(LEARNER)(label="y").fit(table, np.random.default_rng(0))
        for y, n_cy in frame["y"].value_counts().items():
            given = joint.condition({"y": y})
            mine = rows["y"] == y
            by_hand[mine] += n_cy / n * np.exp(given.log_prob(rows.loc[mine].drop(columns="y")))
    np.testing.assert_allclose(fed.log_prob(rows), np.log(by_hand), rtol=0, atol=LOG)


def test_a_client_with_one_class_takes_part_in_that_class_only() -> None:
    table = small_table().drop(columns="id")
    frames = {
        "a": table[table["y"] == "yes"].reset_index(drop=True),
        "b": table[table["y"] == "no"].reset_index(drop=True),
    }
    fed = fc.federate(frames, label="y", learner=LEARNER)
    shares = fed.predict_proba(pd.DataFrame({"x0": [None]}), "y")
    assert shares["yes"].iloc[0] == pytest.approx((table["y"] == "yes").mean())
    told = fed.predict_proba(table.drop(columns="y"), "y")
    assert ((told["yes"] > 0.5) == (table["y"] == "yes")).mean() > 0.65


def test_clusters_of_a_client_without_rows_are_left_out() -> None:
    """More clusters than different rows: the model is still whole."""
    frames = {
        "a": pd.DataFrame({"id": range(40), "u": ["0", "1"] * 20}),
        "b": pd.DataFrame({"id": range(40), "v": ["0", "0", "1", "2"] * 10}),
    }
    fed = fc.federate(frames, id="id", learner=LEARNER, agreement=Independent(n_clusters=5))
    worlds = pd.DataFrame([(u, v) for u in "01" for v in "012"], columns=["u", "v"])
    assert np.exp(fed.log_prob(worlds)).sum() == pytest.approx(1.0)
