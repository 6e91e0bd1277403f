"""The head of boosted trees: laws of the joint it makes, its estimates, its choice, storage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.density import DensityContract
from fedcircuits import encoding
from fedcircuits.circuits import Circuit
from fedcircuits.errors import LearningError, StorageError
from fedcircuits.learners.hclt.head.headed import completions
from fedcircuits.learners.hclt.head.headed.estimates import TypicalChange, estimate
from fedcircuits.learners.hclt.head.headed.headed_circuit import HeadedCircuit
from fedcircuits.learners.hclt.sample import Sample


def coded_rows(n: int, seed: int, numeric_label: bool = False) -> pd.DataFrame:
    """Three classes that depend on two columns at once; every column has few values."""
    rng = np.random.default_rng(seed)
    colour = rng.choice(["red", "green", "blue"], size=n, p=[0.5, 0.3, 0.2])
    grade = rng.choice([1, 2, 3, 4], size=n)
    flag = (rng.random(n) < 0.3 + 0.1 * grade).astype(int)
    score = (colour == "red") * (grade > 2) + (colour == "blue") * flag + 0.3 * rng.random(n)
    label = np.digitize(score, [0.2, 0.9])
    label = np.where(rng.random(n) < 0.15, rng.integers(0, 3, size=n), label)
    frame = pd.DataFrame({"colour": colour, "grade": grade, "flag": flag})
    return frame.assign(y=label if numeric_label else np.array(["low", "mid", "high"])[label])


def coded_model(
    numeric_label: bool = False, gaps: float = 0.0, learner: str = "hclt"
) -> fc.Density:
    frame = coded_rows(300, 0, numeric_label)
    features = ["colour", "grade", "flag"]
    hidden = np.random.default_rng(3).random((len(frame), len(features))) < gaps
    frame[features] = frame[features].mask(hidden)
    kinds = {"flag": "binary", "grade": "categorical"}
    options = {"n_states": 3, "head": True, "missing": "marginalise"}
    return fc.learn(frame, label="y", learner=learner, kinds=kinds, **options)


class TestHeadContract(DensityContract):
    """Every law by enumeration: with few completions all of them are summed, which is exact."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def all_listed(cls) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(completions, "LISTED", 10_000)
            yield

    @pytest.fixture(
        scope="class",
        params=[(False, 0.0, "hclt"), (True, 0.0, "mixture"), (True, 0.2, "hclt")],
        ids=["strings", "numbers", "gaps"],
    )
    @classmethod
    def density(cls, request: pytest.FixtureRequest) -> fc.Density:
        return coded_model(*request.param)


