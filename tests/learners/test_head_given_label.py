"""Stated errors of answers given the label, on data that all but follow a rule."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd

import fedcircuits as fc

LEVELS, COLUMNS = ["v0", "v1", "v2"], [f"c{i}" for i in range(6)]


def _rows(rng: np.random.Generator, n: int = 1500) -> pd.DataFrame:
    x = rng.integers(0, 3, (n, 6))
    x[:, 1] = np.where(rng.random(n) < 0.9, x[:, 0], x[:, 1])
    x[:, 3] = np.where(rng.random(n) < 0.95, x[:, 2], x[:, 3])
    y = ((x[:, 0] == 0) & (x[:, 4] > 0)) | (x[:, 2] == 2)
    y ^= rng.random(n) < 0.005
    return pd.DataFrame(np.array(LEVELS)[x], columns=COLUMNS).assign(y=np.where(y, "yes", "no"))


def test_errors_given_a_likely_and_an_unlikely_label_cover_what_enumeration_says() -> None:
    model = fc.learn(_rows(np.random.default_rng(0)), label="y", seed=0, head=True)
    every = pd.DataFrame(list(itertools.product(*[LEVELS] * 6)), columns=COLUMNS)
    mass = {y: np.exp(model.log_prob(every.assign(y=y)).to_numpy()) for y in ("no", "yes")}
    rng = np.random.default_rng(5)
    covered: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for _ in range(40):
        gaps = rng.choice(COLUMNS, 4, replace=False)
        row = every.iloc[int(rng.integers(len(every)))].drop(gaps)
        inside = (every[row.index] == row).all(axis=1).to_numpy()
        total = sum(m[inside].sum() for m in mass.values())
        for y, masses in mass.items():
            truth = [masses[inside & (every[gaps[0]] == level)].sum() for level in LEVELS]
            likelihood = sum(truth) / total
            found, error = model.predict_proba(
                pd.DataFrame([{**row, "y": y}]), gaps[0], with_error=True
            )
            away = np.abs(found.to_numpy()[0] - np.array(truth) / sum(truth))
            inside_error = away <= 1.96 * error.to_numpy()[0] + 1e-9
            covered[bool(likelihood < 0.02)].append(inside_error)
    assert len(covered[True]) >= 5
    assert np.mean(covered[False]) >= 0.95
    assert np.mean(covered[True]) >= 0.95
