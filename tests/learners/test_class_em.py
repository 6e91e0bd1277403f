"""Classes fitted for their density: what is a class's own is found, few rows lean on all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.errors import LearningError
from fedcircuits.learners.hclt.learner import Hclt, Mixture


def crossed(n: int = 3000, seed: int = 0) -> pd.DataFrame:
    """Two columns that mostly agree in one class, mostly disagree in the other; each is even."""
    rng = np.random.default_rng(seed)
    a, y = rng.integers(2, size=n), rng.integers(2, size=n)
    differ = rng.random(n) < np.where(y == 0, 0.02, 0.7)
    frame = pd.DataFrame({"a": a.astype(str), "b": (a ^ differ).astype(str)})
    frame["c"] = rng.integers(3, size=n).astype(str)
    frame["y"] = np.array(["same", "other"])[y]
    return frame


def fitted(learner: Hclt, frame: pd.DataFrame) -> fc.Density:
    schema = fc.Schema.infer(frame, {"y": "categorical"})
    return learner.fit(schema.encode(frame), np.random.default_rng(0))


def test_what_two_columns_do_together_in_a_class_is_described() -> None:
    """A tilt is one factor a column: it cannot say this, and the density shows it."""
    told = Hclt(label="y", n_states=4, class_transitions=False, head=False)
    test = crossed(1000, seed=1)
    agree = np.array([0.98, 0.3])
    truth = np.log(0.5 * 0.5 / 3) + np.mean(agree * np.log(agree) + (1 - agree) * np.log(1 - agree))
    density = fitted(replace(told, aim="density"), crossed()).mean_log_prob(test)
    tilted = fitted(told, crossed()).mean_log_prob(test)
    assert density == pytest.approx(truth, abs=0.02)
    assert tilted < truth - 0.1


@pytest.mark.parametrize("learner", [Hclt, Mixture])
def test_every_class_has_mass_one(learner: type[Hclt]) -> None:
    model = fitted(learner(label="y", n_states=4, aim="density"), crossed(500))
    worlds = pd.MultiIndex.from_product(
        [v.categories for v in model.schema], names=model.schema.names
    ).to_frame(index=False)
    mass = np.exp(model.log_prob(worlds)).groupby(worlds["y"]).sum()
    assert mass.sum() == pytest.approx(1.0, abs=1e-9)
    assert mass["same"] == pytest.approx(0.5, abs=0.06)


def test_a_class_of_few_rows_looks_like_all_rows_together() -> None:
    rng = np.random.default_rng(0)
    frame = crossed(2000)
    frame["c"] = np.where(rng.random(2000) < 0.9, "0", "1")
    rare = frame[:2].assign(y="rare", c="1")
    model = fitted(Hclt(label="y", n_states=4, aim="density"), pd.concat([frame, rare]))
    chance = model.condition({"y": "rare"}).predict_proba(pd.DataFrame(index=[0]), "c")
    assert chance["0"].iloc[0] > 0.3  # two rows of "1" do not decide


def test_aim_is_the_learners_own_choice_only_with_many_classes() -> None:
    assert Hclt().for_classes(1000, 4).aim == "label"
    assert Hclt().for_classes(1000, 16).aim == "density"
    assert Hclt(n_states=5).for_classes(1000, 16).n_states == 5


def test_an_aim_that_is_none_is_refused() -> None:
    with pytest.raises(LearningError, match="aim is 'label' or 'density', found 'both'"):
        fitted(Hclt(label="y", aim="both"), crossed(100))  # type: ignore[arg-type]
    with pytest.raises(LearningError, match="it goes with aim='label'"):
        fitted(Hclt(label="y", aim="density", head=True), crossed(100))
