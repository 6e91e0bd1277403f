"""Covariance where "missing" is a state of a column: its value counts as the mean."""

from __future__ import annotations

import numpy as np
import pytest

from fedcircuits import Schema, Variable, build
from fedcircuits.schema import Grid

GRID = Grid(np.array([1.0, 2.0, 6.0]), np.array([0.0, 10.0]), tails=(0.0, 0.0), missing=True)


def test_a_missing_value_adds_nothing_to_a_variance() -> None:
    """Two children with 30 % and 80 % missing: the variance over all worlds."""
    schema = Schema((Variable("x", "continuous", grid=GRID, missing_state=True),))
    shares = ((0.3, [0.5, 0.3, 0.2]), (0.8, [0.1, 0.2, 0.7]))
    leaves = []
    for missing, atoms in shares:
        probs = np.zeros(GRID.n_states)
        for value, share in zip((1.0, 2.0, 6.0), atoms, strict=True):
            probs[int(GRID.encode(np.array([value]))[0])] = (1 - missing) * share
        probs[-1] = missing
        leaves.append(build.histogram("x", GRID, probs))
    circuit = build.circuit(schema, build.sum(leaves, [0.4, 0.6]))
    weight = {}
    for prior, (missing, atoms) in zip((0.4, 0.6), shares, strict=True):
        for value, share in zip((1.0, 2.0, 6.0), atoms, strict=True):
            weight[value] = weight.get(value, 0.0) + prior * (1 - missing) * share
    there = sum(weight.values())
    mean = sum(value * share for value, share in weight.items()) / there
    variance = sum(share * (value - mean) ** 2 for value, share in weight.items())
    assert circuit.covariance(["x"]).to_numpy()[0, 0] == pytest.approx(variance, rel=1e-9)
