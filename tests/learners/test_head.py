"""The head of trees: laws of the joint it makes, boxes against enumeration, storage, its choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.density import DensityContract, worlds_of
from fedcircuits import encoding
from fedcircuits.circuits import Circuit
from fedcircuits.errors import StorageError, StructureError
from fedcircuits.learners.hclt.head.choose_head import HeadTrial, choose_head, mean_auc
from fedcircuits.learners.hclt.head.forest import Forest
from fedcircuits.learners.hclt.head.grow import Trees, grow, interacting, joined, state_ranks
from fedcircuits.learners.hclt.head.head import HeadedCircuit
from fedcircuits.learners.hclt.sample import Sample
from fedcircuits.learners.prepare import column_codes


def mixed_rows(n: int, seed: int, numeric_label: bool = False) -> pd.DataFrame:
    """Three classes that depend on a colour and a number at once."""
    rng = np.random.default_rng(seed)
    colour = rng.choice(["red", "green", "blue"], size=n, p=[0.5, 0.3, 0.2])
    size = np.where(rng.random(n) < 0.25, 2.0, np.round(rng.gamma(2.0, 1.5, size=n), 2))
    flag = (rng.random(n) < 0.3 + 0.4 * (size > 3)).astype(int)
    score = (colour == "red") * (size > 2.5) + (colour == "blue") * flag + 0.3 * rng.random(n)
    label = np.digitize(score, [0.2, 0.9])
    label = np.where(rng.random(n) < 0.15, rng.integers(0, 3, size=n), label)
    frame = pd.DataFrame({"colour": colour, "size": size, "flag": flag})
    return frame.assign(y=label if numeric_label else np.array(["low", "mid", "high"])[label])


def headed(numeric_label: bool = False, gaps: float = 0.0, learner: str = "hclt") -> HeadedCircuit:
    """A learned model with a forced head, on a coarse grid so that worlds can be enumerated."""
    frame = mixed_rows(300, 0, numeric_label)
    features = ["colour", "size", "flag"]
    hidden = np.random.default_rng(3).random((len(frame), len(features))) < gaps
    frame[features] = frame[features].mask(hidden)
    options = {"n_states": 3, "n_bins": 3, "head": True, "missing": "marginalise"}
    kinds = {"flag": "binary"}
    model = fc.learn(frame, label="y", learner=learner, kinds=kinds, **options)
    assert isinstance(model, HeadedCircuit)
    return model


class TestHeadContract(DensityContract):
    """Mass one, marginals, conditionals, moments, samples, storage: by enumeration."""

    @pytest.fixture(
        scope="class",
        params=[(False, 0.0, "hclt"), (True, 0.0, "mixture"), (True, 0.2, "hclt")],
        ids=["strings", "numbers", "gaps"],
    )
    @classmethod
    def density(cls, request: pytest.FixtureRequest) -> fc.Density:
        return headed(*request.param)


@pytest.fixture(scope="module")
def model() -> HeadedCircuit:
    return headed(numeric_label=True)


def tree_mean(model: HeadedCircuit, rows: pd.DataFrame) -> np.ndarray:
    """(n, Y) sum of w_i q_i(y | x) of complete rows, leaf by leaf from the boxes."""
    forest = model.forest
    table = model.schema.encode(rows)
    low, high = forest.boxes
    answer = np.zeros((len(rows), forest.values.shape[1]))
    for leaf in np.flatnonzero(forest.column < 0):
        inside = np.ones(len(rows), dtype=bool)
        for at, variable in enumerate(model.schema):
            if variable.name != model.label:
                rank = forest.ranks[at][column_codes(variable, table.values[:, at])]
                inside &= (rank >= low[leaf, at]) & (rank < high[leaf, at])
        answer[inside] += forest.weights[forest.tree_of[leaf]] * forest.values[leaf]
    return answer


def test_the_posterior_is_the_average_of_posteriors(model: HeadedCircuit) -> None:
    rows = mixed_rows(200, 5, numeric_label=True).drop(columns="y")
    own = model.base.predict_proba(rows, "y").to_numpy()
    expected = model.base_weight * own + tree_mean(model, rows)
    np.testing.assert_allclose(model.predict_proba(rows, "y"), expected, rtol=1e-12)


def test_the_marginal_of_x_is_the_circuits_own(model: HeadedCircuit) -> None:
    rows = mixed_rows(50, 6, numeric_label=True).drop(columns="y")
    np.testing.assert_array_equal(model.log_prob(rows), model.base.log_prob(rows))
    marginal = model.marginal(["size", "flag"])
    assert isinstance(marginal, Circuit)


def test_posterior_with_gaps_is_the_sum_over_the_missing(model: HeadedCircuit) -> None:
    worlds = worlds_of(model.schema)
    p = np.exp(model.log_prob(worlds.frame).to_numpy())
    for keep in (["size"], ["colour", "flag"], ["flag"], []):
        joint = worlds.sum_out(p, [*keep, "y"]).reshape(-1, 3)
        rows = worlds.only(keep).frame if keep else pd.DataFrame(index=[0])
        expected = joint / joint.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(model.predict_proba(rows, "y"), expected, rtol=1e-9)


def test_variance_and_covariance_given_the_label_by_enumeration(model: HeadedCircuit) -> None:
    worlds = worlds_of(model.schema)
    mass = np.exp(model.log_prob(worlds.frame).to_numpy()) * worlds.weights
    for given in ({"y": 2}, {"y": 0, "colour": "blue"}):
        here = np.ones(len(mass), dtype=bool)
        for name, value in given.items():
            here &= (worlds.frame[name] == value).to_numpy()
        p = np.where(here, mass, 0.0) / mass[here].sum()
        x = worlds.frame[["size", "flag"]].to_numpy(dtype=float)
        centred = x - p @ x
        expected = (centred * p[:, None]).T @ centred
        np.testing.assert_allclose(model.covariance(["size", "flag"], given), expected, rtol=1e-8)
        assert model.variance("size", given) == pytest.approx(expected[0, 0], rel=1e-8)


def test_no_pass_for_a_gap_no_tree_asks_about(
    model: HeadedCircuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    forest = model.forest
    only_size = model.schema.position("size")
    keep = [t for t in range(forest.roots.size) if _columns(forest, t) <= {only_size}]
    asks_one = replace(model, forest=_subset(model, keep or [0]))
    called: list[int] = []
    passes = asks_one._passes
    monkeypatch.setattr(
        type(passes), "log_prob", lambda *_args: called.append(1) or np.zeros(len(_args[2]))
    )
    asked = set().union(*(_columns(asks_one.forest, t) for t in range(len(keep or [0]))))
    free = [v.name for at, v in enumerate(model.schema) if at not in asked and v.name != "y"]
    rows = mixed_rows(20, 3, numeric_label=True).drop(columns=["y", *free])
    asks_one.predict_proba(rows, "y")
    assert called == []


def _columns(forest: Forest, tree: int) -> set[int]:
    mine = forest.column[(forest.tree_of == tree) & (forest.column >= 0)]
    return set(map(int, mine))


def _subset(model: HeadedCircuit, trees: list[int]) -> Forest:
    """Some of the trees, numbered anew."""
    forest = model.forest
    nodes = np.flatnonzero(np.isin(forest.tree_of, trees))
    new = np.full(forest.column.size + 1, -1)
    new[nodes] = np.arange(nodes.size)
    return Forest(
        ranks=forest.ranks,
        roots=new[forest.roots[trees]],
        weights=forest.weights[trees],
        column=forest.column[nodes],
        cut=forest.cut[nodes],
        left=new[forest.left[nodes]],
        right=new[forest.right[nodes]],
        values=forest.values[nodes],
    )


class TestForest:
    """Trees over states."""

    @pytest.fixture(scope="class")
    @classmethod
    def rows(cls) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(1)
        codes = np.stack([rng.integers(0, k, size=400) for k in (4, 3, 6)], axis=1)
        labels = ((codes[:, 0] > 1) ^ (codes[:, 2] > 2)).astype(np.int64)
        return codes, labels

    @pytest.fixture(scope="class")
    @classmethod
    def forest(cls, rows: tuple[np.ndarray, np.ndarray]) -> Forest:
        codes, labels = rows
        ordered = np.array([True, False, True])
        weights = np.ones(len(codes))
        ranks = state_ranks(codes, (4, 3, 6), ordered, labels, weights)
        rng = np.random.default_rng(0)
        parts = [
            grow(Trees(3, 8), ranks, codes, labels, 2, weights, rng),
            grow(Trees(2, 8, (0, 2)), ranks, codes, labels, 2, weights, rng),
        ]
        return joined(parts, np.array([0.3, 0.5]))

    def test_every_complete_row_meets_one_leaf_of_every_tree(
        self, forest: Forest, rows: tuple[np.ndarray, np.ndarray]
    ) -> None:
        row, leaf, asked = forest.reached(rows[0])
        assert not asked.any()
        key = row * forest.roots.size + forest.tree_of[leaf]
        np.testing.assert_array_equal(np.sort(key), np.arange(len(rows[0]) * forest.roots.size))

    def test_a_gap_meets_all_leaves_its_completions_meet(self, forest: Forest) -> None:
        gappy = np.array([[1, -1, -1]])
        met = set(forest.reached(gappy)[1])
        completions = np.array([[1, b, c] for b in range(3) for c in range(6)])
        assert met == set(forest.reached(completions)[1])

    def test_weights_are_shares_of_the_groups(self, forest: Forest) -> None:
        np.testing.assert_allclose(forest.weights, [0.1, 0.1, 0.1, 0.25, 0.25])

    def test_trees_learn_an_exclusive_or(
        self, forest: Forest, rows: tuple[np.ndarray, np.ndarray]
    ) -> None:
        codes, labels = rows
        assert (forest.proba(codes).argmax(axis=1) == labels).mean() > 0.95

    def test_columns_that_interact_are_found(self, rows: tuple[np.ndarray, np.ndarray]) -> None:
        codes, labels = rows
        target = np.eye(2)[labels]
        ranks = tuple(np.arange(k) for k in (4, 3, 6))
        half = np.full(target.shape, 0.5)
        group, score = interacting(ranks, codes, target, half, np.random.default_rng(0))
        assert group == (0, 2)
        assert score > 20


def damaged(model: HeadedCircuit, name: str, value: object) -> encoding.Record:
    record = model.to_record()
    array = record.arrays[f"head.{name}"].copy()
    array.flat[0] = value
    return encoding.Record(record.kind, record.header, {**record.arrays, f"head.{name}": array})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("left", 0, "parents before children"),
        ("column", 77, "a column that does not exist"),
        ("cut", 10_000, "nothing on one side"),
        ("values", -3.0, "do not fit|probabilities|not valid"),
        ("ranks", 99, "number the states"),
        ("weights", 9.0, "sum to"),
    ],
)
def test_a_damaged_head_is_refused(
    model: HeadedCircuit, name: str, value: object, words: str
) -> None:
    record = damaged(model, name, value)
    if name == "values":
        leaf = int(np.flatnonzero(model.forest.column < 0)[0])
        record.arrays["head.values"][0] = model.forest.values[0]
        record.arrays["head.values"][leaf] = -3.0
    with pytest.raises((StorageError, StructureError), match=words):
        HeadedCircuit.from_record(record)


def test_a_head_needs_tables_of_states(model: HeadedCircuit) -> None:
    schema = fc.Schema((fc.Variable("u", "continuous"), fc.Variable("y", "binary", (0, 1))))
    leaves = [fc.build.gaussian("u", 0.0, 1.0), fc.build.bernoulli("y", 0.3)]
    circuit = fc.build.circuit(schema, fc.build.product(leaves))
    with pytest.raises(StructureError, match="tables of states"):
        HeadedCircuit(circuit, "y", model.forest)


def exclusive_or(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4))
    y = ((x[:, 0] > 0) ^ (x[:, 1] > 0)) ^ (rng.random(n) < 0.1)
    return pd.DataFrame(x, columns=list("abcd")).assign(y=np.where(y, "yes", "no"))


class TestChoice:
    """A head is kept where validation rows speak for it, and the report says so."""

    def test_it_is_kept_where_the_class_is_an_exclusive_or(self, tmp_path: Path) -> None:
        model = fc.learn(exclusive_or(1500, 0), label="y")
        assert isinstance(model, HeadedCircuit)
        assert model.fit_report is not None
        kept = model.fit_report.kept
        assert kept["head of trees kept"] is True
        assert kept["head of trees, gain in validation AUC"] > 0.2
        assert "a and b" in kept["head of trees"]
        test = exclusive_or(1000, 1)
        right = (model.predict(test, "y") == test["y"]).mean()
        assert right > 0.85
        model.save(tmp_path / "model.fc")
        again = fc.load(tmp_path / "model.fc")
        assert again.fit_report == model.fit_report

    def test_it_is_not_kept_where_the_class_is_additive(self) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(1500, 3))
        y = x @ [1.0, -1.0, 0.5] + rng.logistic(size=1500) > 0
        model = fc.learn(pd.DataFrame(x, columns=list("abc")).assign(y=y), label="y")
        assert isinstance(model, Circuit)
        assert model.fit_report is not None
        assert model.fit_report.kept["head of trees kept"] is False
        assert model.fit_report.kept["head of trees, gain in validation AUC"] < 0.01

    def test_it_can_be_forbidden(self) -> None:
        model = fc.learn(exclusive_or(600, 0), label="y", head=False)
        assert isinstance(model, Circuit)
        assert model.fit_report is not None
        assert "head of trees kept" not in model.fit_report.kept

    def test_the_same_seed_gives_the_same_head(self) -> None:
        rows = exclusive_or(600, 0)
        one, two = (fc.learn(rows, label="y", seed=4, head=True, n_states=3) for _ in range(2))
        pd.testing.assert_frame_equal(one.predict_proba(rows, "y"), two.predict_proba(rows, "y"))


class TestRule:
    """A head stays if it gains .001 AUC, and with class transitions more than .002 in all."""

    CARDS, ORDERED = (4, 4, 3), np.array([True, True, False])

    @classmethod
    def trial(cls, plain_auc: float) -> tuple[HeadTrial, float]:
        """A head beside a model that knows nothing, and that model's AUC."""
        rng = np.random.default_rng(0)
        codes = np.stack([rng.integers(0, card, size=3000) for card in cls.CARDS], axis=1)
        labels = ((codes[:, 0] > 1) ^ (codes[:, 1] > 1) ^ (rng.random(3000) < 0.3)).astype(np.int64)
        proba = np.tile(rng.uniform(0.4, 0.6, size=(3000, 1)), 2)
        proba[:, 1] = 1 - proba[:, 0]
        parts = slice(0, 2000), slice(2000, 3000)
        train, held = (Sample(codes[p], np.ones(len(codes[p])), labels[p]) for p in parts)
        both = (proba[parts[0]], proba[parts[1]])
        found = choose_head(both, plain_auc, train, held, cls.CARDS, cls.ORDERED, False, rng)
        return found, mean_auc(proba[parts[1]], labels[parts[1]])

    @pytest.mark.parametrize(("beyond", "kept"), [(0.0021, True), (0.0019, False)])
    def test_the_gain_over_the_additive_model_decides(self, beyond: float, kept: bool) -> None:
        refused, before = self.trial(1.0)
        assert refused.plan is None
        assert refused.auc_gain > 0.1
        with_head = before + refused.auc_gain
        assert refused.auc_gain_in_all == pytest.approx(with_head - 1.0)
        found, _ = self.trial(with_head - beyond)
        assert (found.plan is not None) is kept
        assert (found.auc_gain_in_all > 0.002) is kept

    def test_what_transitions_gain_does_not_carry_a_head_that_gains_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found, _ = self.trial(0.0)
        monkeypatch.setattr(
            "fedcircuits.learners.hclt.head.choose_head.LEAST_OWN_GAIN", found.auc_gain + 0.01
        )
        refused, _ = self.trial(0.0)
        assert refused.plan is None
        assert refused.auc_gain_in_all > 0.002


@pytest.mark.parametrize("fine", [True, False])
def test_leaves_hold_a_fifth_of_the_root_of_all_rows_unless_fine(fine: bool) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 30, size=(10_000, 3))
    labels = rng.integers(0, 2, size=10_000)
    ranks = tuple(np.arange(30) for _ in range(3))
    forest = grow(Trees(3, 2000, fine=fine), ranks, codes, labels, 2, np.ones(10_000), rng)
    _, leaves, _ = forest.reached(codes)
    smallest = np.bincount(leaves)[forest.column < 0].min()
    assert smallest < 20 if fine else smallest >= 20


def test_auto_keeps_a_headed_model_whole() -> None:
    model = fc.learn(exclusive_or(1000, 0), label="y", learner="auto")
    assert model.fit_report is not None
    assert "auto chose" in model.fit_report.kept
    assert isinstance(model, HeadedCircuit)
