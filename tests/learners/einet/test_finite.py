# ruff: noqa: E402
"""Training stops where a number leaves the finite range, and keeps the last good checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fedcircuits as fc
from fedcircuits.errors import LearningError
from fedcircuits.learners.einet.leaves import Categorical
from fedcircuits.learners.einet.network.layout import lay_out
from fedcircuits.learners.einet.network.network import initial_parameters, make_network
from fedcircuits.learners.einet.passes.m_step import Masses
from fedcircuits.learners.einet.structures.random_trees import random_trees
from fedcircuits.learners.einet.training.checkpoint import State, load_state
from fedcircuits.learners.einet.training.finite import check_finite
from fedcircuits.learners.einet.training.rows import Rows
from fedcircuits.learners.einet.training.train import Schedule, train


def started() -> Any:
    """A small network, its start and 60 rows."""
    rng = np.random.default_rng(0)
    x = rng.integers(4, size=(60, 6)).astype(np.uint8)
    network = make_network(lay_out(random_trees(6, 2, 2, rng)), [Categorical(4, 1.0)] * 6, 3)
    known = torch.ones(x.shape, dtype=torch.bool)
    start = initial_parameters(network, torch.as_tensor(x), known, torch.Generator().manual_seed(1))
    return network, start, Rows(x)


@pytest.mark.parametrize("name", ["weights", "root", "leaf0.probs"])
@pytest.mark.parametrize("method", ["em", "adam"])
def test_training_stops_and_the_last_good_checkpoint_stays(
    tmp_path: Path, name: str, method: Any
) -> None:
    network, start, rows = started()
    path = tmp_path / "run.safetensors"

    def poison(state: State) -> None:
        if state.epoch == 2:
            state.params.tensors()[name].view(-1)[0] = torch.nan

    schedule = Schedule(epochs=5, batch=20, method=method)
    with pytest.raises(LearningError, match=r"epoch 3 left the finite numbers in .*layer") as e:
        train(network, start, rows, schedule, 0, path, poison)
    assert "the checkpoint of epoch 2 is kept in" in str(e.value)
    assert "precision='float32'" in str(e.value)
    kept = load_state(path, network, "cpu")
    assert kept.epoch == 2
    assert all(bool(torch.isfinite(t).all()) for t in kept.params.tensors().values())
    assert train(network, start, rows, schedule, 0, path).epoch == 5  # it goes on from there


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("weights", r"the sum layer of level \d+ \(1 of \d+ numbers\)"),
        ("root", "the root layer"),
        ("prior", "the class probabilities"),
        ("leaf0.probs", r"the leaf layer \(Categorical 'probs'\)"),
    ],
)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_the_layer_is_named(name: str, words: str, number: float) -> None:
    network, start, _ = started()
    state = State(start, Masses.zeros(network, start), epoch=4)
    check_finite(network, state, -3.0, None)
    start.tensors()[name].view(-1)[0] = number
    with pytest.raises(LearningError, match=rf"epoch 4 .* in {words}.*no checkpoint: pass"):
        check_finite(network, state, -3.0, None)


def test_running_masses_and_the_likelihood_are_checked() -> None:
    network, start, _ = started()
    state = State(start, Masses.zeros(network, start), epoch=1)
    with pytest.raises(LearningError, match=r"log-likelihood of the rows \(-inf nats per row\)"):
        check_finite(network, state, -np.inf, "run.safetensors")
    state.masses.sums[0, 0] = torch.nan
    with pytest.raises(LearningError, match=r"masses of the sums.*no checkpoint was written"):
        check_finite(network, state, -3.0, "run.safetensors")


KINDS = [
    ("hclt", "cp"), ("poon-domingos", "cp"), ("poon-domingos", "tucker"), ("random-trees", "cp"),
    ("random-trees", "tucker"),
]  # fmt: skip


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("leaf", ["categorical", "discretised-gaussian", "binomial"])
@pytest.mark.parametrize(("structure", "layer"), KINDS)
def test_every_kind_of_einet_stays_finite(
    structure: Any, layer: Any, leaf: Any, precision: Any
) -> None:
    """The check of `benchmarks/einet_finite.py` at small size; pixels are often constant there."""
    rng = np.random.default_rng(3)
    blobs = rng.integers(2, size=(60, 3, 3)).repeat(2, 1).repeat(2, 2) * 255
    images = np.where(rng.random(blobs.shape) < 0.1, rng.integers(256, size=blobs.shape), blobs)
    images[:, 0] = 0
    images = images.astype(np.uint8)
    options: dict[str, Any] = {
        "structure": structure, "layer": layer, "leaf": leaf, "precision": precision, "width": 4,
        "pieces": 3, "depth": 2, "repetitions": 2, "epochs": 6, "batch": 8, "device": "cpu",
    }  # fmt: skip
    for label in (None, images[:, 2, 2] > 100):
        given = {} if label is None else {"label": label[:40]}
        model = fc.learn(images[:40], learner="einet", **options, **given)
        assert np.isfinite(model.log_prob(images)).all()
        if label is not None:
            total = np.asarray(model.predict_proba(images, "label")).sum(axis=1)
            np.testing.assert_allclose(total, 1, atol=1e-9)
