"""Trees as client classifiers: the same answers as scikit-learn, from plain arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from fedcircuits import Schema
from fedcircuits.encoding import pack, unpack
from fedcircuits.errors import LearningError, QueryError, SchemaError, StorageError
from fedcircuits.learners.trees import ForestClassifier, TreeClassifier, Trees


def frame(rng: np.random.Generator, n: int = 500, gaps: float = 0.0) -> pd.DataFrame:
    x, z = rng.normal(size=n), rng.poisson(3, n)
    c = rng.choice(["a", "b", "c", "d"], n)
    score = x + 0.4 * z + (c == "b") * 1.5 + rng.normal(size=n) * 0.5
    y = np.array(["low", "mid", "high"])[np.digitize(score, [0.8, 2.0])]
    data = pd.DataFrame({"x": x, "z": z, "c": c, "flag": rng.integers(0, 2, n), "y": y})
    lost = rng.random((n, 4)) < gaps
    return pd.concat([data[["x", "z", "c", "flag"]].mask(lost), data[["y"]]], axis=1)


def encoded(data: pd.DataFrame):
    schema = Schema.infer(data)
    return schema, schema.encode(data)


@pytest.mark.parametrize("gaps", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
class TestParity:
    """Without smoothing, the posterior is scikit-learn's predict_proba."""

    def reference(self, model, fitted, table, test):
        at = table.schema.position("y")
        y = table.values[:, at].astype(int)
        model.fit(fitted.features.inputs(table), y, sample_weight=table.weights)
        return model.predict_proba(fitted.features.inputs(test))

    def tables(self, rng, gaps, weighted):
        schema, table = encoded(frame(rng, gaps=gaps))
        if weighted:
            table = replace(table, weights=rng.random(len(table)) + 0.1)
        return table, schema.encode(frame(rng, 300, gaps))

    def test_tree(self, rng, gaps, weighted):
        table, test = self.tables(rng, gaps, weighted)
        fitted = TreeClassifier(min_leaf=3, smoothing=0).fit_classifier(
            table, "y", np.random.default_rng(4)
        )
        seed = int(np.random.default_rng(4).integers(2**31 - 1))
        model = DecisionTreeClassifier(min_samples_leaf=3, random_state=seed)
        expected = self.reference(model, fitted, table, test)
        assert fitted.posterior(test) == pytest.approx(expected, abs=1e-12)

    def test_forest(self, rng, gaps, weighted):
        table, test = self.tables(rng, gaps, weighted)
        fitted = ForestClassifier(12, smoothing=0).fit_classifier(
            table, "y", np.random.default_rng(4)
        )
        seed = int(np.random.default_rng(4).integers(2**31 - 1))
        model = RandomForestClassifier(12, min_samples_leaf=5, random_state=seed)
        expected = self.reference(model, fitted, table, test)
        assert fitted.n_trees == 12
        assert fitted.posterior(test) == pytest.approx(expected, abs=1e-12)


def test_thresholds_are_met_in_scikit_learns_precision(rng):
    # Numbers that differ in float64 only: both sides must round alike.
    x = 1e7 + rng.integers(0, 50, 400) * 0.25
    data = pd.DataFrame({"x": x, "y": np.where(x > 1e7 + 6, "a", "b")})
    schema, table = encoded(data)
    fitted = TreeClassifier(min_leaf=1, smoothing=0).fit_classifier(
        table, "y", np.random.default_rng(0)
    )
    model = DecisionTreeClassifier(random_state=0)
    inputs = fitted.features.inputs(table)
    codes = table.values[:, schema.position("y")].astype(int)
    expected = model.fit(inputs, codes).predict_proba(inputs)
    assert fitted.posterior(table) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("learner", [TreeClassifier(), ForestClassifier(10)])
class TestAnswers:
    def test_probabilities_are_positive_and_sum_to_one(self, learner, rng):
        schema, table = encoded(frame(rng))
        p = learner.fit_classifier(table, "y", rng).predict_proba(frame(rng, 100))
        assert p.columns.tolist() == ["high", "low", "mid"]
        assert p.to_numpy().sum(axis=1) == pytest.approx(np.ones(100))
        assert (p.to_numpy() > 0).all()
        assert len(schema) == 5

    def test_better_than_the_class_shares(self, learner, rng):
        _, table = encoded(frame(rng, 2000))
        test = frame(rng, 500)
        best = learner.fit_classifier(table, "y", rng).predict_proba(test).idxmax(axis=1)
        assert (best == test["y"]).mean() > 0.7

    def test_the_label_is_not_looked_at(self, learner, rng):
        _, table = encoded(frame(rng))
        fitted = learner.fit_classifier(table, "y", rng)
        test = frame(rng, 50)
        without = fitted.predict_proba(test[["c", "flag", "z", "x"]])
        pd.testing.assert_frame_equal(without, fitted.predict_proba(test.assign(y="low")))
        coded = fitted.posterior(table.schema.encode(test.assign(y="low")))
        assert np.array_equal(coded, without.to_numpy())

    def test_saving_and_loading_changes_no_answer(self, learner, rng, tmp_path):
        _, table = encoded(frame(rng, gaps=0.1))
        fitted = learner.fit_classifier(table, "y", rng)
        fitted.save(tmp_path / "trees.fc")
        again = Trees.load(tmp_path / "trees.fc")
        assert again.classes == fitted.classes
        assert np.array_equal(again.posterior(table), fitted.posterior(table))

    def test_same_seed_same_trees(self, learner, rng):
        _, table = encoded(frame(rng))
        one, two = (learner.fit_classifier(table, "y", np.random.default_rng(3)) for _ in range(2))
        assert pack(one.to_record()) == pack(two.to_record())

    def test_absent_columns_are_missing(self, learner, rng):
        _, table = encoded(frame(rng))
        p = learner.fit_classifier(table, "y", rng).predict_proba(pd.DataFrame({"x": [0.0, 3.0]}))
        assert p.to_numpy().sum(axis=1) == pytest.approx([1, 1])

    def test_rows_without_a_label_or_a_weight_do_not_count(self, learner, rng):
        data = frame(rng)
        schema, table = encoded(data)
        observed, weights = table.observed.copy(), np.ones(len(table))
        observed[:50, schema.position("y")] = False
        weights[50:100] = 0
        partial = replace(table, observed=observed, weights=weights)
        kept = replace(table.rows(slice(100, None)), weights=np.ones(len(table) - 100))
        rng_of = np.random.default_rng
        one, two = (learner.fit_classifier(t, "y", rng_of(3)) for t in (partial, kept))
        assert np.array_equal(one.posterior(table), two.posterior(table))

    def test_one_class_is_certain(self, learner, rng):
        data = frame(rng).assign(y="low")
        _, table = encoded(data)
        p = learner.fit_classifier(table, "y", rng).predict_proba(data)
        assert (p["low"] == 1).all()


