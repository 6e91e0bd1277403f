"""Circuits built by hand that tests store and ask, and rows for them."""

from __future__ import annotations

import numpy as np
import pandas as pd

import fedcircuits as fc
from fedcircuits import Circuit, Schema, Variable, build
from fedcircuits.density.fit_report import FitReport
from fedcircuits.schema import Grid


def stored_circuit() -> Circuit:
    """Every leaf family, shared nodes, zero weights, a grid in the schema, a fit report."""
    grid = Grid(np.array([0.0, 5.5]), np.array([-2.0, 1.0, 7.0]), tails=(1.5, 0.25))
    table = Grid(np.array([2.0]), np.array([0.0, 4.0]), tails=(0.0, 3.0), integer=True)
    schema = Schema(
        (
            Variable("income", "continuous", grid=grid, unit="euro"),
            Variable("pixel", "count", domain=(0.0, 15.0), closed=True),
            Variable("visits", "count"),
            Variable("age", "continuous", domain=(-np.inf, 90.0)),
            Variable("job", "categorical", ("clerk", "farmer", 7, True)),
            Variable("smokes", "binary", (False, True)),
        )
    )
    shared = build.histogram("income", grid, [0.1, 0.2, 0.3, 0.15, 0.2, 0.05])
    rows = [
        (shared, 2.5, 0.4, build.gaussian("age", 40.0, 11.0), [0.4, 0.3, 0.2, 0.1], 0.2),
        (shared, 0.7, 0.8, build.truncated_gaussian("age", 30, 9, 0, 90), [0, 0.5, 0, 0.5], 0.6),
        (
            build.histogram("income", grid, [0.0, 0.5, 0.0, 0.25, 0.25, 0.0]),
            11.0, 0.1, build.uniform("age", 18.0, 65.0), [0.7, 0.1, 0.1, 0.1], 0.9,
        ),
    ]  # fmt: skip
    children = [
        build.product(
            [
                build.categorical("job", job),
                age,
                build.poisson("visits", rate)
                if rate > 1
                else build.histogram("visits", table, [0.3, 0.5, 0.2]),
                income,
                build.discretised_gaussian("pixel", grey, 0.2, 15),
                build.bernoulli("smokes", smokes),
            ]
        )
        for income, rate, grey, age, job, smokes in rows
    ]
    plain = build.circuit(schema, build.sum(children, [0.55, 0.0, 0.45]))
    report = FitReport("by hand", 0.25, {"children": 3}, (-3.5, -3.25), {"k": 1}, ("none",))
    return Circuit(plain.schema, plain.groups, plain.structure, report)


ROWS = pd.DataFrame(
    {
        "income": [0.0, 3.25, None, -7.5],
        "pixel": [3, None, 15, 0],
        "visits": [2, 5, None, 0],
        "age": [33.3, None, 64.0, 20.0],
        "job": ["clerk", 7, None, "farmer"],
        "smokes": [True, None, False, True],
    },
    index=["w", "x", "y", "z"],
).astype(object)


def assert_same_answers(found: fc.Density, expected: Circuit) -> None:
    assert found.schema == expected.schema
    pd.testing.assert_series_equal(found.log_prob(ROWS), expected.log_prob(ROWS), check_exact=True)
    for name in ("job", "smokes"):
        pd.testing.assert_frame_equal(
            found.predict_proba(ROWS, name), expected.predict_proba(ROWS, name), check_exact=True
        )


def small_circuit() -> Circuit:
    """Two clusters over a number, a declared number, a count, a category and a flag."""
    schema = Schema(
        (
            Variable("age", "continuous"),
            Variable("share", "continuous", domain=(0.0, 1.0), closed=True),
            Variable("visits", "count", declared=True),
            Variable("job", "categorical", ("clerk", "farmer", "nurse")),
            Variable("smokes", "binary", (0, 1), closed=True),
        )
    )
    children = [
        build.product(
            [
                build.gaussian("age", mean, 8.0),
                build.uniform("share", 0.0, top),
                build.poisson("visits", rate),
                build.categorical("job", job),
                build.bernoulli("smokes", smokes),
            ]
        )
        for mean, top, rate, job, smokes in (
            (30.0, 0.5, 1.5, [0.6, 0.3, 0.1], 0.2),
            (60.0, 1.0, 6.0, [0.1, 0.2, 0.7], 0.45),
        )
    ]
    return build.circuit(schema, build.sum(children, [0.35, 0.65]))
