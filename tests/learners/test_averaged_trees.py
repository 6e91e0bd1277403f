"""Trees whose states lie in blocks against the same trees with full transitions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits import native
from fedcircuits.learners.hclt.head.headed.class_pass import ClassPass, copies_of, row_seeds
from fedcircuits.learners.hclt.learner import Hclt
from fedcircuits.learners.hclt.tilt.renormalise import renormalise
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree, normaliser, untilted
from fedcircuits.learners.hclt.tree.class_tree import ClassTree, class_tree_of
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree, averaged
from fedcircuits.learners.hclt.tree.marginals import with_marginals
from fedcircuits.learners.hclt.tree.to_circuit import to_circuit
from fedcircuits.learners.hclt.tree.tree_em import Smoothing, log_prior, maximise
from fedcircuits.learners.hclt.tree.tree_pass import TreePass, expected_counts, log_likelihood
from fedcircuits.schema import Schema, Variable

CARDS = (2, 3, 4, 3)
PARENT, ORDER = np.array([1, -1, 1, 2]), np.array([1, 0, 2, 3])
B, W = 3, 4
ROWS = np.array(list(itertools.product(*[range(-1, card) for card in CARDS])), dtype=np.int32)


def trees() -> list[LatentTree]:
    rng = np.random.default_rng(0)
    return [
        LatentTree(
            parent=PARENT,
            order=ORDER,
            latent_of=np.arange(4),
            root=rng.dirichlet(np.ones(W)),
            transitions=rng.dirichlet(np.ones(W), size=(4, W)),
            emissions=tuple(rng.dirichlet(np.ones(card), size=W) for card in CARDS),
        )
        for _ in range(B)
    ]


def full(transitions: np.ndarray) -> np.ndarray:
    """Transitions (..., H, W) with the zeros between blocks, (..., H, H)."""
    *shape, H, width = transitions.shape
    answer = np.zeros((*shape, H, H))
    for first in range(0, H, width):
        block = slice(first, first + width)
        answer[..., block, block] = transitions[..., block, :]
    return answer


def within(pairs: np.ndarray) -> np.ndarray:
    """The blocks (..., H, W) of a table (..., H, H)."""
    return np.concatenate(
        [pairs[..., at : at + W, at : at + W] for at in range(0, B * W, W)], axis=-2
    )


@pytest.fixture(params=["compiled", "NumPy"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "NumPy":
        monkeypatch.setattr("fedcircuits.learners.hclt.tree.tree_pass.kernels", lambda: None)
    elif native.kernels() is None:
        pytest.skip("the inner loops are not compiled (no C compiler)")
    return str(request.param)


def tilted(tree: LatentTree) -> TiltedTree:
    rng = np.random.default_rng(1)
    base = untilted(tree, 2)
    root = rng.normal(size=(2, tree.n_states))
    return base.with_tilt(rng.normal(size=2), rng.normal(size=base.g.shape), root)


def class_tree() -> ClassTree:
    return renormalise(tilted(averaged(trees())))


@pytest.mark.usefixtures("engine")
class TestPasses:
    def test_likelihood_is_the_mean_of_the_trees(self) -> None:
        each = [np.exp(log_likelihood(tree, ROWS)) for tree in trees()]
        found = np.exp(log_likelihood(averaged(trees()), ROWS))
        assert np.allclose(found, np.mean(each, axis=0), rtol=1e-12)

    def test_counts_are_those_of_full_transitions(self) -> None:
        tree = averaged(trees())
        found = expected_counts(tree, ROWS)
        wanted = expected_counts(replace(tree, transitions=full(tree.transitions)), ROWS)
        assert np.allclose(found.root, wanted.root, rtol=1e-10)
        inner = PARENT >= 0
        assert np.allclose(found.pairs[inner], within(wanted.pairs)[inner], rtol=1e-10)
        for mine, theirs in zip(found.emissions, wanted.emissions, strict=True):
            assert np.allclose(mine, theirs, rtol=1e-10)

    def test_normaliser_and_its_flows(self) -> None:
        model = tilted(averaged(trees()))
        wide = replace(
            model,
            trees=tuple(replace(t, transitions=full(t.transitions)) for t in model.trees),
        )
        found = normaliser(model, [TreePass(model.trees[0])], with_pairs=True)
        wanted = normaliser(wide, [TreePass(wide.trees[0])], with_pairs=True)
        assert found.log_z == pytest.approx(wanted.log_z, abs=1e-12)
        assert np.allclose(found.cells, wanted.cells, rtol=1e-10)
        assert found.pairs is not None
        assert wanted.pairs is not None
        assert np.allclose(found.pairs, within(wanted.pairs), rtol=1e-10, atol=1e-15)


def test_a_step_of_em_raises_likelihood_and_prior() -> None:
    tree, smoothing = averaged(trees()), Smoothing()
    priors = [np.full(card, 1 / card) for card in CARDS]
    values = []
    for _ in range(3):
        counts = expected_counts(tree, ROWS)
        values.append(counts.log_likelihood + log_prior(tree, smoothing, priors))
        tree = maximise(counts, tree, smoothing, priors)
        assert np.allclose(tree.transitions[PARENT >= 0].sum(axis=-1), 1.0)
    assert values == sorted(values)


def test_renormalised_tables_hold_the_tilted_density() -> None:
    complete = ROWS[(ROWS >= 0).all(axis=1)]
    log_joint = class_tree().log_joint(complete)
    assert np.exp(log_joint).sum() == pytest.approx(1.0, abs=1e-12)
    model = tilted(averaged(trees()))
    flows = normaliser(model, [TreePass(model.trees[0])])
    assert np.allclose(np.exp(log_joint).sum(axis=0), np.exp(flows.log_class - flows.log_z))


def test_the_circuit_has_the_same_density() -> None:
    model = class_tree_of(averaged(trees()))
    schema = Schema(
        [Variable(f"x{j}", "categorical", tuple("abcd"[:card])) for j, card in enumerate(CARDS)]
    )
    circuit = to_circuit(model, schema, None, None)
    complete = ROWS[(ROWS >= 0).all(axis=1)]
    frame = {f"x{j}": [[*"abcd"][code] for code in complete[:, j]] for j in range(4)}

    found = circuit.log_prob(pd.DataFrame(frame)).to_numpy()
    assert np.allclose(found, model.log_joint(complete)[:, 0], atol=1e-12)


def test_marginals_are_fitted_over_all_blocks() -> None:
    wanted = [np.arange(1.0, card + 1) / (card * (card + 1) / 2) for card in CARDS]
    fitted = with_marginals(class_tree(), wanted)
    complete = ROWS[(ROWS >= 0).all(axis=1)]
    mass = np.exp(fitted.log_joint(complete)).sum(axis=1)
    for j, marginal in enumerate(wanted):
        assert np.allclose(np.bincount(complete[:, j], mass), marginal, atol=2e-5)


def test_completions_follow_the_conditional() -> None:
    model = class_tree()
    passes = ClassPass(model)
    up = passes.upward(ROWS.astype(np.int64))
    assert np.allclose(up.log_joint, model.log_joint(ROWS), atol=1e-10)
    row = np.array([[1, -1, 2, -1]])
    up = passes.upward(row)
    n = 40_000
    drawn = passes.draw(
        up, np.zeros(n, dtype=np.int64), copies_of(row_seeds(row), n), np.ones(n, dtype=np.int64)
    )
    assert np.allclose(passes.again(up, np.zeros(5, dtype=np.int64), drawn[:5]),
                       model.log_joint(drawn[:5]), atol=1e-10)  # fmt: skip
    cells = np.array([(1, a, 2, b) for a in range(3) for b in range(3)])
    wanted = np.exp(model.log_joint(cells)[:, 1])
    share = np.bincount(3 * drawn[:, 1] + drawn[:, 3], minlength=9) / n
    assert np.abs(share - wanted / wanted.sum()).max() < 0.01


def test_a_file_keeps_the_blocks() -> None:
    model = class_tree()
    again = ClassTree.from_arrays(model.arrays(), CARDS, 2)
    assert again.transitions.shape == (2, 4, B * W, W)
    assert np.array_equal(again.transitions, model.transitions)


def bananas(n: int, seed: int) -> pd.DataFrame:
    """Numbers that depend on each other strongly, and a class."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 2))
    a = z[:, 0]
    b = a**2 + 0.1 * z[:, 1]
    c = np.sin(2 * a) + 0.1 * rng.normal(size=n)
    d = b * c + 0.1 * rng.normal(size=n)
    label = np.where(a + d + 0.3 * rng.normal(size=n) > 0, "yes", "no")
    return pd.DataFrame({"a": a, "b": b, "c": c, "d": d, "label": label})


