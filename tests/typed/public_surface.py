"""What a type checker knows of the public surface; `mypy` checks this file, nothing runs it.

`assert_type` fails where a call returns another type. Under strict settings an unused
`type: ignore` is an error too, so the last function lists mistakes that must be found.
"""

from __future__ import annotations

from typing import assert_type

import pandas as pd

import fedcircuits as fc


def returned_types(rows: pd.DataFrame) -> None:
    clients = {"a": rows, "b": rows}
    assert_type(fc.federate(clients), fc.FederatedCircuit)
    assert_type(fc.federate(clients, "id", "y", learner=fc.learners.Hclt()), fc.FederatedCircuit)
    assert_type(fc.federate(clients, learner={"a": "hclt", "b": "auto"}), fc.FederatedCircuit)
    assert_type(fc.federate(clients, agreement=fc.Latent()), fc.FederatedCircuit)
    assert_type(fc.federate(clients, agreement="latent", n_clusters=3), fc.FederatedCircuit)
    assert_type(fc.federate(clients, operation="mixture"), fc.FederatedCircuit)
    assert_type(fc.federate(clients, label="y", operation="vote"), fc.FederatedEnsemble)
    assert_type(fc.federate(clients, label="y", operation="average"), fc.FederatedEnsemble)
    assert_type(fc.federate(clients, engine=fc.ProcessEngine), fc.FederatedCircuit)
    assert_type(fc.federate(engine=fc.LocalEngine({})), fc.FederatedCircuit)
    assert_type(fc.learn(rows, label="y", learner="mixture"), fc.Density)
    assert_type(fc.load("m.fc"), fc.Density | fc.FederatedEnsemble)
    assert_type(fc.load("m.fc", fc.Density), fc.Density)
    assert_type(fc.load("m.fc", fc.FederatedCircuit), fc.FederatedCircuit)
    assert_type(fc.partition.iid(rows, 3), dict[str, pd.DataFrame])


def results(fed: fc.FederatedCircuit) -> None:
    assert_type(fed.ledger, fc.Ledger)
    assert_type(fed.rule, fc.Rule | None)
    assert_type(fed.fit_report, fc.FitReport | None)
    assert_type(fed.without("a"), fc.FederatedCircuit)
    rules: list[fc.Rule] = [
        fc.Anchors(),
        fc.Em(),
        fc.Independent(),
        fc.Joint(),
        fc.Latent(),
        fc.ProductOfClasses(),
    ]
    learner: fc.Learner = fc.learners.Hclt()
    transport: fc.Transport = fc.LocalEngine({})
    del rules, learner, transport


def mistakes(rows: pd.DataFrame) -> None:
    clients = {"a": rows}
    fc.federate(clients, placement="nowhere")  # type: ignore[call-overload]
    fc.federate(clients, operation="sum")  # type: ignore[call-overload]
    fc.federate(clients, learner=3)  # type: ignore[call-overload]
    fc.federate(clients, agreement=3)  # type: ignore[call-overload]
    fc.learn(rows, learner=3)  # type: ignore[arg-type]
    fc.load("m.fc").log_prob(rows)  # type: ignore[union-attr]
