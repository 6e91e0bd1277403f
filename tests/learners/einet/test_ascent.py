"""Gradient ascent: parity with the tape and with finite differences; it climbs; it resumes."""

# ruff: noqa: E402  (torch is an extra: what needs it is imported after the check for it)

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

torch = pytest.importorskip("torch")

import fedcircuits as fc
from fedcircuits.errors import LearningError
from fedcircuits.learners.einet import EiNet
from fedcircuits.learners.einet.leaves import (
    Bernoulli,
    Binomial,
    Categorical,
    DiscretisedGaussian,
    Gaussian,
)
from fedcircuits.learners.einet.network.layout import lay_out
from fedcircuits.learners.einet.network.network import Parameters, initial_parameters, make_network
from fedcircuits.learners.einet.passes import downward, forward, m_step
from fedcircuits.learners.einet.structures.hidden_tree import hidden_chow_liu_tree
from fedcircuits.learners.einet.structures.poon_domingos import poon_domingos
from fedcircuits.learners.einet.structures.random_trees import random_trees
from fedcircuits.learners.einet.training import ascent
from fedcircuits.learners.einet.training.rows import Rows
from fedcircuits.learners.einet.training.train import Schedule, train

pytestmark = pytest.mark.slow

FAMILIES = [
    Categorical(4),
    Binomial(3),
    Bernoulli(),
    Gaussian(1e-2, 4.0),
    DiscretisedGaussian(1e-2, 1.0, n_levels=4),
]
STRUCTURES = [("pd", "cp"), ("pd", "tucker"), ("rat", "tucker"), ("hclt", "cp")]


def made(structure: str, layer: str, family: Any) -> Any:
    rng = np.random.default_rng(2)
    if structure == "pd":
        graph = poon_domingos(2, 3, (2, 3))
    elif structure == "rat":
        graph = random_trees(6, 2, 3, rng)
    else:
        graph = hidden_chow_liu_tree(rng.integers(4, size=(100, 6)), 4)
    network = make_network(lay_out(graph), [family] * 6, 3, layer, 2)
    top = 2 if isinstance(family, Bernoulli) else 4
    kind = rng.integers(2, size=(60, 1))
    x = torch.as_tensor((rng.integers(top, size=(60, 6)) + kind).clip(max=top - 1))
    known = torch.as_tensor(rng.random(x.shape) < 0.85)
    labels = torch.as_tensor(rng.integers(-1, 2, size=60))
    generator = torch.Generator().manual_seed(1)
    return (
        network,
        initial_parameters(network, x, known, generator, torch.float64),
        x,
        known,
        labels,
    )


def gradient_of(network: Any, params: Any, *rows: Any) -> Any:
    counts = downward.expected_counts(network, params, *rows)
    return ascent.gradient(network, params, counts, pseudo_count=0.0, share=1.0)


