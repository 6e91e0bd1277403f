"""`fc.learn` with the table learners: the contract on random mixed tables, and bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.density import DensityContract, worlds_of
from fedcircuits.errors import FedcircuitsError, FedcircuitsWarning, LearningError, SchemaError
from oracles.enumeration import Points, Worlds


def mixed(n: int, seed: int = 0, gaps: float = 0.0) -> pd.DataFrame:
    """A number with atoms, a count, a colour, a flag and a label that go together."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, size=n)
    number = np.where(rng.random(n) < 0.3, 0.0, rng.normal(2.0 * group, 1.0))
    frame = pd.DataFrame(
        {
            "number": number,
            "count": rng.poisson(1.0 + group),
            "colour": np.array(["red", "green", "blue"])[(group + (rng.random(n) < 0.3)) % 3],
            "label": np.where(rng.random(n) < 0.2 + 0.3 * group, "yes", "no"),
        }
    )
    return frame.mask(rng.random(frame.shape) < gaps) if gaps else frame


LEARNERS = ("hclt", "mixture", "learnspn", "factorised")


def worlds_with_counts(schema: fc.Schema) -> Worlds:
    """Worlds of a learned schema; counts and a number's tails far enough out to lose 1e-9."""
    points = {}
    for variable in schema:
        if variable.kind == "count" and variable.grid is not None and variable.grid.tails[1] > 0:
            raise ValueError("declare the domain of counts")
        points[variable.name] = (
            Points.of_values(variable.categories)
            if variable.is_coded
            else worlds_of(fc.Schema((variable,))).points[variable.name]
        )
    return Worlds(points)


class TestLearnedModels(DensityContract):
    """Every table learner's model is a density, whatever the table."""

    @pytest.fixture(
        scope="class",
        params=[(name, seed) for name in LEARNERS for seed in (0, 1)],
        ids=lambda p: f"{p[0]}-{p[1]}",
    )
    @classmethod
    def density(cls, request: pytest.FixtureRequest) -> fc.Density:
        name, seed = request.param
        rows = mixed(160, seed, gaps=0.05 if seed else 0.0)
        options: dict[str, Any] = {"learner": name, "seed": seed}
        if name in ("hclt", "mixture"):
            options |= {"label": "label", "n_bins": 3, "missing": "marginalise", "head": False}
        elif seed:
            rows = rows.dropna()
        return fc.learn(rows, domains={"count": (0, 12)}, **options)

    @pytest.fixture(scope="class")
    @classmethod
    def worlds(cls, density: fc.Density) -> Worlds:
        return worlds_with_counts(density.schema)


def assert_sound(model: fc.Density, rows: pd.DataFrame) -> None:
    """Finite log-densities on the training rows, and samples that the model finds possible."""
    rows = rows[[name for name in model.schema.names if name in rows.columns]]
    assert np.isfinite(model.log_prob(rows)).all()
    drawn = model.sample(5, seed=0)
    assert np.isfinite(model.log_prob(drawn)).all()


def warnings_of(model: fc.Density) -> str:
    assert model.fit_report is not None
    return " | ".join(model.fit_report.warnings)


