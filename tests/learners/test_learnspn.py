"""LearnSPN: every table gives a valid circuit, and structure is found where there is some."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.density import DensityContract
from fedcircuits import Circuit, Schema
from fedcircuits.density import Learner
from fedcircuits.errors import LearningError
from fedcircuits.learners import Factorised
from fedcircuits.learners.learnspn import LearnSPN
from fedcircuits.learners.learnspn.splits import rdc
from fedcircuits.schema import Table, Variable

DATA = Path(os.environ.get("FEDCIRCUITS_DATA", Path(__file__).parents[3] / "shared" / "data"))


def frame(rng: np.random.Generator, n: int = 600) -> pd.DataFrame:
    """Mixed columns: a group decides on size, colour and count; noise is apart."""
    group = rng.integers(0, 3, n)
    return pd.DataFrame(
        {
            "size": rng.normal(group * 4.0, 1.0),
            "colour": np.array(["red", "green", "blue"])[
                np.where(rng.random(n) < 0.85, group, rng.integers(0, 3, n))
            ],
            "count": rng.poisson(2 + 3 * group),
            "noise": rng.integers(0, 2, n),
        }
    )


def learn(data: pd.DataFrame, seed: int = 0, weights: Any = None, **options: Any) -> Circuit:
    schema = Schema.infer(data)
    table = schema.encode(data, weights=weights)
    return LearnSPN(**options).fit(table, np.random.default_rng(seed))


def same(a: Circuit, b: Circuit) -> bool:
    """Whether two circuits are equal to the last bit."""
    left, right = a.to_record().arrays, b.to_record().arrays
    return left.keys() == right.keys() and all(np.array_equal(left[k], right[k]) for k in left)


class TestContract(DensityContract):
    """The Density contract, on a learned circuit with sums in it."""

    @pytest.fixture(scope="class", params=["rdc kmeans", "g-test em"])
    @classmethod
    def density(cls, request: pytest.FixtureRequest) -> Circuit:
        columns, rows = request.param.split()
        rng = np.random.default_rng(5)
        group = rng.integers(0, 2, 400)
        data = pd.DataFrame(
            {
                "size": np.clip(rng.normal(group, 0.4), -1, 2),
                "colour": np.array(["r", "g", "b"])[np.minimum(group + (rng.random(400) < 0.3), 2)],
                "count": rng.binomial(4, 0.2 + 0.5 * group),
            }
        )
        schema = Schema.infer(
            data, {"size": "continuous", "count": "count"}, {"size": (-1, 2), "count": (0, 4)}
        )
        learner = LearnSPN(rows=rows, columns=columns, min_instances=60, n_bins=6)
        circuit = learner.fit(schema.encode(data), rng)
        assert circuit.structure.is_sum.any()
        return circuit


COLUMN = st.sampled_from(
    ["normal", "few", "count", "category", "binary", "constant", "copy", "heavy", "names"]
)


def random_table(kinds: list[str], n: int, gaps: float, empty: bool, seed: int) -> Table:
    """A mixed table with linked columns, gaps and rows of which nothing is observed."""
    rng = np.random.default_rng(seed)
    hidden = rng.integers(0, 3, n)
    columns: dict[str, Any] = {}
    for at, kind in enumerate(kinds):
        name = f"{kind}{at}"
        if kind == "normal":
            columns[name] = rng.normal(hidden, 0.5)
        elif kind == "few":
            columns[name] = rng.choice([0.5, 1.5, 2.5], n)
        elif kind == "count":
            columns[name] = rng.poisson(1 + hidden).astype(float)
        elif kind == "category":
            columns[name] = np.array(["a", "b", "c", "d"])[np.minimum(hidden + at % 2, 3)]
        elif kind == "binary":
            columns[name] = (rng.random(n) < 0.2 + 0.3 * hidden).astype(float)
        elif kind == "constant":
            columns[name] = np.full(n, 7.0)
        elif kind == "copy" and columns:
            columns[name] = next(iter(columns.values())).copy()
        elif kind == "heavy":
            columns[name] = np.exp(4 * rng.normal(size=n))
        else:
            columns[name] = np.array([f"name{i % 20}" for i in range(n)])
    data = pd.DataFrame(columns)
    lost = rng.random(data.shape) < gaps
    if empty and n > 3:
        lost[: n // 3] = True
    lost[-1] = False  # at least one value a column, or no schema could be guessed
    data = data.mask(lost)
    return Schema.infer(data).encode(data)


class TestAnyTable:
    @settings(max_examples=120)
    @given(
        kinds=st.lists(COLUMN, min_size=1, max_size=6),
        n=st.sampled_from([1, 2, 3, 10, 60, 300]),
        gaps=st.sampled_from([0.0, 0.1, 0.6]),
        empty=st.booleans(),
        columns=st.sampled_from(["rdc", "g-test"]),
        rows=st.sampled_from(["kmeans", "em"]),
        least=st.sampled_from([1, 20]),
        n_clusters=st.sampled_from([2, 3]),
        seed=st.integers(0, 1000),
    )
    def test_gives_a_valid_circuit(
        self, kinds, n, gaps, empty, columns, rows, least, n_clusters, seed
    ):
        table = random_table(kinds, n, gaps, empty, seed)
        learner = LearnSPN(columns=columns, rows=rows, min_instances=least, n_clusters=n_clusters)
        circuit = learner.fit(table, np.random.default_rng(seed))  # the constructor checks it
        assert circuit.schema.names == table.schema.names
        log_prob = circuit.log_prob_table(table)
        assert np.isfinite(log_prob).all()
        assert np.abs(circuit.log_prob_table(Table.empty(circuit.schema, 1))[0]) < 1e-9
        assert log_prob[~table.observed.any(axis=1)] == pytest.approx(0.0, abs=1e-9)

    def test_duplicate_rows_end(self):
        data = pd.DataFrame({"a": [0, 1] * 500, "b": [0, 1] * 500, "c": [5.0, 9.0] * 500})
        circuit = learn(data, min_instances=1)
        assert circuit.n_nodes < 20

    def test_one_row(self):
        circuit = learn(pd.DataFrame({"a": [1.5], "b": ["x"]}))
        assert not circuit.structure.is_sum.any()

    @pytest.mark.parametrize("columns", ["rdc", "g-test"])
    @pytest.mark.parametrize("rows", ["kmeans", "em"])
    def test_many_categories(self, rng, columns, rows):
        group = rng.integers(0, 2, 3000)
        names = [f"n{i % 1500}" for i in range(3000)]
        data = pd.DataFrame({"id": names, "a": group, "b": group ^ (rng.random(3000) < 0.1)})
        circuit = learn(data, columns=columns, rows=rows, min_instances=1000)
        assert np.isfinite(circuit.mean_log_prob(data))

    def test_no_row_is_refused(self):
        schema = Schema((Variable("a", "binary", (0, 1)),))
        with pytest.raises(LearningError, match="without rows"):
            LearnSPN().fit(Table.empty(schema, 0), np.random.default_rng(0))

    def test_no_observed_cell_is_refused_by_name(self):
        schema = Schema((Variable("a", "binary", (0, 1)), Variable("b", "binary", (0, 1))))
        table = schema.encode(pd.DataFrame({"a": [0, 1]}))
        with pytest.raises(LearningError, match="'b': not one value is observed"):
            LearnSPN().fit(table, np.random.default_rng(0))

    def test_only_weightless_rows_are_refused(self):
        with pytest.raises(LearningError, match="weight > 0"):
            learn(pd.DataFrame({"a": [0, 1]}), weights=np.zeros(2))

    def test_a_category_of_the_schema_that_never_occurs_is_possible(self):
        schema = Schema((Variable("a", "categorical", ("x", "y", "z")),))
        table = schema.encode(pd.DataFrame({"a": ["x", "y", "x", "y"]}))
        circuit = LearnSPN().fit(table, np.random.default_rng(0))
        assert 0 < circuit.predict_proba(pd.DataFrame(index=[0]), "a").loc[0, "z"] < 0.1


class TestStructure:
    def test_independent_columns_are_one_product(self, rng):
        data = pd.DataFrame(rng.integers(0, 3, (800, 4)), columns=list("abcd")).astype(str)
        circuit = learn(data)
        assert circuit.depth == 1
        assert circuit.fit_report.sizes["sums"] == 0

    def test_dependent_columns_are_better_than_independent_ones(self, rng):
        train, test = frame(rng, 2000), frame(rng, 1000)
        circuit = learn(train)
        base = Factorised().fit(circuit.schema.encode(train), rng)
        assert circuit.mean_log_prob(test) > base.mean_log_prob(test) + 0.8

    @pytest.mark.parametrize("columns", ["rdc", "g-test"])
    def test_a_column_apart_is_a_factor_of_the_root(self, rng, columns):
        circuit = learn(frame(rng, 2000), columns=columns)
        p = circuit.predict_proba(
            pd.DataFrame({"size": [0.0, 8.0], "colour": ["red", "blue"]}), "noise"
        )
        assert p.loc[0].to_numpy() == pytest.approx(p.loc[1].to_numpy(), abs=1e-12)

    def test_constant_column_is_named_in_the_report(self, rng):
        circuit = learn(frame(rng, 300).assign(same="x"))
        assert circuit.fit_report.warnings == ("'same' is constant in the training rows",)

    def test_ids_are_left_out_with_a_warning(self, rng):
        data = frame(rng, 300).assign(row=np.arange(300), name=[f"row {i}" for i in range(300)])
        circuit = learn(data)
        assert circuit.schema.names == tuple(frame(rng, 3).columns)
        assert "left out 'row'" in circuit.fit_report.warnings[0]
        assert "left out 'name'" in circuit.fit_report.warnings[1]

    def test_fewer_rows_than_the_least_are_not_split(self, rng):
        circuit = learn(frame(rng, 300), min_instances=301)
        assert circuit.depth == 1

    def test_n_clusters_bounds_the_children_of_a_sum(self, rng):
        structure = learn(frame(rng, 2000), n_clusters=3).structure
        assert structure.arity[structure.is_sum].max() == 3

    def test_weights_of_sums_are_shares_of_rows(self, rng):
        data = frame(rng, 1000)[["colour", "count"]]
        circuit = learn(data, min_instances=900)
        shares = np.exp(circuit.structure.log_weight[circuit.structure.log_weight < 0])
        assert shares.sum() == pytest.approx(1.0)
        assert shares * 1000 == pytest.approx(np.round(shares * 1000))


class TestParameters:
    def test_leaf_of_the_root_is_counts_plus_floor(self):
        data = pd.DataFrame({"a": ["x"] * 3 + ["y"]})
        p = learn(data, floor=0.5).predict_proba(pd.DataFrame(index=[0]), "a")
        assert p.loc[0].tolist() == pytest.approx([3.5 / 5, 1.5 / 5])

    def test_leaf_below_is_smoothed_toward_the_slice_above(self):
        # Two clear clusters, so that every leaf lies one sum below the root.
        rows = [("x", "u", "p")] * 30 + [("y", "v", "q")] * 10
        circuit = learn(
            pd.DataFrame(rows, columns=["a", "b", "c"]), min_instances=40, smoothing=4, floor=0.5
        )
        above = np.array([30.5, 10.5]) / 41
        group = next(g for g in circuit.groups if g.column == 0)
        found = group.params["probs"][np.argsort(group.params["probs"][:, 1])]
        assert found[0] == pytest.approx((np.array([30, 0]) + 4 * above) / 34)
        assert found[1] == pytest.approx((np.array([0, 10]) + 4 * above) / 14)

    def test_leaves_of_a_column_share_the_grid_of_the_schema(self, rng):
        circuit = learn(frame(rng, 2000))
        for group in circuit.groups:
            assert group.grid == circuit.schema.variables[group.column].grid

    def test_a_grid_of_the_schema_is_kept(self, rng):
        data = frame(rng)
        schema = Schema.infer(data)
        schema = schema.with_grids(schema.encode(data), n_bins=5)
        circuit = LearnSPN().fit(schema.encode(data), rng)
        assert circuit.schema == schema

    def test_weights_count_like_repeated_rows_in_leaves(self, rng):
        data, times = frame(rng, 100), rng.integers(1, 4, 100)
        schema = Schema.infer(data)
        schema = schema.with_grids(schema.encode(data))
        learner = LearnSPN(min_instances=1000)
        weighted = learner.fit(schema.encode(data, weights=times.astype(float)), rng)
        repeated = learner.fit(schema.encode(data.loc[data.index.repeat(times)]), rng)
        assert weighted.log_prob(data).to_numpy() == pytest.approx(
            repeated.log_prob(data).to_numpy(), abs=1e-10
        )

    @pytest.mark.parametrize("rows", ["kmeans", "em"])
    def test_rows_of_weight_zero_do_not_count(self, rng, rows):
        data = frame(rng, 600)
        schema = Schema.infer(data)
        schema = schema.with_grids(schema.encode(data))
        weights = (rng.random(600) < 0.7).astype(float)
        learner = LearnSPN(rows=rows, min_instances=50)
        weighted = learner.fit(schema.encode(data, weights=weights), np.random.default_rng(1))
        kept = schema.encode(data[weights > 0])
        assert same(weighted, learner.fit(kept, np.random.default_rng(1)))

    def test_heavy_rows_pull_the_model(self, rng):
        data = frame(rng, 1000)
        weights = np.where(data["colour"] == "red", 10.0, 1.0)
        share = weights[data["colour"] == "red"].sum() / weights.sum()
        p = learn(data, weights=weights).predict_proba(pd.DataFrame(index=[0]), "colour")
        assert p.loc[0, "red"] == pytest.approx(share, abs=0.01)

    def test_missing_as_a_state_is_modelled(self, rng):
        data = frame(rng, 1500)
        data.loc[data["colour"] == "red", "size"] = np.nan
        inferred = Schema.infer(data)
        schema = inferred.with_variables(
            [Variable("size", "continuous", domain=inferred["size"].domain, missing_state=True)]
        )
        circuit = LearnSPN().fit(schema.encode(data, missing_as_state=True), rng)
        gone = circuit.schema.encode(data[["size"]].iloc[:0].reindex([0]), missing_as_state=True)
        posterior = circuit.posterior_table(gone, circuit.schema.position("colour"))
        red = circuit.schema["colour"].categories.index("red")
        assert posterior[0, red] > 0.9


class TestReproducible:
    def test_same_seed_same_circuit(self, rng):
        data = frame(rng)
        assert same(learn(data, 3), learn(data, 3))

    def test_another_seed_may_give_another(self, rng):
        data = frame(rng, 2000)
        assert not all(same(learn(data, 0), learn(data, s)) for s in range(1, 5))

    def test_a_larger_least_prunes_and_changes_nothing_above(self, rng):
        # Seeds are named by the path, so the root's sum is the same one.
        data = frame(rng, 2000)[["size", "colour", "count"]]
        small, large = learn(data, min_instances=100), learn(data, min_instances=1900)
        assert large.n_nodes < small.n_nodes
        root_small, root_large = (
            np.sort(c.structure.log_weight[c.structure.first_edge[-2] :]) for c in (small, large)
        )
        assert root_small == pytest.approx(root_large)

    def test_fit_leaves_the_table_as_it_was(self, rng):
        data = frame(rng)
        table = Schema.infer(data).encode(data)
        before = table.values.copy(), table.observed.copy()
        LearnSPN(min_instances=50).fit(table, rng)
        assert np.array_equal(table.values, before[0])
        assert np.array_equal(table.observed, before[1])


class TestReport:
    def test_says_what_was_built(self, rng):
        circuit = learn(frame(rng, 1500))
        sizes = circuit.fit_report.sizes
        assert circuit.fit_report.learner == "learnspn"
        assert circuit.fit_report.seconds > 0
        assert sizes["sums"] + sizes["products"] + sizes["leaves"] == circuit.n_nodes
        assert sizes["depth"] == circuit.depth
        assert sizes["rows"] == 1500
        assert sum(sizes["operations"].values()) > 0

    def test_progress_is_told_and_ends_with_none_waiting(self, rng):
        calls = []
        learn(frame(rng), progress=lambda fraction, text: calls.append((fraction, text)))
        assert all(0 < fraction <= 1 for fraction, _ in calls)
        assert calls[-1] == (1.0, f"{len(calls)} slices done, 0 waiting")

    def test_is_a_learner(self):
        assert isinstance(LearnSPN(), Learner)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"threshold": 1.5}, "threshold"),
        ({"significance": 0.0}, "significance"),
        ({"min_instances": 0}, "min_instances"),
        ({"n_clusters": 1}, "n_clusters"),
        ({"smoothing": -1.0}, "smoothing"),
        ({"floor": 0.0}, "floor"),
        ({"columns": "chi"}, "columns"),
        ({"rows": "ward"}, "rows"),
        ({"threshold": float("nan")}, "threshold"),
    ],
)
def test_bad_settings_are_refused_by_name(options, fault):
    with pytest.raises(LearningError, match=fault):
        LearnSPN(**options)


def test_many_rows_are_tested_on_a_sample(rng, monkeypatch):
    monkeypatch.setattr(rdc, "MAX_ROWS", 300)
    circuit = learn(frame(rng, 3000))
    assert circuit.fit_report.sizes["sums"] > 0


def test_many_columns_and_deep_trees_do_not_recurse(rng):
    hidden = rng.integers(0, 4, 400)
    rows = (rng.random((400, 150)) < 0.1 + 0.2 * hidden[:, None]).astype(int)
    data = pd.DataFrame(rows, columns=[f"v{i}" for i in range(150)])
    circuit = learn(data, columns="g-test", min_instances=10, significance=0.01)
    assert circuit.depth > 4
    assert np.isfinite(circuit.mean_log_prob(data))


@pytest.mark.shared
@pytest.mark.skipif(not (DATA / "debd").exists(), reason="the shared datasets are not here")
@pytest.mark.parametrize(("name", "published"), [("nltcs", -6.11), ("jester", -53.48)])
def test_binary_datasets_are_within_three_per_cent_of_the_literature(name, published):
    packed = np.load(DATA / "debd" / f"{name}.npz")
    d = int(packed["n_vars"])
    schema = Schema(tuple(Variable(f"v{i}", "binary", (0, 1)) for i in range(d)))
    train, test = (
        Table(schema, x, np.ones(x.shape, dtype=bool), pd.RangeIndex(len(x)))
        for x in (
            np.unpackbits(packed[s], axis=1, count=d).astype(float) for s in ("train", "test")
        )
    )
    learner = LearnSPN(columns="g-test", rows="em", significance=1e-3, min_instances=20)
    circuit = learner.fit(train, np.random.default_rng(0))
    assert circuit.log_prob_table(test).mean() > 1.03 * published
