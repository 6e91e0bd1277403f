"""Hand-made circuits whose answers are known in closed form, and the numerical edges."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedcircuits import Circuit, Schema, Variable, build
from fedcircuits.circuits.evaluation_plan import DenseSums, EvaluationPlan, Products, Sums
from fedcircuits.errors import ImpossibleEvidenceError
from fedcircuits.schema import Grid
from oracles.random_circuits import seeded_case

X = Variable("x", "continuous")
Y = Variable("y", "continuous")
FLAG = Variable("flag", "binary", (0, 1))
COLOUR = Variable("colour", "categorical", ("red", "green", "blue"))


def plain(circuit: Circuit) -> Circuit:
    """The same circuit with a plan without dense steps."""
    steps = []
    for step in circuit.plan.steps:
        if isinstance(step, DenseSums):
            children = np.tile(step.children, (step.nodes.size, 1))
            steps.append(Sums(step.nodes, children, step.log_weights))
        else:
            steps.append(step)
    twin = Circuit(circuit.schema, circuit.groups, circuit.structure)
    twin.__dict__["plan"] = EvaluationPlan(tuple(steps))
    return twin


# --- dense sums -----------------------------------------------------------------------------------


def dense_circuit(means: list[float], first: list[float], second: list[float]) -> Circuit:
    """Two sums over the same unit Gaussians, told apart by the flag."""
    leaves = [build.gaussian("x", mean, 1.0) for mean in means]
    root = build.sum(
        [
            build.product([build.sum(leaves, first), build.categorical("flag", [1, 0])]),
            build.product([build.sum(leaves, second), build.categorical("flag", [0, 1])]),
        ],
        [0.35, 0.65],
    )
    return build.circuit(Schema((FLAG, X)), root)


def test_dense_and_plain_sums_agree_with_scipy() -> None:
    means, first, second = [0.0, 3.0, -2.0], [0.2, 0.5, 0.3], [0.7, 0.0, 0.3]
    circuit = dense_circuit(means, first, second)
    assert any(isinstance(step, DenseSums) for step in circuit.plan.steps)
    rows = pd.DataFrame({"x": [0.3, -4.0, 5.5, 0.3], "flag": [0, 1, 0, 1]})
    expected = [
        math.log((0.65 if flag else 0.35) * (np.array(second if flag else first) @ pdf))
        for x, flag in zip(rows["x"], rows["flag"], strict=True)
        for pdf in [stats.norm.pdf(x, means)]
    ]
    assert circuit.log_prob(rows).tolist() == pytest.approx(expected, rel=1e-12)
    assert plain(circuit).log_prob(rows).tolist() == pytest.approx(expected, rel=1e-12)


def test_a_child_at_minus_800_with_the_only_weight_does_not_underflow() -> None:
    """The maximum belongs to a child of weight zero; e**-800 is 0 in floating point."""
    circuit = dense_circuit([0.0, 40.0], [1.0, 0.0], [0.0, 1.0])
    assert any(isinstance(step, DenseSums) for step in circuit.plan.steps)
    rows = pd.DataFrame({"x": [40.0, 0.0], "flag": [0, 1]})
    expected = np.log([0.35, 0.65]) - 800 + stats.norm.logpdf(0)
    assert circuit.log_prob(rows).tolist() == pytest.approx(list(expected), rel=1e-12)
    assert plain(circuit).log_prob(rows).tolist() == pytest.approx(list(expected), rel=1e-12)
    # The downward pass too: given the flag, the far leaf has all the flow.
    assert circuit.expectation("x", {"flag": 0}) == pytest.approx(0.0, abs=1e-12)
    assert circuit.expectation("x", {"flag": 1}) == pytest.approx(40.0)


def test_flows_survive_a_weight_that_underflows() -> None:
    """log-weights of -800 come from conditioning; the posterior is an ordinary number."""
    leaves = [build.gaussian("x", mean, 1.0) for mean in (0.0, 40.0, 80.0)]
    rows = [([0.25, 0.75, 0.0], 0.1), ([0.5, 0.25, 0.25], 0.9)]
    root = build.sum(
        [
            build.product([build.sum(leaves, w), build.gaussian("y", 0, 1), flag])
            for (w, p) in rows
            for flag in [build.bernoulli("flag", p)]
        ],
        [0.4, 0.6],
    )
    circuit = build.circuit(Schema((X, Y, FLAG)), root)
    for model in (circuit, plain(circuit)):
        for x, weights in ((80.0, (0.0, 0.25)), (20.0, (1.0, 0.75))):
            joint = np.array([0.4 * weights[0], 0.6 * weights[1]])
            if x == 20.0:  # halfway between the first two leaves
                joint = np.array([0.4 * (0.25 + 0.75), 0.6 * (0.5 + 0.25)])
            found = model.predict_proba(pd.DataFrame({"x": [x]}), "flag")[1].iloc[0]
            expected = joint @ [0.1, 0.9] / joint.sum()
            assert found == pytest.approx(expected, rel=1e-9)


def test_flow_reaches_a_child_800_nats_below_the_best() -> None:
    """Going down a dense sum whose only weighted child has a value of e**-800."""
    pairs = [
        build.product([build.gaussian("x", at, 1.0), build.gaussian("y", mean, 1.0)])
        for at, mean in ((0.0, 2.5), (40.0, -7.0))
    ]
    root = build.sum(
        [
            build.product([build.sum(pairs, [1.0, 0.0]), build.categorical("flag", [1, 0])]),
            build.product([build.sum(pairs, [0.25, 0.75]), build.categorical("flag", [0, 1])]),
        ],
        [0.35, 0.65],
    )
    circuit = build.circuit(Schema((Y, FLAG, X)), root)
    assert any(isinstance(step, DenseSums) for step in circuit.plan.steps)
    rows = pd.DataFrame({"x": [40.0, 40.0, 0.0], "flag": [0, 1, 1]})
    for model in (circuit, plain(circuit)):
        assert model.expectation("y", rows).tolist() == pytest.approx([2.5, -7.0, 2.5])
        assert model.condition(x=40.0, flag=0).expectation("y") == pytest.approx(2.5)


@pytest.mark.parametrize("seed", range(12))
def test_dense_steps_change_no_answer(seed: int) -> None:
    names = [("dial", "flag", "count"), ("hist", "colour", "flag"), ("real", "dial")][seed % 3]
    case = seeded_case(seed, names, 4)
    rows = case.worlds.frame.iloc[:: max(1, len(case.worlds.frame) // 60)]
    twin = plain(case.circuit)
    with np.errstate(all="raise", under="ignore"):
        dense, apart = case.circuit.log_prob(rows), twin.log_prob(rows)
    np.testing.assert_allclose(np.exp(dense), np.exp(apart), 1e-12, 1e-15)
    name = next(n for n in names if n != "colour")
    assert case.circuit.expectation(name) == pytest.approx(twin.expectation(name), rel=1e-12)


def test_a_child_named_twice_keeps_all_its_flow_in_a_marginal() -> None:
    """Summing out `colour` makes two products the same leaf, twice a child of two sums."""
    x1, x2 = build.gaussian("x", 0, 1), build.gaussian("x", 3, 2)
    c1, c2 = (
        build.categorical("colour", [0.2, 0.3, 0.5]),
        build.categorical("colour", [0.7, 0.1, 0.2]),
    )
    pairs = [build.product([x1, c1]), build.product([x1, c2]), build.product([x2, c2])]
    sums = [build.sum(pairs, [0.2, 0.5, 0.3]), build.sum(pairs, [0.6, 0.1, 0.3])]
    root = build.sum(
        [
            build.product([s, build.bernoulli("flag", p)])
            for s, p in zip(sums, (0.1, 0.7), strict=True)
        ],
        [0.4, 0.6],
    )
    joint = build.circuit(Schema((X, COLOUR, FLAG)), root)
    smaller = joint.marginal(["x", "flag"])
    assert joint.expectation("x") == pytest.approx(0.9)
    assert smaller.expectation("x") == pytest.approx(0.9)
    assert smaller.variance("x") == pytest.approx(joint.variance("x"))


# --- shapes of circuits ---------------------------------------------------------------------------


def test_a_chain_of_3000_levels_is_answered_without_recursion() -> None:
    """x is a mixture nested 3,000 deep: level k keeps .999 of the one below."""
    node: build.Node = build.gaussian("x", 0.0, 1.0)
    other = build.gaussian("x", 5.0, 0.5)
    levels = 3000
    for _ in range(levels):
        node = build.sum([node, other], [0.999, 0.001])
    circuit = build.circuit(Schema((X,)), node)
    assert circuit.depth == levels
    kept = 0.999**levels
    found = circuit.log_prob(pd.DataFrame({"x": [0.4, None]}))
    mixture = kept * stats.norm.pdf(0.4) + (1 - kept) * stats.norm.pdf(0.4, 5, 0.5)
    assert found[0] == pytest.approx(math.log(mixture), rel=1e-9)
    assert found[1] == pytest.approx(0.0, abs=1e-11)
    assert circuit.expectation("x") == pytest.approx(5 * (1 - kept), rel=1e-9)
    assert circuit.marginal(["x"]).depth == levels
    share = (circuit.sample(600, seed=3)["x"] > 2.5).mean()
    # Binomial with p = .950; five standard errors, false-alarm rate 6e-7.
    p = (1 - kept) * stats.norm.sf(2.5, 5, 0.5) + kept * stats.norm.sf(2.5)
    assert share == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / 600))


def test_a_deep_chain_of_products_over_many_variables() -> None:
    """70 binary variables, nested, in a schema of the reverse order: more than one word of bits."""
    names = [f"v{i}" for i in range(70)]
    node: build.Node = build.bernoulli(names[0], 1 / 72)
    for i, name in enumerate(names[1:], start=1):
        node = build.product([build.bernoulli(name, (i + 1) / 72), node])
    schema = Schema(tuple(Variable(name, "binary", (0, 1)) for name in reversed(names)))
    circuit = build.circuit(schema, node)
    for i in (0, 1, 5, 63, 64, 69):
        assert circuit.expectation(names[i]) == pytest.approx((i + 1) / 72)
        assert circuit.marginal([names[i]]).expectation(names[i]) == pytest.approx((i + 1) / 72)
    row = pd.DataFrame([{name: int(i % 3 == 0) for i, name in enumerate(names)}])
    expected = sum(
        math.log((i + 1) / 72 if i % 3 == 0 else 1 - (i + 1) / 72) for i in range(len(names))
    )
    assert circuit.log_prob(row).iloc[0] == pytest.approx(expected, rel=1e-12)


def test_one_leaf_is_a_circuit() -> None:
    circuit = build.circuit(Schema((X,)), build.gaussian("x", 2.0, 3.0))
    assert circuit.n_nodes == 1
    assert circuit.depth == 0
    assert circuit.log_prob(pd.DataFrame({"x": [5.0]})).tolist() == pytest.approx(
        [stats.norm.logpdf(5, 2, 3)]
    )
    assert circuit.expectation("x") == pytest.approx(2.0)
    assert circuit.variance("x") == pytest.approx(9.0)
    assert circuit.covariance().to_numpy().tolist() == [[pytest.approx(9.0)]]
    assert circuit.mpe()["x"].tolist() == [2.0]
    assert circuit.mpe_is_exact
    assert circuit.marginal(["x"]).expectation("x") == pytest.approx(2.0)


def test_a_sum_over_one_child_is_that_child() -> None:
    circuit = build.circuit(Schema((X,)), build.sum([build.uniform("x", 1.0, 5.0)], [1.0]))
    assert circuit.log_prob(pd.DataFrame({"x": [2.0, 6.0]})).tolist() == [-math.log(4), -math.inf]
    assert circuit.moment("x", 3) == pytest.approx((5**4 - 1) / 16)


def test_every_leaf_reads_its_own_column() -> None:
    """Index echo: each leaf is narrow about 10 times its number, so a mixed-up scope is seen."""
    names = [f"n{i}" for i in (8, 1, 5, 3, 0)]
    mean = {name: 10.0 * int(name[1:]) for name in names}
    halves = (names[:2], names[2:])
    children = [
        build.product(
            [
                build.product([build.gaussian(n, mean[n] + shift, 0.01) for n in reversed(half)])
                for half in halves
            ]
        )
        for shift in (0.0, 1.0, 2.0)
    ]
    schema = Schema(tuple(Variable(name, "continuous") for name in sorted(names)))
    circuit = build.circuit(schema, build.sum(children, [0.5, 0.3, 0.2]))
    drawn = circuit.sample(50, seed=8)
    for name in names:
        assert (abs(drawn[name] - mean[name] - 1) < 1.1).all()
        assert circuit.expectation(name) == pytest.approx(mean[name] + 0.7)
    completed = circuit.mpe({"n5": 52.0})
    assert completed.iloc[0].to_dict() == {name: mean[name] + 2 for name in sorted(names)}
    order = ["n3", "n8", "n0"]
    assert list(circuit.marginal(order).sample(1, seed=0).columns) == order
    conditional = circuit.condition({"n1": 11.0}).marginal(order)
    assert [round(v) for v in conditional.sample(1, seed=0).iloc[0]] == [31, 81, 1]


# --- the edges of the real line -------------------------------------------------------------------


def test_evidence_far_from_all_data_can_still_be_conditioned_on() -> None:
    """At 1e9 standard deviations log p = -5e17 has no digits left for a weight."""
    root = build.sum(
        [
            build.product([build.gaussian("x", 0, 1), build.bernoulli("flag", 0.2)]),
            build.product([build.gaussian("x", 0, 1), build.bernoulli("flag", 0.6)]),
            build.product([build.gaussian("x", -10, 1), build.bernoulli("flag", 0.9)]),
        ],
        [0.25, 0.25, 0.5],
    )
    circuit = build.circuit(Schema((X, FLAG)), root)
    far = circuit.condition(x=1e9)
    assert far.expectation("flag") == pytest.approx((0.2 + 0.6) / 2)
    rows = pd.DataFrame({"x": [1e9]})
    assert circuit.predict_proba(rows, "flag").loc[0, 1] == pytest.approx(0.4)
    assert circuit.expectation("flag", rows).iloc[0] == pytest.approx(0.4)


def test_an_infinite_moment_counts_only_where_its_leaf_can_be() -> None:
    """A Lomax tail of shape 4 has no fourth moment; a leaf without tail mass has one."""
    grid = Grid(np.array([2.0]), np.array([0.0, 1.0, 4.0]), tails=(0.0, 1.5))
    bounded = build.histogram("x", grid, [0.5, 0.2, 0.3, 0.0])
    heavy = build.histogram("x", grid, [0.2, 0.2, 0.5, 0.1])
    root = build.sum(
        [
            build.product([bounded, build.categorical("flag", [1, 0])]),
            build.product([heavy, build.categorical("flag", [0, 1])]),
        ],
        [0.3, 0.7],
    )
    # The states of the grid are bin 0..1, bin 1..4, atom 2, tail.
    circuit = build.circuit(Schema((X, FLAG)), root)
    fourth = 0.5 / 5 + 0.2 * (4**5 - 1) / 15 + 0.3 * 2**4
    assert circuit.moment("x", 4, {"flag": 0}) == pytest.approx(fourth)
    assert circuit.moment("x", 4, {"flag": 1}) == math.inf
    assert circuit.moment("x", 4) == math.inf
    rows = pd.DataFrame({"flag": [1, 0]}, index=["heavy", "bounded"])
    found = circuit.moment("x", 4, rows)
    assert found["bounded"] == pytest.approx(fourth)
    assert circuit.moment("flag", 4) == pytest.approx(0.7)  # another column's answer is untouched


def test_zero_weights_and_zero_masses_are_minus_infinity_without_a_warning() -> None:
    root = build.sum(
        [
            build.categorical("colour", [1.0, 0.0, 0.0]),
            build.categorical("colour", [0.0, 0.4, 0.6]),
        ],
        [1.0, 0.0],
    )
    circuit = build.circuit(Schema((COLOUR,)), root)
    rows = pd.DataFrame({"colour": ["red", "green", None]})
    assert circuit.log_prob(rows).tolist() == [0.0, -math.inf, 0.0]
    assert set(circuit.sample(500, seed=1)["colour"]) == {"red"}
    assert circuit.predict_proba(rows.iloc[2:], "colour").to_numpy().tolist() == [[1.0, 0.0, 0.0]]
    with pytest.raises(ImpossibleEvidenceError, match="row label: 1"):
        circuit.mpe(rows)


def test_many_impossible_rows_are_named_by_their_first_labels() -> None:
    circuit = build.circuit(
        Schema((X, FLAG)),
        build.product([build.uniform("x", 0.0, 1.0), build.bernoulli("flag", 0.3)]),
    )
    rows = pd.DataFrame({"x": [2.0, 0.5, 3.0]}, index=["anna", "bert", "carl"])
    with pytest.raises(ImpossibleEvidenceError, match=r"2 row\(s\).*'anna', 'carl'") as caught:
        circuit.predict_proba(rows, "flag")
    assert caught.value.rows == ("anna", "carl")
    found = circuit.predict_proba(rows, "flag", impossible="nan")
    np.testing.assert_allclose(found.to_numpy(), [[np.nan] * 2, [0.7, 0.3], [np.nan] * 2])
    with pytest.raises(ImpossibleEvidenceError, match="anna"):
        circuit.sample(1, rows)
    with pytest.raises(ImpossibleEvidenceError, match="probability zero"):
        circuit.condition(x=7.0)


# --- completions ----------------------------------------------------------------------------------


def deterministic() -> Circuit:
    """Splits on `flag` and, below, on disjoint intervals of x."""
    low, high = build.uniform("x", 0.0, 0.4), build.uniform("x", 0.4, 2.4)
    inner = build.sum(
        [
            build.product([low, build.categorical("colour", [0.1, 0.2, 0.7])]),
            build.product([high, build.categorical("colour", [0.5, 0.3, 0.2])]),
        ],
        [0.3, 0.7],
    )
    root = build.sum(
        [
            build.product([inner, build.categorical("flag", [1.0, 0.0])]),
            build.product(
                [
                    build.uniform("x", 0.0, 2.4),
                    build.categorical("colour", [0.0, 1.0, 0.0]),
                    build.categorical("flag", [0.0, 1.0]),
                ]
            ),
        ],
        [0.6, 0.4],
    )
    return build.circuit(Schema((COLOUR, X, FLAG)), root)


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        # .6 * .3 / .4 * .7 = .315 beats .4 / 2.4 = .167 and .6 * .7 / 2 * .5 = .105
        ({}, {"colour": "blue", "flag": 0, "x": 0.2}),
        ({"colour": "green"}, {"flag": 1, "x": 1.2}),  # .167 against .09 and .063
        ({"flag": 0, "colour": "red"}, {"x": 1.4}),  # .105 against .045
        ({"x": 1.0}, {"flag": 1, "colour": "green"}),
        ({"x": 0.1, "flag": 0}, {"colour": "blue"}),
    ],
)
def test_mpe_is_exact_in_a_deterministic_circuit(evidence: dict, expected: dict) -> None:
    circuit = deterministic()
    found = circuit.mpe(evidence)
    assert found.attrs["method"] == "exact"
    assert found.iloc[0].to_dict() == {**evidence, **expected}


def test_a_mixture_with_overlap_is_only_decoded() -> None:
    """Two narrow peaks beside a broad one: the best tree is not the best point."""
    root = build.sum(
        [
            build.categorical("colour", [0.5, 0.5, 0.0]),
            build.categorical("colour", [0.0, 0.5, 0.5]),
        ],
        [0.55, 0.45],
    )
    circuit = build.circuit(Schema((COLOUR,)), root)
    found = circuit.mpe()
    assert found.attrs["method"] == "decoding"
    assert not circuit.mpe_is_exact
    assert circuit.log_prob(found).iloc[0] <= math.log(0.5)  # green has .5


def test_zero_weight_children_do_not_spoil_determinism() -> None:
    root = build.sum(
        [
            build.categorical("colour", [0.3, 0.7, 0.0]),
            build.categorical("colour", [0.2, 0.2, 0.6]),
            build.categorical("colour", [0.0, 0.0, 1.0]),
        ],
        [0.25, 0.0, 0.75],
    )
    circuit = build.circuit(Schema((COLOUR,)), root)
    assert circuit.mpe_is_exact
    assert circuit.mpe()["colour"].tolist() == ["blue"]


def test_impute_fills_gaps_and_leaves_the_rest() -> None:
    circuit = deterministic()
    rows = pd.DataFrame(
        {"x": [None, 0.1], "flag": [0, None], "colour": ["red", None]}, index=["p", "q"]
    )
    likeliest = circuit.impute(rows, "likeliest")
    assert likeliest.loc["p"].to_dict() == {"colour": "red", "x": 1.4, "flag": 0}
    # Row q: flag 0 gives .6 * .3 / .4 = .45, flag 1 gives .4 / 2.4 = .167 (all green).
    assert likeliest.loc["q"].to_dict() == {"colour": "blue", "x": 0.1, "flag": 0}
    mean = circuit.impute(rows)
    weight = np.array([0.3 * 0.1, 0.7 * 0.5])
    assert mean.loc["p", "x"] == pytest.approx(weight @ [0.2, 1.4] / weight.sum())
    assert mean.loc["q", "x"] == 0.1
    drawn = circuit.impute(rows, "sample", seed=4)
    assert drawn.loc["q", "x"] == 0.1
    assert drawn.loc["p", "colour"] == "red"
    assert 0 <= drawn.loc["p", "x"] <= 2.4


# --- predictions ----------------------------------------------------------------------------------


def two_clusters() -> Circuit:
    root = build.sum(
        [
            build.product([build.gaussian("x", -1.0, 0.5), build.bernoulli("flag", 0.9)]),
            build.product([build.gaussian("x", 4.0, 0.7), build.bernoulli("flag", 0.3)]),
        ],
        [0.2, 0.8],
    )
    return build.circuit(Schema((X, FLAG)), root)


def test_a_target_in_the_rows_is_not_looked_at() -> None:
    circuit = two_clusters()
    rows = pd.DataFrame({"x": [0.0, 99.0], "flag": [1, 0]})
    weight = np.array([[0.2 * 0.9, 0.8 * 0.3], [0.2 * 0.1, 0.8 * 0.7]])
    expected = weight @ [-1.0, 4.0] / weight.sum(axis=1)
    assert circuit.predict(rows, "x").tolist() == pytest.approx(list(expected))
    blind = rows.drop(columns="flag")
    pd.testing.assert_frame_equal(
        circuit.predict_proba(rows, "flag"), circuit.predict_proba(blind, "flag")
    )


def test_predict_treats_unknown_categories_as_asked_for_continuous_targets_too() -> None:
    circuit = build.circuit(
        Schema((X, COLOUR)),
        build.product(
            [build.gaussian("x", 2.5, 1.0), build.categorical("colour", [0.2, 0.3, 0.5])]
        ),
    )
    rows = pd.DataFrame({"colour": ["mauve"]})
    assert circuit.predict(rows, "x", unknown="missing").tolist() == pytest.approx([2.5])


def test_the_plan_holds_every_inner_node_once() -> None:
    circuit = seeded_case(4, ("hist", "colour", "flag"), 4).circuit
    planned = np.concatenate([step.nodes for step in circuit.plan.steps])
    n_leaves = circuit.structure.n_leaves
    assert sorted(planned) == list(range(n_leaves, circuit.n_nodes))
    assert {type(step) for step in circuit.plan.steps} <= {Products, Sums, DenseSums}
