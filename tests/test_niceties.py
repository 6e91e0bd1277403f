"""What makes Python pleasant: short reprs, evidence in every form, lists of clients, estimators."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import fedcircuits as fc
from fedcircuits.errors import FederationError, LearningError, QueryError


def people(n: int = 240) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    sex = rng.choice(["Male", "Female"], n)
    age = rng.normal(np.where(sex == "Male", 45.0, 35.0), 8.0)
    return pd.DataFrame(
        {"age": age, "sex": sex, "visits": rng.poisson(np.where(sex == "Male", 1.0, 4.0))}
    )


@pytest.fixture(scope="module")
def model() -> fc.Density:
    return fc.learn(people(), label="sex", learner="mixture")


@pytest.fixture(scope="module")
def fed() -> fc.FederatedCircuit:
    rows = people()
    return fc.federate([rows[:80], rows[80:160], rows[160:]], label="sex", learner="factorised")


# --- how objects show themselves ------------------------------------------------------------------


def test_reprs_are_one_short_line(model: fc.Density, fed: fc.FederatedCircuit) -> None:
    shown: list[Any] = [
        model, model.schema, fed, fed.ledger, model.condition(age=fc.between(30, 40)),
        model.condition(sex="Male"), model.marginal(["age"]), model.schema.encode(people()),
    ]  # fmt: skip
    for each in shown:
        text = repr(each)
        assert "\n" not in text
        assert len(text) < 300, text
        assert text.startswith(type(each).__name__)


def test_reprs_name_what_matters(model: fc.Density, fed: fc.FederatedCircuit) -> None:
    assert "sex (categorical)" in repr(model.schema)
    assert "client-1, client-2, client-3" in repr(fed)
    assert f"{fed.ledger.n_bytes:,} bytes" in repr(fed.ledger)
    within = model.condition({"age": fc.between(30, 40), "visits": 2})
    assert "age within an event" in repr(within)
    assert "visits = 2" in repr(within) or "visits" not in within.schema


def test_an_einet_is_shown_in_one_line() -> None:
    pytest.importorskip("torch")
    made = fc.learn(people()[["age", "visits"]], learner="einet", epochs=1)
    assert "\n" not in repr(made)
    assert len(repr(made)) < 200


def test_notebooks_get_tables_of_why_a_rule_was_taken(fed: fc.FederatedCircuit) -> None:
    assert f"rule {fed.why.rule!r}" in fed.why._repr_html_().replace("&#x27;", "'")
    assert "<table" in fed.why._repr_html_()
    assert "\n" not in repr(fed.fitted)
    assert len(repr(fed.fitted)) < 200


def test_notebooks_get_tables(model: fc.Density, fed: fc.FederatedCircuit) -> None:
    odd = fc.learn(pd.DataFrame({"<b>x": [1.5, 2.5] * 20}), learner="factorised")
    shown: list[Any] = [model, model.schema, fed, fed.ledger, odd, model.condition(sex="Male")]
    for each in shown:
        html = each._repr_html_()
        assert html.count("<table") == html.count("</table>") == 1
        assert "<b>x" not in html  # names are escaped
    assert "client-1 (80 rows)" in fed._repr_html_()
    assert re.search(r"<td>age</td><td>continuous</td>", model._repr_html_())


# --- evidence -------------------------------------------------------------------------------------


def test_evidence_is_a_dict_a_series_or_a_frame_alike(model: fc.Density) -> None:
    as_dict = {"age": 40.0, "visits": 2}
    as_series, as_frame = pd.Series(as_dict, dtype=object), pd.DataFrame([as_dict])
    numbers = {
        "expectation": lambda g: model.expectation("age", {**g} if g is as_dict else g),
        "probability": lambda g: model.probability({"sex": "Male"}, g),
        "quantile": lambda g: model.quantile("age", 0.5, g),
        "variance": lambda g: model.variance("visits", g),
    }
    for ask in numbers.values():
        found = ask(as_dict)
        assert isinstance(found, float)
        assert ask(as_series) == pytest.approx(found)
        assert isinstance(ask(as_series), float)
        assert ask(as_frame).tolist() == [pytest.approx(found)]
    proba = model.predict_proba(as_frame, "sex").to_numpy()
    for given in (as_dict, as_series):
        np.testing.assert_allclose(model.predict_proba(given, "sex").to_numpy(), proba)
        np.testing.assert_allclose(model.log_prob(given), model.log_prob(as_frame))
        assert model.predict(given, "sex").tolist() == model.predict(as_frame, "sex").tolist()
        assert model.impute(given)["sex"].tolist() == model.impute(as_frame)["sex"].tolist()
        assert model.mpe(given)["sex"].tolist() == model.mpe(as_frame)["sex"].tolist()
        assert len(model.sample(3, given, seed=1)) == 3


def test_questions_about_one_row_take_it_in_every_form(model: fc.Density) -> None:
    as_dict = {"visits": 2}
    for given in (pd.Series(as_dict), pd.DataFrame([as_dict])):
        assert model.condition(given).schema.names == ("age", "sex")
        assert model.entropy("sex", given) == pytest.approx(model.entropy("sex", as_dict))
        found = model.mutual_information("age", "sex", given)
        assert found == pytest.approx(model.mutual_information("age", "sex", as_dict))
        pd.testing.assert_frame_equal(
            model.covariance(None, given), model.covariance(None, as_dict)
        )
    row = people().assign(name="x", visits=np.nan).iloc[3]  # a column more, and a gap
    assert "visits" in model.condition(row).schema
    with pytest.raises(QueryError, match="condition takes evidence of one row, found 240 rows"):
        model.condition(people())
    with pytest.raises(QueryError, match="condition takes values by name"):
        model.condition("age")


def test_a_misspelt_name_in_a_row_is_an_error(model: fc.Density) -> None:
    with pytest.raises(QueryError, match=r"no variable 'agee'.*did you mean 'age'"):
        model.log_prob({"agee": 40.0, "sex": "Male"})


def test_covariance_of_two_names_is_a_number(model: fc.Density) -> None:
    matrix = model.covariance(["age", "visits"], {"sex": "Male"})
    found = model.covariance("age", "visits", {"sex": "Male"})
    assert isinstance(found, float)
    assert found == pytest.approx(matrix.loc["age", "visits"])
    assert model.covariance("age", "age") == pytest.approx(model.variance("age"))
    with pytest.raises(QueryError, match="covariance takes two names or one list"):
        model.covariance(["age"], "visits")


# --- clients --------------------------------------------------------------------------------------


def test_a_list_of_tables_gets_names(fed: fc.FederatedCircuit, tmp_path: Path) -> None:
    assert fed.clients == ("client-1", "client-2", "client-3")
    for name, part in {"north": people()[:120], "south": people()[120:]}.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    files = [tmp_path / "north.csv", str(tmp_path / "south.csv")]
    assert fc.federate(files, learner="factorised").clients == ("north", "south")


def test_several_clients_leave_at_once(fed: fc.FederatedCircuit) -> None:
    rest = fed.without(["client-1", "client-3"])
    assert rest.clients == ("client-2",)
    one_by_one = fed.without("client-1").without("client-3")
    np.testing.assert_array_equal(rest.log_prob(people()), one_by_one.log_prob(people()))
    with pytest.raises(FederationError, match="did you mean 'client-1'"):
        fed.without("client-11")


def test_a_label_that_is_misspelt_is_recognised() -> None:
    with pytest.raises(LearningError, match=r"no column 'sexx'.*did you mean 'sex'"):
        fc.learn(people(), label="sexx")


# --- estimators -----------------------------------------------------------------------------------


def test_a_column_that_is_missing_is_summed_out() -> None:
    X, y = people().drop(columns="sex"), people()["sex"]
    made = fc.CircuitClassifier(learner="mixture").fit(X, y)
    found = made.predict_proba(X[["visits"]])
    expected = made.model_.predict_proba(X[["visits"]], made.label_)
    np.testing.assert_array_equal(found, expected)
    density = fc.CircuitDensity(learner="mixture").fit(X)
    np.testing.assert_allclose(
        density.score_samples(X[["visits"]]), density.model_.marginal(["visits"]).log_prob(X)
    )
    with pytest.raises(ValueError, match="unseen at fit time"):
        made.predict(X.rename(columns={"visits": "visit"}))


def test_options_of_the_learner_are_parameters() -> None:
    X, y = people().drop(columns="sex"), people()["sex"]
    made = fc.CircuitClassifier("mixture", n_states=2)
    assert made.get_params()["n_states"] == 2
    assert clone(made).get_params() == made.get_params()
    assert "n_states=2" in repr(made)
    same = fc.CircuitClassifier("mixture", options={"n_states": 2}).fit(X, y)
    np.testing.assert_array_equal(made.fit(X, y).predict_proba(X), same.predict_proba(X))
    search = GridSearchCV(fc.CircuitClassifier("mixture"), {"n_states": [1, 3]}, cv=2).fit(X, y)
    scores = search.cv_results_["mean_test_score"]
    best = [1, 3][int(np.argmax(scores))]
    assert search.best_estimator_.get_params()["n_states"] == best
    fewer, more = (
        fc.CircuitClassifier("mixture", n_states=n).fit(X, y).predict_proba(X) for n in (1, 3)
    )
    assert np.abs(fewer - more).max() > 1e-6  # the option reaches the learner
    with pytest.raises(ValueError, match=r"no parameter 'n_state';.*did you mean 'n_states'"):
        fc.CircuitClassifier("mixture", n_state=2).fit(X, y)
    with pytest.raises(ValueError, match=r"no parameter 'sed'.*did you mean 'seed'"):
        fc.CircuitClassifier("mixture").set_params(sed=2).fit(X, y)


def test_a_federated_classifier_splits_by_a_column() -> None:
    rows = people().assign(silo=np.repeat(["a", "b", "c"], 80))
    X, y = rows.drop(columns="sex"), rows["sex"]
    made = fc.FederatedClassifier(clients="silo", learner="mixture").fit(X, y)
    coded = rows.assign(sex=(rows["sex"] == "Male").astype(int)).rename(columns={"sex": "label"})
    fed = fc.federate(
        {n: part.drop(columns="silo") for n, part in coded.groupby("silo")},
        label="label", learner="mixture", kinds={"label": "categorical"},
    )  # fmt: skip
    without = X.drop(columns="silo")
    found = made.predict_proba(X)
    np.testing.assert_allclose(found, fed.predict_proba(without, "label"))
    np.testing.assert_array_equal(found, made.predict_proba(without))  # the silo is no variable
    assert made.score(X, y) > 0.7
    assert made.model_.clients == ("a", "b", "c")  # type: ignore[attr-defined]
    assert clone(made).get_params()["clients"] == "silo"
    with pytest.raises(ValueError, match=r"X has no column 'silos'.*did you mean 'silo'"):
        fc.FederatedClassifier(clients="silos").fit(X, y)
    with pytest.raises(ValueError, match="X is a DataFrame with a column 'silo'"):
        fc.FederatedClassifier(clients="silo").fit(X.to_numpy(), y)


def test_samples_drawn_in_blocks_are_as_many_and_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pd.DataFrame({"a": [1.5, 2.25, 3.125] * 20, "b": ["x", "y", "x"] * 20})
    model = fc.learn(rows, learner="mixture", seed=0)
    monkeypatch.setattr("fedcircuits.density.queries.completions.SAMPLED_AT_ONCE", 7)
    drawn = model.sample(20, seed=1)
    assert drawn.index.tolist() == list(range(20))
    pd.testing.assert_frame_equal(drawn, model.sample(20, seed=1))
    given = model.sample(5, given=pd.DataFrame({"b": ["x", "y"]}, index=[4, 9]), seed=2)
    assert given.index.tolist() == [4] * 5 + [9] * 5
    assert given["b"].tolist() == ["x"] * 5 + ["y"] * 5
    assert len(model.sample(0)) == 0
