"""Definition 4: the machine of every node (psi), and what it does with its children (omega).

Sums and products make a federated *probabilistic* circuit (Definition 5). A federated circuit may
as well average or vote over classifiers: the bagging model of section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.structure import Structure
from fedcircuits.federation.server.circuit_builder import SERVER

# --- psi ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """A node and its machine.

    Attributes:
        node: its number, leaves first.
        at: the client, or the server, to which it sends its result (section 3.2).
    """

    node: int
    at: str


def placement(structure: Structure, owners: Sequence[str]) -> tuple[Placed, ...]:
    """Returns the placement of all nodes: leaves at their owners, the rest at the server."""
    at = [*owners, *[SERVER] * structure.n_inner]
    return tuple(Placed(node, where) for node, where in enumerate(at))


# --- omega ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """An operation of inner nodes.

    Attributes:
        name: as users write it.
        apply: from the children's values (C, ...) and weights (C,) that sum to one.
    """

    name: str
    apply: Callable[[FloatArray, FloatArray], FloatArray]


def mixture(log_values: FloatArray, weights: FloatArray) -> FloatArray:
    """log sum_c w_c exp(v_c); -inf is carried, not floored."""
    with np.errstate(divide="ignore"):
        terms = log_values + np.log(weights).reshape(-1, *[1] * (log_values.ndim - 1))
    return np.asarray(np.logaddexp.reduce(terms, axis=0))


def product(log_values: FloatArray, weights: FloatArray) -> FloatArray:
    """log prod_c exp(v_c); weights play no part."""
    del weights
    return np.asarray(log_values.sum(axis=0))


def average(posteriors: FloatArray, weights: FloatArray) -> FloatArray:
    """(n, k) sum_c w_c p_c(y | x) of posteriors (C, n, k)."""
    return np.asarray(np.einsum("c,cnk->nk", weights, posteriors))


def vote(posteriors: FloatArray, weights: FloatArray) -> FloatArray:
    """(n, k) share of the votes for each class; a tie in a client's posterior goes to the first."""
    winners = posteriors.argmax(axis=2)  # (C, n)
    ballots = np.eye(posteriors.shape[2])[winners]  # (C, n, k)
    return np.asarray(np.einsum("c,cnk->nk", weights, ballots))


MIXTURE = Operation("mixture", mixture)
PRODUCT = Operation("product", product)
AVERAGE = Operation("average", average)
VOTE = Operation("vote", vote)
OPERATIONS = {operation.name: operation for operation in (MIXTURE, PRODUCT, AVERAGE, VOTE)}