@pytest.mark.parametrize("learner", ["hclt", "mixture"])
class TestBadInput:
    """Tables that are too small, too odd or wrong."""

    def test_one_row(self, learner: str) -> None:
        rows = mixed(1)
        model = fc.learn(rows, label="label", learner=learner)
        assert_sound(model, rows)
        assert "only 1 rows" in warnings_of(model)

    def test_no_row(self, learner: str) -> None:
        with pytest.raises(FedcircuitsError, match="row"):
            fc.learn(mixed(5).iloc[:0], learner=learner)

    def test_one_column(self, learner: str) -> None:
        rows = mixed(200)[["number"]]
        model = fc.learn(rows, learner=learner)
        assert_sound(model, rows)
        assert model.expectation("number") == pytest.approx(rows["number"].mean(), abs=0.2)

    def test_only_a_label(self, learner: str) -> None:
        with pytest.raises(LearningError, match="no column besides the label"):
            fc.learn(mixed(20)[["label"]], label="label", learner=learner)

    def test_one_feature_beside_the_label(self, learner: str) -> None:
        rows = mixed(300)[["number", "label"]]
        model = fc.learn(rows, label="label", learner=learner)
        assert_sound(model, rows)
        high = model.predict_proba(pd.DataFrame({"number": [-2.0, 5.0]}), "label")["yes"]
        assert high.iloc[1] > high.iloc[0]

    def test_a_constant_column(self, learner: str) -> None:
        rows = mixed(200).assign(same=3.5)
        model = fc.learn(rows, label="label", learner=learner)
        assert_sound(model, rows)
        assert "'same' is constant" in warnings_of(model)
        assert model.expectation("same") == pytest.approx(3.5, abs=0.2)

    def test_a_label_with_one_class(self, learner: str) -> None:
        rows = mixed(100).assign(label="yes")
        model = fc.learn(rows, label="label", learner=learner)
        assert_sound(model, rows)
        assert model.predict_proba(rows.iloc[:3], "label").to_numpy().tolist() == [[1.0]] * 3

    def test_a_class_with_two_rows(self, learner: str) -> None:
        rows = mixed(300)
        rows.loc[[4, 9], "label"] = "rare"
        model = fc.learn(rows, label="label", learner=learner)
        assert_sound(model, rows)
        proba = model.predict_proba(rows.drop(columns="label"), "label")
        assert (proba["rare"] > 0).all()
        assert proba["rare"].mean() == pytest.approx(2 / 300, abs=0.02)

    def test_a_class_without_rows(self, learner: str) -> None:
        rows = mixed(200)
        domains = {"label": ["no", "yes", "never"]}
        model = fc.learn(rows, label="label", learner=learner, domains=domains)
        proba = model.predict_proba(rows.drop(columns="label"), "label")
        assert (proba["never"] > 0).all()
        assert proba["never"].max() < 0.05

    @pytest.mark.slow
    def test_ten_thousand_categories(self, learner: str) -> None:
        rng = np.random.default_rng(0)
        rows = mixed(12_000).assign(place=[f"p{i}" for i in rng.integers(0, 10_000, size=12_000)])
        rows.loc[:9999, "place"] = [f"p{i}" for i in range(10_000)]
        fast = {"n_states": 4, "class_transitions": False, "head": False}
        kinds = {"place": "categorical"}  # it would be left out: most of its texts occur once
        model = fc.learn(rows, label="label", learner=learner, kinds=kinds, **fast)
        assert len(model.schema["place"].categories) == 10_000
        assert_sound(model, rows.iloc[:500])

    def test_ids_are_left_out_with_a_warning(self, learner: str) -> None:
        rows = mixed(200)
        rows = rows.assign(number_of_row=np.arange(200), name=[f"row {i}" for i in range(200)])
        with pytest.warns(FedcircuitsWarning, match="left out column") as caught:
            model = fc.learn(rows, label="label", learner=learner)
        assert model.schema.names == ("number", "count", "colour", "label")
        said = " ".join(str(warning.message) for warning in caught)
        assert "'number_of_row'" in said
        assert "'name'" in said

    def test_nothing_but_ids(self, learner: str) -> None:
        rows = pd.DataFrame({"name": [f"row {i}" for i in range(50)]})
        with pytest.raises(SchemaError, match="every column looks like an identifier"):
            fc.learn(rows, learner=learner)

    def test_a_column_without_a_value(self, learner: str) -> None:
        rows = mixed(50).assign(empty=np.nan)
        with pytest.warns(fc.FedcircuitsWarning, match="left out column 'empty': no value"):
            model = fc.learn(rows, label="label", learner=learner)
        assert "empty" not in model.schema.names

    def test_rows_without_a_value(self, learner: str) -> None:
        rows = mixed(100)
        rows.loc[:9, ["number", "count", "colour"]] = None
        for missing in ("state", "marginalise"):
            model = fc.learn(rows, label="label", learner=learner, missing=missing)
            assert_sound(model, rows)

    def test_a_label_that_is_sometimes_missing(self, learner: str) -> None:
        rows = mixed(100)
        rows.loc[:4, "label"] = None
        model = fc.learn(rows, label="label", learner=learner)
        assert "left out 5 row(s) without a value of the label" in warnings_of(model)

    def test_infinite_values_are_named(self, learner: str) -> None:
        rows = mixed(50)
        rows.loc[3, "number"] = np.inf
        with pytest.raises(SchemaError, match="'number'"):
            fc.learn(rows, label="label", learner=learner)

    def test_columns_that_repeat_each_other(self, learner: str) -> None:
        rows = mixed(400)
        rows = rows.assign(again=rows["number"], third=rows["number"])
        model = fc.learn(rows, label="label", learner=learner)
        assert_sound(model, rows)
        assert "'again' repeats 'number' value for value" in warnings_of(model)
        # A continuum that repeats itself has a ridge, but no infinite one.
        assert model.log_prob(rows).max() < 60

    def test_columns_that_all_but_repeat_each_other(self, learner: str) -> None:
        rows = mixed(400)
        noise = np.random.default_rng(1).normal(0, 1e-3, size=(400, 2))
        rows = rows.assign(near=rows["number"] ** 3 + noise[:, 0], apart=1e3 * noise[:, 1])
        rows["close"] = -rows["apart"] + noise[:, 0]
        model = fc.learn(rows, label="label", learner=learner)
        assert_sound(model, rows)
        told = warnings_of(model)
        assert "'close' follows 'apart' almost exactly (rank correlation -1.0000)" in told
        assert "'apart' follows" not in told
        assert model.log_prob(rows).max() < 60

    def test_an_unknown_treatment_of_missing_values(self, learner: str) -> None:
        with pytest.raises(LearningError, match="'state' or 'marginalise'"):
            fc.learn(mixed(50), label="label", learner=learner, missing="drop")


