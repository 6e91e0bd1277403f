"""What every density keeps about events: sums over the worlds that belong to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.density import Density

Holds = Callable[[Any], bool]


def event_about(variable: fc.Variable, values: list[Any], turn: int) -> tuple[Any, Holds]:
    """An event about a variable whose points are `values`, and whether a value belongs to it."""
    if variable.is_coded:
        some = list(variable.categories[:: 2 if turn % 2 else 1][:2])
        if turn % 3 == 0:
            return fc.not_(some[0]), lambda x: x != some[0]
        return fc.one_of(some), lambda x: x in some
    grid = variable.grid
    # Ends at edges: there the quadrature of a world's panel begins anew.
    ends = grid.edges if grid is not None and not grid.integer else np.unique(values)
    low, high = float(ends[0]), float(ends[len(ends) // 2])
    if turn % 3 == 0 and high > low:
        return fc.between(low, high, closed="left"), lambda x: low <= x < high
    if turn % 3 == 1:
        return fc.above(high), lambda x: x > high
    return fc.not_(fc.above(high)), lambda x: x <= high


def check_events(
    model: Density, frame: pd.DataFrame, mass: np.ndarray, rtol: float, atol: float
) -> None:
    """Probabilities, predictions and samples given events agree with sums over all worlds.

    Args:
        model: on trial.
        frame: worlds.
        mass: (n,) of each world.
        rtol: tolerances.
        atol: of the model's arithmetic.
    """
    names = list(model.schema.names)
    # Without a grid it is not known where the quadrature of a continuum may be cut.
    cut = [v.name for v in model.schema if v.kind != "continuous" or v.grid is not None]
    if not cut:
        pytest.skip("no variable whose worlds can be cut")
    for turn in range(3):
        chosen = {
            name: event_about(model.schema[name], list(frame[name].unique()), turn + at)
            for at, name in enumerate(names)
            if (at + turn) % 2 == 0 and name in cut
        }
        asked = {
            name: event_about(model.schema[name], list(frame[name].unique()), turn + 1)
            for name in [cut[-1 - turn % len(cut)]]
        }
        inside = np.ones(len(frame), dtype=bool)
        for name, (_, holds) in chosen.items():
            inside &= frame[name].map(holds).to_numpy(dtype=bool)
        both = inside.copy()
        for name, (_, holds) in asked.items():
            both &= frame[name].map(holds).to_numpy(dtype=bool)
        total = mass[inside].sum()
        if not chosen or not total > 1e-9:
            continue
        given = {name: event for name, (event, _) in chosen.items()}
        wanted = {name: event for name, (event, _) in asked.items()}
        row = pd.DataFrame({name: pd.Series([event]) for name, event in given.items()})
        slack = max(atol, rtol)
        assert np.exp(model.log_prob(row)[0]) == pytest.approx(total, rel=rtol * 10, abs=slack)
        expected = mass[both].sum() / total
        assert model.probability(wanted, given) == pytest.approx(expected, abs=10 * slack)
        limited = model.condition(given)
        assert limited.probability(wanted) == pytest.approx(expected, abs=10 * slack)
        target = next((n for n in names if model.schema[n].is_coded and n not in chosen), None)
        if target is not None:
            shares = pd.Series(mass[inside]).groupby(frame[target][inside].to_numpy()).sum() / total
            for found in (model.predict_proba(row, target), limited.predict_proba(row, target)):
                for category, share in shares.items():
                    assert found.iloc[0][category] == pytest.approx(share, abs=10 * slack)
        drawn = model.sample(20, given, seed=turn)
        for name, (_, holds) in chosen.items():
            assert drawn[name].map(holds).all()
