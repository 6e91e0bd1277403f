"""Labels of EiNets: sums of their own for every class, and fine-tuning, in one density."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.api import datasets

torch = pytest.importorskip("torch")
from fedcircuits.learners.einet.leaves import Bernoulli  # noqa: E402
from fedcircuits.learners.einet.network.layout import lay_out  # noqa: E402
from fedcircuits.learners.einet.network.network import (  # noqa: E402
    initial_parameters,
    make_network,
    with_own_sums,
)
from fedcircuits.learners.einet.passes.downward import expected_counts  # noqa: E402
from fedcircuits.learners.einet.passes.forward import log_likelihood  # noqa: E402
from fedcircuits.learners.einet.structures.class_copies import class_copies  # noqa: E402
from fedcircuits.learners.einet.structures.random_trees import random_trees  # noqa: E402
from fedcircuits.learners.einet.training.ascent import gradient  # noqa: E402


def binary_table(n_rows: int = 400, seed: int = 0) -> pd.DataFrame:
    """Five binary columns whose dependence, not their means, differs between two classes."""
    rng = np.random.default_rng(seed)
    x = rng.integers(2, size=(n_rows, 5))
    y = rng.integers(2, size=n_rows)
    x[:, 1] = np.where(y == 1, x[:, 0], 1 - x[:, 0]) ^ (rng.random(n_rows) < 0.1)
    frame = pd.DataFrame(x, columns=list("abcde")).astype(str)
    return frame.assign(y=np.where(y == 1, "yes", "no"))


def learned(**options: object) -> fc.Density:
    settings = {"width": 4, "epochs": 6, "batch": 50, "precision": "float64", **options}
    return fc.learn(binary_table(), label="y", learner="einet", seed=1, **settings)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("structure", ["hclt", "random-trees"])
@pytest.mark.parametrize("fine_tune", [0, 3])
def test_mass_is_one_and_the_posterior_is_the_density_s_own(structure: str, fine_tune: int) -> None:
    model = learned(structure=structure, fine_tune=fine_tune)
    worlds = pd.DataFrame(list(product("01", repeat=5)), columns=list("abcde"))
    both = {y: np.exp(model.log_prob(worlds.assign(y=y)).to_numpy()) for y in ("no", "yes")}
    assert sum(p.sum() for p in both.values()) == pytest.approx(1.0, abs=1e-9)
    np.testing.assert_allclose(
        np.exp(model.log_prob(worlds).to_numpy()), both["no"] + both["yes"], atol=1e-12
    )
    posterior = both["yes"] / (both["no"] + both["yes"])
    asked = model.predict_proba(worlds, "y")["yes"]
    np.testing.assert_allclose(asked.to_numpy(), posterior, atol=1e-9)


def test_classes_that_differ_in_dependence_alone_are_told_apart() -> None:
    test = binary_table(400, 7)
    found = {
        sums: (
            learned(class_sums=sums, epochs=40).predict(test.drop(columns="y"), "y") == test["y"]
        ).mean()
        for sums in ("own", "shared")
    }
    assert found["own"] > 0.85


def small_network() -> tuple[object, object]:
    graph = class_copies(random_trees(4, 2, 2, np.random.default_rng(0)), 3)
    network = make_network(lay_out(graph), [Bernoulli(pseudo_count=0.0)] * 4, 3, "cp", 3)
    x = torch.randint(0, 2, (20, 4), generator=torch.Generator().manual_seed(0))
    seen = torch.ones((20, 4), dtype=torch.bool)
    start = initial_parameters(network, x, seen, torch.Generator().manual_seed(1), torch.float64)
    return network, with_own_sums(network, start)


def test_a_class_starts_with_its_own_copy_alone() -> None:
    network, params = small_network()
    n_parts = params.root.shape[0]  # type: ignore[attr-defined]
    for at, weights in enumerate(params.root):  # type: ignore[attr-defined]
        used = weights.flatten(1).sum(1) > 0
        assert used.tolist() == [c == at * 3 // n_parts for c in range(3)]
    worlds = torch.tensor(list(product((0, 1), repeat=4)))
    total = torch.exp(log_likelihood(network, params, worlds, None, None)).sum()  # type: ignore[arg-type]
    assert float(total) == pytest.approx(1.0, abs=1e-12)


def test_the_gradient_of_the_label_s_likelihood_is_the_difference_of_two_e_steps() -> None:
    network, params = small_network()
    x = torch.randint(0, 2, (6, 4), generator=torch.Generator().manual_seed(3))
    y = torch.tensor([0, 1, 2, 0, 1, 2])

    def score(weights: torch.Tensor) -> float:
        shifted = type(params)(weights, params.root, params.prior, params.leaves)  # type: ignore[attr-defined]
        joint = log_likelihood(network, shifted, x, None, y)  # type: ignore[arg-type]
        return float((joint - log_likelihood(network, shifted, x, None, None)).mean())  # type: ignore[arg-type]

    slopes = [
        gradient(
            network, params, expected_counts(network, params, x, None, c, None, None), 0.0, 1.0
        )  # type: ignore[arg-type]
        for c in (y, None)
    ]
    found = slopes[0]["weights"] - slopes[1]["weights"]
    weights, step = params.weights, 1e-5  # type: ignore[attr-defined]
    at = tuple(int(i) for i in (found.abs() == found.abs().max()).nonzero()[0])

    def moved(by: float) -> torch.Tensor:
        logits = torch.log(weights.clamp(min=1e-300))
        logits[at] += by
        region = network.index("owner", weights.device)  # type: ignore[attr-defined]
        mine = region == region[at[0]]
        new = logits.exp()
        new[mine, at[1]] /= new[mine, at[1]].sum()
        return new

    numeric = (score(moved(step)) - score(moved(-step))) / (2 * step)
    assert float(found[at]) == pytest.approx(numeric, rel=1e-4)


def test_the_report_says_what_fine_tuning_gained() -> None:
    report = learned(fine_tune=3).fit_report
    found = report.kept["fine-tuning for the label"]
    assert len(found["losses"]) == 4
    assert found["gain"] == pytest.approx(found["losses"][0] - min(found["losses"]))
    assert found["losses"][found["epochs"]] == min(found["losses"])


@pytest.mark.slow
def test_digits_are_classified_by_an_einet() -> None:
    split = datasets.digits(0)
    model = fc.learn(split.train, label="digit", learner="einet", width=16, epochs=10, batch=100)
    found = model.predict(split.test.drop(columns="digit"), "digit").astype(int)
    assert (found == split.test["digit"]).mean() > 0.93  # .48 to .89 with roots of their own alone