@pytest.mark.parametrize("learner", ["hclt", "mixture"])
def test_weights_count_like_repeated_rows(learner: str) -> None:
    rows = mixed(120)
    times = np.random.default_rng(1).integers(1, 4, size=120)
    weighted = fc.learn(rows, label="label", learner=learner, weights=times)
    repeated = fc.learn(rows.loc[np.repeat(rows.index, times)], label="label", learner=learner)
    np.testing.assert_allclose(weighted.log_prob(rows), repeated.log_prob(rows), rtol=1e-9)


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_same_seed_gives_the_same_model(learner: str) -> None:
    rows = mixed(150)
    one, two = (fc.learn(rows, learner=learner, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one.log_prob(rows), two.log_prob(rows))


@pytest.mark.parametrize("learner", ["hclt", "mixture"])
class TestMissing:
    """Missing cells in training: a state of their own, or summed out."""

    @pytest.fixture(scope="class")
    @classmethod
    def rows(cls) -> pd.DataFrame:
        """The number is missing in half of the rows of class yes, and never elsewhere."""
        rows = mixed(500)
        rng = np.random.default_rng(2)
        rows.loc[(rows["label"] == "yes") & (rng.random(500) < 0.5), "number"] = np.nan
        return rows

    def test_missingness_is_a_state_by_default(self, learner: str, rows: pd.DataFrame) -> None:
        model = fc.learn(rows, label="label", learner=learner)
        assert model.schema["number"].missing_state
        assert not model.schema["colour"].missing_state
        seen_missing = pd.DataFrame({"number": pd.Series([fc.MISSING], dtype=object)})
        told = model.predict_proba(seen_missing, "label")["yes"].iloc[0]
        assert told > 0.9
        # Missing when asked is not known: it tells nothing.
        unknown = model.predict_proba(pd.DataFrame({"number": [np.nan]}), "label")["yes"].iloc[0]
        share = (rows["label"] == "yes").mean()
        assert unknown == pytest.approx(share, abs=0.05)

    def test_gaps_that_tell_the_label_are_reported(self, learner: str, rows: pd.DataFrame) -> None:
        at_random = rows.assign(colour=rows["colour"].mask(np.arange(500) % 5 == 0))
        model = fc.learn(at_random, label="label", learner=learner)
        assert model.fit_report is not None
        (warning,) = (w for w in model.fit_report.warnings if "lacks a value" in w)
        assert warning.startswith("that 'number' lacks a value says something about 'label'")
        told = model.predict_proba(model.schema.mark_missing(rows), "label")["yes"]
        assert told[rows["number"].isna()].min() > 0.9

    def test_marginalised_missingness_says_nothing(self, learner: str, rows: pd.DataFrame) -> None:
        model = fc.learn(rows, label="label", learner=learner, missing="marginalise")
        assert not model.schema["number"].missing_state
        with pytest.raises(SchemaError, match="number"):
            model.log_prob(pd.DataFrame({"number": pd.Series([fc.MISSING], dtype=object)}))

    def test_the_state_has_the_share_of_the_missing(self, learner: str, rows: pd.DataFrame) -> None:
        model = fc.learn(rows, label="label", learner=learner)
        seen_missing = pd.DataFrame({"number": pd.Series([fc.MISSING], dtype=object)})
        p = float(np.exp(model.log_prob(seen_missing).iloc[0]))
        assert p == pytest.approx(rows["number"].isna().mean(), abs=0.03)


@pytest.mark.parametrize("learner", ["hclt", "mixture"])
def test_the_report_says_what_was_chosen(learner: str) -> None:
    seen: list[float] = []
    # Tables of few rows try class transitions only if asked to.
    options = {"class_transitions": True} if learner == "hclt" else {}
    model = fc.learn(
        mixed(600),
        label="label",
        learner=learner,
        progress=lambda done, _: seen.append(done),
        **options,
    )
    report = model.fit_report
    assert report is not None
    assert report.learner == learner
    assert report.seconds > 0
    assert {"states", "bins", "training rows", "validation rows", "EM steps"} <= set(report.sizes)
    assert report.sizes["training rows"] == 600
    assert len(report.curve) > 1
    assert report.curve[-1] > report.curve[0]
    assert isinstance(report.kept["head of trees kept"], bool)
    assert isinstance(report.kept["head of trees, gain in held-out log-loss"], float)
    if learner == "hclt":
        assert isinstance(report.kept["class transitions kept"], bool)
        assert isinstance(report.kept["class transitions, gain in validation log-loss"], float)
    assert seen[0] == 0.0
    assert seen[-1] == 1.0


def test_sizes_can_be_overridden() -> None:
    model = fc.learn(mixed(300), label="label", n_states=5, n_bins=7, n_iterations=3, smoothing=0.5)
    report = model.fit_report
    assert report is not None
    assert report.sizes["states"] == 5
    assert report.sizes["smoothing"] == 0.5
    assert report.sizes["EM steps"] <= 3


def test_reported_likelihoods_are_on_the_scale_of_mean_log_prob() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=800)
    frame = pd.DataFrame({"x": 1e-3 * x, "y": 50 * x + rng.normal(size=800)})
    model = fc.learn(frame, seed=0)
    assert model.fit_report is not None
    on_rows = model.mean_log_prob(frame)
    assert model.fit_report.curve[-1] == pytest.approx(on_rows, abs=0.1)
    validation = [v for k, v in model.fit_report.kept.items() if "validation log-lik" in k]
    assert max(validation) == pytest.approx(on_rows, abs=0.5)


@pytest.mark.parametrize(
    ("n", "n_states"), [(6000, None), pytest.param(30_000, 8, marks=pytest.mark.slow)]
)
def test_the_model_does_not_depend_on_the_number_of_threads(n: int, n_states: int | None) -> None:
    # The second table has several blocks of rows, which threads share.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4))
    y = np.where(x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=n) > 0, "yes", "no")
    data = pd.DataFrame(x, columns=list("abcd")).assign(e=rng.choice(list("pq"), n), y=y)
    one, two = (
        fc.learn(data, "y", seed=0, n_jobs=jobs, n_states=n_states).to_record().arrays
        for jobs in (1, 2)
    )
    assert one.keys() == two.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name], err_msg=name)
    with pytest.raises(LearningError, match="n_jobs"):
        fc.learn(data, "y", n_jobs=0)