class TestMapping:
    def test_a_class_that_never_occurs_has_a_column(self, rng):
        data = frame(rng)
        schema = Schema.infer(data, domains={"y": ["low", "mid", "high", "never"]})
        fitted = TreeClassifier().fit_classifier(schema.encode(data), "y", rng)
        assert fitted.classes == ("low", "mid", "high", "never")
        assert (fitted.predict_proba(data)["never"] == 0).all()

    def test_smoothing_mixes_the_class_shares_into_a_leaf(self):
        data = pd.DataFrame({"x": [0.0, 1.0] * 30, "y": ["a", "b"] * 30})
        _, table = encoded(data)
        fitted = TreeClassifier(smoothing=6).fit_classifier(table, "y", np.random.default_rng(0))
        p = fitted.predict_proba(pd.DataFrame({"x": [0.0]}))
        assert p.loc[0].tolist() == pytest.approx([(30 + 3) / 36, 3 / 36])

    def test_rare_categories_share_the_absence_of_an_indicator(self, rng):
        data = pd.DataFrame({"c": [f"k{i % 200}" for i in range(4000)]})
        data["y"] = np.where(data["c"].isin(["k0", "k1"]), "a", "b")
        _, table = encoded(data)
        fitted = ForestClassifier(5).fit_classifier(table, "y", rng)
        assert fitted.features.variable.size == 64

    def test_observed_as_missing_is_a_missing_input(self, rng):
        data = frame(rng, gaps=0.3)
        inferred = Schema.infer(data)
        schema = inferred.with_variables(
            [replace(inferred["x"], missing_state=True), replace(inferred["c"], missing_state=True)]
        )
        table = schema.encode(data, missing_as_state=True)
        fitted = TreeClassifier().fit_classifier(table, "y", np.random.default_rng(0))
        plain = TreeClassifier().fit_classifier(
            inferred.encode(data), "y", np.random.default_rng(0)
        )
        assert np.array_equal(fitted.posterior(table), plain.posterior(inferred.encode(data)))

    def test_other_codes_are_refused(self, rng):
        data = frame(rng)
        _, table = encoded(data)
        fitted = TreeClassifier().fit_classifier(table, "y", rng)
        other = Schema.infer(data, domains={"c": ["d", "c", "b", "a"]}).encode(data)
        with pytest.raises(SchemaError, match="'c'"):
            fitted.posterior(other)


class TestRefusals:
    def test_a_number_is_no_label(self, rng):
        _, table = encoded(frame(rng))
        with pytest.raises(QueryError, match="'x' is continuous"):
            TreeClassifier().fit_classifier(table, "x", rng)

    def test_an_unknown_label(self, rng):
        _, table = encoded(frame(rng))
        with pytest.raises(QueryError, match="no variable 'nope'"):
            TreeClassifier().fit_classifier(table, "nope", rng)

    def test_a_label_alone(self, rng):
        _, table = encoded(frame(rng)[["y"]])
        with pytest.raises(LearningError, match="no column besides"):
            TreeClassifier().fit_classifier(table, "y", rng)

    def test_no_labelled_row(self, rng):
        schema, table = encoded(frame(rng))
        observed = table.observed.copy()
        observed[:, schema.position("y")] = False
        with pytest.raises(LearningError, match="not one row"):
            TreeClassifier().fit_classifier(replace(table, observed=observed), "y", rng)

    @pytest.mark.parametrize(
        ("name", "change", "fault"),
        [
            ("left", lambda a: np.zeros_like(a), "child"),
            ("right", lambda a: a + 10_000, "child"),
            ("feature", lambda a: a - 5, "input column"),
            ("value", lambda a: a * 2, "sum to one"),
            ("value", lambda a: a[:, :1], "numbers a node"),
            ("first", lambda a: a + 10_000, "root"),
            ("threshold", lambda a: a[:-1], "one entry a node"),
            ("threshold", lambda a: a.astype(np.float32), "float64"),
            ("variable", lambda a: a + 99, "no variable"),
        ],
    )
    def test_damaged_files(self, rng, name, change, fault):
        _, table = encoded(frame(rng))
        record = TreeClassifier().fit_classifier(table, "y", rng).to_record()
        record.arrays[name] = change(record.arrays[name])
        with pytest.raises(StorageError, match=fault):
            Trees.from_record(unpack(pack(record)))