def crossed(n: int, seed: int) -> pd.DataFrame:
    """A label that no column tells alone, numbers that lean on each other, a count, a category."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=n)
    b = 0.6 * a + rng.normal(size=n)
    count = rng.poisson(2.0, size=n)
    town = rng.choice(["x", "y", "z"], size=n)
    margin = 3.0 * a * b + 0.4 * (town == "z") * (count - 2) + rng.logistic(size=n)
    return pd.DataFrame({"a": a, "b": b, "count": count, "town": town, "y": margin > 0})


@pytest.fixture(scope="module")
def model() -> HeadedCircuit:
    found = fc.learn(crossed(1200, 0), label="y", n_states=4)
    assert isinstance(found, HeadedCircuit)
    assert found.fit_report is not None
    assert found.fit_report.kept["head of trees kept"]
    return found


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return crossed(300, 1)


def masked(rows: pd.DataFrame, share: float) -> pd.DataFrame:
    hidden = np.random.default_rng(5).random(rows.shape) < share
    hidden[:, -1] = False
    hidden[:, 0] |= ~hidden.any(axis=1)
    return rows.mask(hidden)


def test_a_head_finds_what_no_column_tells_alone(model: HeadedCircuit) -> None:
    rows = crossed(3000, 2)
    hits = (model.predict(rows, "y") == rows["y"]).mean()
    additive = fc.learn(crossed(1200, 0), label="y", n_states=4, head=False)
    assert isinstance(additive, Circuit)
    assert additive.is_exact
    assert not model.is_exact
    assert hits > (additive.predict(rows, "y") == rows["y"]).mean() + 0.05


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_every_query_agrees(model: HeadedCircuit, rows: pd.DataFrame, share: float) -> None:
    asked = masked(rows, share).iloc[:20] if share else rows.iloc[:20]
    features = asked.drop(columns="y")
    proba, error = model.predict_proba(features, "y", with_error=True)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-12)
    assert (error.to_numpy() == 0).all() == (share == 0)
    log_x = model.log_prob(features)
    np.testing.assert_array_equal(log_x, model.base.log_prob(features))
    for y in (False, True):
        joint = np.exp(model.log_prob(features.assign(y=y)) - log_x)
        np.testing.assert_allclose(joint, proba[y], rtol=1e-9)
    for at in range(3):
        given = {k: v for k, v in features.iloc[at].items() if pd.notna(v)}
        if len(given) < features.shape[1]:
            answer = model.condition(given).predict_proba(pd.DataFrame(index=[0]), "y")
            np.testing.assert_allclose(answer.iloc[0], proba.iloc[at], rtol=1e-9)
        asked_of = features.iloc[[at]][list(given)]
        answer = model.marginal([*given, "y"]).predict_proba(asked_of, "y")
        np.testing.assert_allclose(answer.iloc[0], proba.iloc[at], rtol=1e-9)
    np.testing.assert_array_equal(
        model.predict(features, "y"), proba.columns[proba.to_numpy().argmax(axis=1)]
    )


def test_an_answer_does_not_depend_on_the_other_rows(
    model: HeadedCircuit, rows: pd.DataFrame
) -> None:
    gaps = masked(rows, 0.4).drop(columns="y")
    together = model.predict_proba(gaps, "y")
    alone = pd.concat([model.predict_proba(gaps.iloc[[at]], "y") for at in range(5)])
    np.testing.assert_allclose(together.iloc[:5], alone, rtol=1e-9)


def test_stated_errors_cover_what_many_samples_say(
    model: HeadedCircuit, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    covered = []
    for share in (0.2, 0.4, 0.7):
        # The same evidence has the same draws, and so counts once.
        gaps = masked(rows, share).drop(columns="y").drop_duplicates(ignore_index=True)
        proba, error = model.predict_proba(gaps, "y", with_error=True)
        with monkeypatch.context() as patch:
            patch.setattr(model._completer, "n_drawn", 600)
            many, small = model.predict_proba(gaps, "y", with_error=True)
        estimated = error[True] > 0
        away = (proba[True] - many[True])[estimated].abs()
        apart = np.hypot(error[True], small[True])[estimated]  # many samples have an error too
        covered.append(away <= 1.96 * apart)
        # Not by being wide: they are of the size of what they state.
        assert np.sqrt((error[True][estimated] ** 2).mean()) < 2 * np.sqrt((away**2).mean())
        assert small[True].mean() < error[True].mean() / 3
    assert np.concatenate(covered).mean() >= 0.95  # of about 680 rows


@pytest.mark.parametrize("column", ["town", "b"])
def test_stated_errors_given_the_label_cover(
    model: HeadedCircuit, rows: pd.DataFrame, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same evidence has the same draws, and so counts once.
    gaps = masked(rows, 0.5).drop(columns=column).drop_duplicates(ignore_index=True)

    def asked() -> tuple[np.ndarray, np.ndarray]:
        if column == "b":
            mean, error = model.expectation("b", gaps, with_error=True)
            return mean.to_numpy()[:, None], error.to_numpy()[:, None]
        proba, wide = model.predict_proba(gaps, column, with_error=True)
        return proba.to_numpy(), wide.to_numpy()

    answer, error = asked()
    drawn = model._given_label
    monkeypatch.setattr(type(model), "_given_label", lambda _, table: drawn(table, 1500))
    truth, _ = asked()
    estimated = error > 0
    inside = (np.abs(answer - truth) <= 1.96 * error)[estimated]
    assert estimated.mean() > 0.3
    assert inside.mean() >= 0.92


def test_draws_that_agree_state_an_error() -> None:
    """None of a few draws may meet the rare completion that changes much."""
    row, weight = np.zeros(8, dtype=np.int64), np.full(8, 1 / 8)
    log_half = np.log(np.array([[0.9, 0.1]]).repeat(8, axis=0))
    nothing = np.zeros((8, 1), dtype=np.int64)
    same = completions.Completions(
        row, weight, np.array([False]), log_half, log_half, nothing, nothing
    )
    typical = TypicalChange(
        np.array([[0.1, -0.1], [-0.1, 0.1]]), np.full(2, 0.5), np.full((1, 2), 0.5)
    )
    answer, error = estimate(np.array([[0.9, 0.1]]), same, 2.0, 8, typical)
    np.testing.assert_allclose(answer, [[0.9, 0.1]])
    assert typical.of_masses() == pytest.approx(0.02 / 0.5)
    assert (error > 0.01).all()


def test_samples_follow_the_head(model: HeadedCircuit) -> None:
    drawn = model.sample(6000, seed=1)
    expected = model.predict_proba(drawn, "y")[True].mean()
    assert drawn["y"].mean() == pytest.approx(expected, abs=0.03)
    given = model.sample(4000, {"town": "z", "y": True}, seed=2)
    assert (given["town"] == "z").all()
    assert given["y"].all()
    # p(a, b | y) puts a and b on the same side, which the circuit alone cannot know.
    joint = drawn[(drawn["town"] == "z") & drawn["y"]]
    same, same_joint = (f["a"] * f["b"] > 0 for f in (given, joint))
    assert same.mean() == pytest.approx(same_joint.mean(), abs=0.05)
    assert model.expectation("b", {"y": True, "a": 1.0}) == pytest.approx(
        model.sample(4000, {"y": True, "a": 1.0}, seed=3)["b"].mean(), abs=0.1
    )
    pd.testing.assert_frame_equal(model.sample(50, seed=4), model.sample(50, seed=4))


def test_a_head_of_noise_is_not_kept() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 4)), columns=list("abcd"))
    frame["y"] = rng.random(400) < 0.5
    found = fc.learn(frame, label="y", n_states=2)
    assert isinstance(found, Circuit)
    assert found.fit_report is not None
    assert found.fit_report.kept["head of trees kept"] is False


def test_a_class_with_few_rows_has_no_head() -> None:
    frame = crossed(200, 2).assign(y=["rare"] * 3 + ["often"] * 100 + ["too"] * 97)
    assert isinstance(fc.learn(frame, label="y", n_states=2), Circuit)
    with pytest.raises(LearningError, match="3 of the rarest class"):
        fc.learn(frame, label="y", n_states=2, head=True)


def test_leaves_have_as_many_rows_as_asked() -> None:
    few = fc.learn(crossed(600, 3), label="y", n_states=2, head=True, min_rows=150)
    assert isinstance(few, HeadedCircuit)
    # Trees of a line have one more, for missing values, which adds nothing.
    leaves = (few.trees.feature < 0) & (few.trees.value != 0)
    assert np.bincount(few.trees._tree_of[leaves]).max() <= 4


def test_a_head_is_the_same_after_a_file(model: HeadedCircuit, tmp_path: Path) -> None:
    model.save(tmp_path / "m.fc")
    again = fc.load(tmp_path / "m.fc")
    asked = masked(crossed(50, 7), 0.3).drop(columns="y")
    pd.testing.assert_frame_equal(model.predict_proba(asked, "y"), again.predict_proba(asked, "y"))
    assert again.fit_report == model.fit_report
    assert "trees with" in repr(again)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("trees.left", lambda a: np.zeros_like(a), "outside its tree"),
        ("trees.feature", lambda a: np.where(a >= 0, 99, a), "column 99"),
        ("trees.value", lambda a: a + np.inf, "finite"),
        ("trees.output", lambda a: a + 5, "range"),
        ("trees.baseline", lambda a: np.append(a, 0.0), "outputs"),
        ("tree.root", lambda a: 2 * a, "mass one"),
        ("tree.parent", lambda a: np.zeros_like(a), "shape"),
        ("pool.shift", lambda a: a[:1], "weights of the head"),
        ("pool.classes", lambda a: a[::-1].copy(), "classes of the head"),
    ],
)
def test_a_damaged_file_is_refused(
    model: HeadedCircuit, name: str, change: object, words: str
) -> None:
    record = model.to_record()
    arrays = {**record.arrays, name: change(record.arrays[name])}  # type: ignore[operator]
    with pytest.raises(StorageError, match=words):
        HeadedCircuit.from_record(encoding.Record(record.kind, record.header, arrays))


def test_no_log_odds_move_further_than_the_limit(model: HeadedCircuit, rows: pd.DataFrame) -> None:
    wild = replace(model, pool=replace(model.pool, trees=50.0))
    table = model.schema.encode(rows)
    tilt, head = wild._completer.complete(table)
    moved = (head[:, 1] - head[:, 0]) - (tilt[:, 1] - tilt[:, 0])
    assert np.abs(moved).max() <= model.pool.limit + 1e-9


def test_rows_of_one_class_are_judged_by_folds() -> None:
    codes = np.zeros((2000, 1), dtype=np.int32)
    labels = np.zeros(2000, dtype=np.int64)
    labels[:30] = 1
    rare = Sample(codes, np.ones(2000), labels)
    assert rare.decides_little
    assert rare.take(np.arange(400)).decides_little
    assert not Sample(codes, np.ones(2000), np.arange(2000) % 2).decides_little
    number = Sample(codes, np.ones(2000), labels, targets=labels.astype(float))
    assert not number.decides_little


def test_a_rare_class_has_a_head_where_it_pays() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8000, 5))
    margin = 2.5 * x[:, 0] * x[:, 1] - 7.5
    frame = pd.DataFrame(x, columns=list("abcde"))
    frame["y"] = rng.random(8000) < 1 / (1 + np.exp(-margin))
    assert frame["y"].mean() < 0.03
    model = fc.learn(frame, label="y", n_states=4, seed=0)
    assert isinstance(model, HeadedCircuit)
