"""The scikit-learn estimators: contract, pipelines, grid search, strings and gaps."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

import fedcircuits as fc


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator", [fc.CircuitDensity(), fc.CircuitClassifier(), fc.CircuitRegressor()], ids=str
)
def test_scikit_learns_own_checks_pass(estimator: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, on_fail=None, on_skip=None)
    failed = [r["check_name"] for r in results if r["status"] == "failed"]
    assert failed == []
    assert sum(r["status"] == "passed" for r in results) > 40


@pytest.fixture(scope="module")
def shop() -> tuple[pd.DataFrame, pd.Series]:
    """A table with strings, numbers and gaps whose label depends on both."""
    rng = np.random.default_rng(4)
    colour = rng.choice(["red", "green", "blue"], 400)
    size = rng.normal(0, 1, 400) + (colour == "red")
    bought = np.where(size + (colour == "blue") + rng.normal(0, 0.5, 400) > 0.7, "yes", "no")
    table = pd.DataFrame({"colour": colour, "size": size, "noise": rng.integers(0, 5, 400)})
    return table.mask(rng.random(table.shape) < 0.1), pd.Series(bought)


def test_strings_and_gaps_are_taken_as_they_are(shop: tuple[pd.DataFrame, pd.Series]) -> None:
    X, y = shop
    model = fc.CircuitClassifier().fit(X.iloc[:300], y.iloc[:300])
    assert list(model.classes_) == ["no", "yes"]
    proba = model.predict_proba(X.iloc[300:])
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    right = (model.predict(X.iloc[300:]) == y.iloc[300:].to_numpy()).mean()
    assert right > 0.75  # the majority class has about 0.55


def test_an_empty_cell_is_evidence_where_gaps_told_the_label_in_fit() -> None:
    rng = np.random.default_rng(5)
    y = rng.random(600) < 0.4
    X = pd.DataFrame({"a": rng.normal(size=600), "b": rng.normal(size=600) + y})
    X.loc[rng.random(600) < np.where(y, 0.6, 0.1), "a"] = np.nan
    X.loc[rng.random(600) < 0.2, "b"] = np.nan
    for rows in (X, X.to_numpy()):
        model = fc.CircuitClassifier(learner="mixture").fit(rows, y)
        told = model.predict_proba(rows)[:, 1][X["a"].isna()]
        assert told.mean() == pytest.approx(y[X["a"].isna()].mean(), abs=0.05)
        assert model.telling_gaps_ == [model.model_.schema.names[0]]  # the others say nothing
        assert model.model_.fit_report is not None
        assert "lacks a value says something about" in model.model_.fit_report.warnings[0]
        summed_out = fc.CircuitClassifier(learner="mixture", missing="marginalise").fit(rows, y)
        assert summed_out.predict_proba(rows)[:, 1][X["a"].isna()].mean() < told.mean() - 0.1
    # A column that is not there says nothing.
    model = fc.CircuitClassifier(learner="mixture").fit(X, y)
    absent = model.predict_proba(X[["b"]])
    expected = model.model_.predict_proba(X[["b"]], model.label_)
    np.testing.assert_array_equal(absent, expected)
    number = fc.CircuitRegressor(learner="hclt", head=False).fit(X, y + rng.normal(0, 0.1, 600))
    assert number.telling_gaps_ == ["a"]
    assert number.predict(X)[X["a"].isna()].mean() > 0.6


def test_an_estimator_gives_the_answers_of_learn(shop: tuple[pd.DataFrame, pd.Series]) -> None:
    X, _ = shop
    estimator = fc.CircuitDensity(learner="mixture", seed=3).fit(X)
    model = fc.learn(X, learner="mixture", seed=3)
    np.testing.assert_array_equal(estimator.score_samples(X), model.log_prob(X))
    assert estimator.score(X) == pytest.approx(model.mean_log_prob(X))
    assert list(estimator.sample(3, random_state=1).columns) == list(X.columns)


def test_pipelines_and_grid_search_work(shop: tuple[pd.DataFrame, pd.Series]) -> None:
    X, y = shop
    pipeline = make_pipeline(
        FunctionTransformer(lambda frame: frame.drop(columns="noise")),
        fc.CircuitClassifier(learner="mixture"),
    )
    search = GridSearchCV(
        pipeline,
        {"circuitclassifier__options": [{"n_states": 1}, {"n_states": 4}]},
        cv=2,
        scoring="neg_log_loss",
    ).fit(X, y)
    assert search.best_score_ > -0.65
    assert set(search.best_params_) == {"circuitclassifier__options"}


@pytest.mark.slow
def test_cross_validation_on_arrays() -> None:
    X, y = load_wine(return_X_y=True)
    found = cross_val_score(fc.CircuitClassifier(), X, y, cv=3)
    assert found.mean() > 0.93


def test_the_order_of_rows_does_not_matter(shop: tuple[pd.DataFrame, pd.Series]) -> None:
    X, y = shop
    order = np.random.default_rng(0).permutation(len(X))
    one = fc.CircuitClassifier().fit(X, y).predict_proba(X)
    two = fc.CircuitClassifier().fit(X.iloc[order], y.iloc[order]).predict_proba(X)
    np.testing.assert_allclose(one, two, atol=1e-12)


def test_whole_weights_are_repeated_rows(shop: tuple[pd.DataFrame, pd.Series]) -> None:
    X, y = shop[0].iloc[:150], shop[1].iloc[:150]
    weights = np.arange(150) % 3
    one = fc.CircuitClassifier().fit(X, y, sample_weight=weights).predict_proba(X)
    repeated = np.repeat(np.arange(150), weights)
    two = fc.CircuitClassifier().fit(X.iloc[repeated], y.iloc[repeated]).predict_proba(X)
    np.testing.assert_allclose(one, two, atol=1e-9)


def test_one_class_is_refused(shop: tuple[pd.DataFrame, pd.Series]) -> None:
    with pytest.raises(ValueError, match="one class: 'yes'"):
        fc.CircuitClassifier().fit(shop[0], ["yes"] * 400)


def test_categories_and_forms_of_rows_that_were_not_learned(
    shop: tuple[pd.DataFrame, pd.Series],
) -> None:
    X, y = shop
    names = [f"a{i}" for i in range(len(X))]
    X = X.assign(id=names)
    with pytest.warns(fc.FedcircuitsWarning, match="left out column 'id'"):
        model = fc.CircuitClassifier(learner="factorised").fit(X, y)
    rows = X.head(4)
    text = "colour"
    odd = rows.astype({text: object})
    odd.iloc[0, list(X).index(text)] = "never seen"
    gap = rows.astype({text: object})
    gap.iloc[0, list(X).index(text)] = None
    with pytest.warns(fc.FedcircuitsWarning, match="taken as missing.*'never seen' in row"):
        found = model.predict_proba(odd)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the id is not warned of again
        np.testing.assert_array_equal(found, model.predict_proba(gap))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        by_place = model.predict_proba(rows.to_numpy(dtype=object))
    np.testing.assert_array_equal(by_place, model.predict_proba(rows))