class TestSearch:
    def test_dependent_numbers_get_several_trees_and_gain_by_them(self) -> None:
        rows, fresh = (bananas(1500, seed).drop(columns="label") for seed in (0, 1))
        several = fc.learn(rows, seed=0)
        single = fc.learn(rows, learner=Hclt(n_trees=1), seed=0)
        assert several.fit_report is not None
        assert several.fit_report.sizes["trees averaged"] > 1
        assert several.mean_log_prob(fresh) > single.mean_log_prob(fresh) + 0.1

    def test_independent_numbers_keep_one(self) -> None:
        rng = np.random.default_rng(0)
        rows = pd.DataFrame(rng.normal(size=(1500, 4)), columns=list("abcd"))
        report = fc.learn(rows, seed=0).fit_report
        assert report is not None
        assert report.sizes["trees averaged"] == 1

    @pytest.mark.parametrize(
        "options", [{"head": False, "class_transitions": True}, {"head": True}]
    )
    def test_every_query_of_a_labelled_average_agrees(self, options: dict[str, bool]) -> None:
        model = fc.learn(
            bananas(800, 0), label="label", learner=Hclt(n_trees=3, n_states=6, **options), seed=0
        )
        assert model.fit_report is not None
        assert model.fit_report.sizes["trees averaged"] == 3
        rows = bananas(40, 2)
        known = rows.drop(columns="label")
        each = [np.exp(model.log_prob(known.assign(label=y))) for y in ("no", "yes")]
        both = np.exp(model.log_prob(known))
        assert np.allclose(each[0] + each[1], both, rtol=1e-9)
        proba = model.predict_proba(known, "label")["yes"].to_numpy()
        assert np.allclose(proba, each[1] / both, atol=1e-9)

    def test_a_client_has_one_tree_unless_it_asks(self) -> None:
        rows = bananas(600, 0).drop(columns="label")
        schema = fc.Schema.infer(rows)
        table = schema.encode(rows)
        agreed = replace(table, schema=schema.with_grids(table))
        for learner, n_trees in ((Hclt(), 1), (Hclt(n_trees=2), 2)):
            report = learner.for_agreed_schema().fit(agreed, np.random.default_rng(0)).fit_report
            assert report is not None
            assert report.sizes["trees averaged"] == n_trees


def test_few_rows_have_several_trees() -> None:
    """Validation rows of a small table cannot tell whether that pays; it costs little there."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=150)
    frame = pd.DataFrame({name: z + rng.normal(0, 0.5, 150) for name in "abcd"})
    model = fc.learn(frame)
    assert model.fit_report is not None
    assert model.fit_report.sizes["trees averaged"] > 1
