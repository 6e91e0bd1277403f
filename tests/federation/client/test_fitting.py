"""The learner as a job wants it: smaller for many classes, softer where models are averaged."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.density import Density
from fedcircuits.federation.client.jobs import CLASS, for_job
from fedcircuits.learners import Factorised
from fedcircuits.learners.hclt.learner import MIXED_PRIOR, Hclt
from fedcircuits.schema import Schema, Table

ID = "id"


def rows(n: int = 300, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    frame = {f"x{j}": np.where(rng.random(n) < 0.8, y, 1 - y).astype(str) for j in range(4)}
    return pd.DataFrame(frame).assign(y=np.where(y, "yes", "no"))


def table_with(n_classes: int) -> Table:
    frame = pd.DataFrame({"x": ["a", "b"] * 200, CLASS: np.arange(400) % n_classes})
    return Schema.infer(frame, {CLASS: "categorical"}).encode(frame)


def test_a_learner_without_a_mind_about_jobs_is_left_alone() -> None:
    learner = Factorised()
    for label, mixed in ((None, False), ("x", True), (CLASS, True)):
        assert for_job(learner, table_with(12), label, mixed) is learner


def test_models_that_are_averaged_have_a_weaker_prior() -> None:
    table = table_with(2)
    assert for_job(Hclt("x"), table, "x", False) == Hclt("x")
    assert for_job(Hclt("x"), table, "x", True) == Hclt("x", prior_scale=MIXED_PRIOR)


def test_many_agreed_classes_make_the_learner_smaller() -> None:
    many = for_job(Hclt(CLASS), table_with(20), CLASS, False)
    few = for_job(Hclt(CLASS), table_with(3), CLASS, False)
    assert isinstance(many, Hclt)
    assert many.n_states is not None
    assert few == Hclt(CLASS)


@dataclass(frozen=True)
class Noting:
    """A learner that notes whether it was asked to be one of several."""

    label: str | None = None
    mixed: bool = False
    notes: list[bool] = field(default_factory=list, compare=False)

    def for_mixing(self) -> Noting:
        return replace(self, mixed=True)

    def fit(self, table: Table, rng: np.random.Generator) -> Density:
        self.notes.append(self.mixed)
        return Factorised().fit(table, rng)


def clients(setting: str) -> dict[str, pd.DataFrame]:
    if setting == "horizontal":
        return {"a": rows(seed=1), "b": rows(seed=2)}
    frame = rows().assign(**{ID: np.arange(300)})
    return {"a": frame[[ID, "x0", "x1", "y"]], "b": frame[[ID, "x2", "x3", "y"]]}


@pytest.mark.parametrize("setting", ["horizontal", "vertical"])
def test_only_where_rows_are_split_are_models_averaged(setting: str) -> None:
    learner = Noting()
    options: dict[str, Any] = {} if setting == "horizontal" else {"id": ID}
    fed = fc.federate(clients(setting), label="y", learner=learner, agreement="product", **options)
    assert fed.setting == setting
    assert learner.notes == [setting == "horizontal"] * 2


def test_a_client_tries_neither_head_nor_class_transitions_unless_asked() -> None:
    frame = rows(600)
    told = {}
    for wanted in (None, True):
        learner = Hclt(class_transitions=wanted)
        fed = fc.federate({"a": frame, "b": rows(600, 5)}, label="y", learner=learner)
        assert fed.fitted is not None
        report = fed.fitted.reports["a"]["S0"][0]
        told[wanted] = " ".join(report.kept)
    assert "transitions" not in told[None]
    assert "transitions" in told[True]
