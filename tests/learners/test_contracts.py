"""What each learner offers beyond `fit`, as protocols that a federation asks for."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits import density, learners
from fedcircuits.learners.trees import ForestClassifier, TreeClassifier

EVERY = {"Learner"}
AGREED = EVERY | {"LearnsAgreedSchema"}
LATENT = AGREED | {
    "LearnsLabel",
    "LearnsClasses",
    "LearnsForMixing",
    "LearnsBranch",
    "LearnsInRounds",
    "LearnsTilt",
}
OFFERS = {
    "hclt": LATENT,
    "mixture": LATENT,
    "learnspn": AGREED,
    "einet": AGREED | {"LearnsLabel", "LearnsLevels"},
    "factorised": AGREED,
    "gaussian-mixture": EVERY | {"LearnsLabel"},
    "auto": AGREED | {"LearnsLabel"},
}
PROTOCOLS = [name for name in density.__all__ if name.startswith("Learn")]


def offered(learner: object) -> set[str]:
    """Names of the protocols that a learner meets."""
    return {name for name in PROTOCOLS if isinstance(learner, getattr(density, name))}


@pytest.mark.parametrize("name", sorted(learners.BY_NAME))
def test_learners_offer_what_is_written(name: str) -> None:
    assert offered(getattr(learners, learners.BY_NAME[name])()) == OFFERS[name]


@pytest.mark.parametrize("learner", [TreeClassifier(), ForestClassifier()])
def test_classifiers_are_no_learners_of_densities(learner: object) -> None:
    assert offered(learner) == {"LearnsClassifier"}


@pytest.mark.parametrize("name", ["hclt", "mixture", "learnspn", "factorised", "auto"])
def test_an_agreed_schema_stays_as_it_is(name: str) -> None:
    """A numbering is left out of a table of one's own, and kept where others agreed to it."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"number": np.arange(60), "x": rng.choice(["a", "b"], 60)})
    frame["y"] = np.where(rng.random(60) < 0.8, frame["x"], "a")
    table = fc.Schema.infer(frame).encode(frame)
    learner = getattr(learners, learners.BY_NAME[name])()
    agreed = learner.for_agreed_schema().fit(table, np.random.default_rng(0))
    assert agreed.schema.names == table.schema.names
    if name != "factorised":  # which leaves out nothing
        assert learner.fit(table, np.random.default_rng(0)).schema.names == ("x", "y")
