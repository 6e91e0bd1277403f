"""Labels of many classes and columns of many categories: bounded tables, and answers that agree."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.errors import LearningError
from fedcircuits.learners.hclt.tree import sizes
from fedcircuits.learners.hclt.tree.tree_em import Smoothing


def _rows(n_kinds: int, n: int = 600) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.random(n)
    kind = np.minimum((x * n_kinds).astype(int), n_kinds - 1)
    return pd.DataFrame(
        {"kind": [f"k{k}" for k in kind], "x": x + 0.05 * rng.normal(size=n), "z": rng.random(n)}
    )


@pytest.mark.parametrize("n_columns", [1, 30, 1_000])
def test_tables_of_all_classes_together_are_bounded(n_columns: int) -> None:
    cards = (20,) * n_columns
    last = None
    for n_classes in (2, 10, 100, 700):
        most = sizes.states_for_classes(n_classes, cards)
        if most is None:
            continue
        numbers = n_classes * (n_columns * most**2 + sum(cards) * most)
        assert numbers <= sizes.MAX_CLASS_NUMBERS
        assert last is None or most <= last
        last = most
    assert sizes.states_for_classes(5_000, cards) is None


@pytest.fixture
def few_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven classes are many here."""
    monkeypatch.setattr(sizes, "MAX_TRIAL_CELLS", sizes.MIN_CLASS_ROWS * 36)


@pytest.mark.usefixtures("few_allowed")
def test_a_label_of_very_many_classes_is_a_column() -> None:
    rows = _rows(12)
    model = fc.learn(rows, "kind", n_states=8)
    assert model.fit_report is not None
    assert "column" in str(model.fit_report.kept["label"])
    asked = rows.drop(columns="kind").head(20)
    proba = model.predict_proba(asked, "kind")
    joint = pd.DataFrame({kind: model.log_prob(asked.assign(kind=kind)) for kind in proba.columns})
    expected = np.exp(joint.sub(np.logaddexp.reduce(joint.to_numpy(), axis=1), axis=0))
    np.testing.assert_allclose(proba, expected, atol=1e-9)
    right = (model.predict_proba(rows, "kind").idxmax(axis=1).to_numpy() == rows["kind"]).mean()
    assert right > 0.4  # by chance .08
    same = fc.learn(rows, n_states=8)
    np.testing.assert_allclose(model.log_prob(rows), same.log_prob(rows), atol=1e-9)


@pytest.mark.usefixtures("few_allowed")
def test_a_head_for_very_many_classes_is_refused() -> None:
    with pytest.raises(LearningError, match="too many classes for a head"):
        fc.learn(_rows(12), "kind", head=True)


def test_columns_of_many_categories_have_more_pseudo_rows() -> None:
    plain = Smoothing(emission=0.5)
    ordered = np.array([False, True, False])
    found = sizes.for_categories(plain, (20, 500, 500), ordered)
    assert [found.of_column(j) for j in range(3)] == [0.5, 0.5, 25.0]
    assert sizes.for_categories(plain, (20, 500), ordered[:2]) is plain