@pytest.mark.parametrize(("structure", "layer"), STRUCTURES)
def test_the_gradient_of_sums_is_that_of_the_tape(structure: str, layer: str) -> None:
    network, params, *rows = made(structure, layer, Categorical(4))
    logits = {n: torch.log(params.tensors()[n]).requires_grad_() for n in ("weights", "root")}
    logits["prior"] = torch.log(params.prior).requires_grad_()
    owner = torch.as_tensor(network.layout.owner - network.layout.n_leaves)

    def normalised(each: Any, of: Any) -> Any:
        """Softmax over all edges of a node, whichever partition they are in."""
        each = torch.exp(each)
        total = each.flatten(2).sum(2)  # (P, O)
        total = torch.zeros((int(of.max()) + 1, total.shape[1]), dtype=each.dtype).index_add(
            0, of, total
        )
        return each / total[of].view(*each.shape[:2], *([1] * (each.dim() - 2)))

    tape = Parameters(
        normalised(logits["weights"], owner),
        normalised(logits["root"], torch.zeros(len(params.root), dtype=torch.long)),
        torch.softmax(logits["prior"], 0),
        params.leaves,
    )
    forward.log_likelihood(network, tape, *rows).mean().backward()
    found = gradient_of(network, params, *rows)
    for name, variable in logits.items():
        torch.testing.assert_close(found[name], variable.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize(("structure", "layer"), STRUCTURES)
def test_the_gradient_of_leaves_is_the_finite_difference(
    structure: str, layer: str, family: Any
) -> None:
    network, params, *rows = made(structure, layer, family)
    # Away from the bounds of the variance, where a projected step has no derivative.
    if "variance" in params.leaves[0]:
        params.leaves[0]["variance"].clamp_(0.05, 0.9)
    slopes = {
        name.removeprefix("leaf0."): slope
        for name, slope in gradient_of(network, params, *rows).items()
        if name.startswith("leaf0.")
    }
    generator = torch.Generator().manual_seed(7)
    for name in slopes:
        way = {
            other: torch.randn(slope.shape, generator=generator, dtype=torch.float64)
            * float(other == name)
            for other, slope in slopes.items()
        }

        def at(length: float, way: Any = way) -> float:
            leaves = family.moved(params.leaves[0], {n: length * w for n, w in way.items()})
            moved = Parameters(params.weights, params.root, params.prior, (leaves,))
            return float(forward.log_likelihood(network, moved, *rows).mean())

        step = 1e-5
        expected = (at(step) - at(-step)) / (2 * step)
        assert float((slopes[name] * way[name]).sum()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize(("structure", "layer"), STRUCTURES)
def test_it_climbs_and_stays_legal(structure: str, layer: str, family: Any) -> None:
    network, params, *rows = made(structure, layer, family)
    history, moments = [], ascent.Moments()
    for step in range(60):
        counts = downward.expected_counts(network, params, *rows)
        history.append(float(counts.log_likelihood))
        params = ascent.ascend_(network, params, counts, 0.02, moments)
        assert all(torch.isfinite(t).all() for t in params.tensors().values()), step
    gains = np.diff(history)
    assert history[-1] - history[0] > 5.0  # nats over 60 rows
    assert gains.min() > -0.02 * (history[-1] - history[0])
    assert float(params.root.sum((0, *range(2, params.root.dim())))[0]) == pytest.approx(1.0)
    if "variance" in params.leaves[0]:
        assert float(params.leaves[0]["variance"].min()) >= family.min_variance
        assert float(params.leaves[0]["variance"].max()) <= family.max_variance


def test_smoothing_pulls_to_the_same_fixed_point_as_em() -> None:
    network, params, *rows = made("rat", "tucker", Categorical(4, 2.0))

    def steepest() -> float:
        counts = downward.expected_counts(network, params, *rows)
        slopes = ascent.gradient(network, params, counts, pseudo_count=3.0, share=1.0)
        return max(float(slope.abs().max()) for slope in slopes.values())

    before = steepest()
    for _ in range(300):
        counts = downward.expected_counts(network, params, *rows)
        params = m_step.m_step_(network, params, counts, m_step.EMSettings(pseudo_count=3.0))
    assert steepest() < before / 1000


def test_a_resumed_ascent_gives_the_same_bits(tmp_path: Path) -> None:
    network, start, x, _, _ = made("pd", "cp", Categorical(4, 1.0))
    rows = Rows(x.numpy().astype(np.uint8))
    schedule = Schedule(6, 20, 0.05, 0.01, method="adam")
    whole = train(network, start, rows, schedule, seed=5)
    path = tmp_path / "run.safetensors"
    train(network, start, rows, schedule, 5, path, report=lambda state: state.epoch == 2)
    resumed = train(network, start, rows, schedule, 5, path)
    named = resumed.params.tensors()
    assert all(torch.equal(t, named[name]) for name, t in whole.params.tensors().items())
    assert whole.history == resumed.history
    assert resumed.history[-1] > resumed.history[0]


@pytest.mark.parametrize("leaf", ["categorical", "discretised-gaussian", "binomial", "gaussian"])
def test_it_is_an_option_of_the_learner(leaf: str) -> None:
    images = (load_digits().images[:400] * 15).astype(np.uint8)
    options = {"width": 6, "batch": 50, "device": "cpu", "leaf": leaf}
    first = fc.learn(images, learner="einet", method="adam", epochs=1, seed=1, **options)
    longer = fc.learn(
        images, learner="einet", method="adam", learning_rate=0.1, epochs=12, seed=1, **options
    )
    assert longer.mean_log_prob(images) > first.mean_log_prob(images) + 1.0
    assert longer.fit_report is not None
    assert longer.fit_report.sizes["method"] == "adam"


def test_an_unknown_method_is_refused() -> None:
    images = np.zeros((5, 2, 2), dtype=np.uint8)
    with pytest.raises(LearningError, match="method 'sgd'; expected one of 'em', 'adam'"):
        fc.learn(images, learner=EiNet(method="sgd"))  # type: ignore[arg-type]
    with pytest.raises(LearningError, match="steps"):
        fc.learn(images, learner=EiNet(method="adam", learning_rate=0.0))
