"""Rules whose clients compute more than fits give the same model in processes, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

import fedcircuits as fc
from contracts.rule import both_split, columns_split_label_shared, small_table
from fedcircuits.federation.agreement import Anchors, Latent
from fedcircuits.learners.hclt.learner import Mixture

pytestmark = pytest.mark.slow

CASES: dict[str, tuple[Any, Any]] = {
    "latent": (Latent(4, 4), columns_split_label_shared),
    "anchors": (Anchors(3, 3, n_rounds=2), both_split),
}


@pytest.mark.parametrize("case", list(CASES))
def test_processes_make_the_same_model(case: str) -> None:
    rule, clients = CASES[case]
    test = small_table(60, seed=3).drop(columns="id")
    here, there = (
        fc.federate(
            clients(), id="id", label="y", agreement=rule, engine=engine,
            id_secret="only clients know",
            learner=Mixture(n_states=3),
        )
        for engine in ("local", "processes")
    )  # fmt: skip
    assert here.log_prob(test).tolist() == there.log_prob(test).tolist()
    assert here.ledger.totals() == there.ledger.totals()
