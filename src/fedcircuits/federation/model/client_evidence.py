"""The evidence of clients that hold the same columns: how the log-odds change when one leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.density.queries.explanation import PRIOR, Explanation, log_odds, summed
from fedcircuits.errors import FederationError
from fedcircuits.schema import Data
from fedcircuits.schema.table import Unknown

if TYPE_CHECKING:
    from fedcircuits.federation.model.federated_circuit import FederatedCircuit


def by_leaving(
    fed: FederatedCircuit, found: Explanation, rows: Data, unknown: Unknown
) -> Explanation:
    """Returns an explanation with the evidence of each client of a federation of split rows.

    Args:
        fed: the federation.
        found: explanation by columns.
        rows: that are explained.
        unknown: as in `Density.predict_proba`.
    """
    clients = list(fed.clients)
    if len(clients) < 2:
        return found
    answer = np.asarray(found.log_odds, dtype=np.float64)
    evidence = np.empty((answer.size, len(clients)))
    for at, client in enumerate(clients):
        try:
            rest = fed.without(client)
        except FederationError:  # the rule trained all clients as one: nobody can leave
            return found
        proba = rest.predict_proba(rows, found.target, unknown=unknown)
        outcomes = list(fed.schema[found.target].outcomes or ())
        chosen = np.array([outcomes.index(value) for value in found.value], dtype=np.int64)
        with np.errstate(invalid="ignore"):
            evidence[:, at] = answer - log_odds(proba.to_numpy(), chosen)
    prior = np.asarray(found.columns[PRIOR], dtype=np.float64)
    return replace(found, clients=summed(found.value.index, prior, evidence, clients, answer))
