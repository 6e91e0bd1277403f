"""`explain`: evidence of columns and clients adds up to the log-odds that `predict_proba` gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.rule import LEARNER, both_split, columns_split, rows_split, small_table
from fedcircuits.density.queries.explanation import LOG_ODDS, PRIOR, REMAINDER
from fedcircuits.errors import QueryError


def logit(proba: pd.DataFrame, values: pd.Series[Any]) -> np.ndarray[Any, Any]:
    p = np.array([proba.loc[at, value] for at, value in values.items()])
    return np.asarray(np.log(p) - np.log1p(-p))


def check(model: fc.Density, rows: pd.DataFrame, target: str, value: object = None) -> Any:
    found = model.explain(rows, target, value)
    proba = model.predict_proba(rows, target)
    expected = logit(proba, found.value)
    frames = [found.columns] if found.clients is None else [found.columns, found.clients]
    for frame in frames:
        np.testing.assert_allclose(frame[LOG_ODDS], expected, atol=1e-9)
        np.testing.assert_allclose(frame.drop(columns=LOG_ODDS).sum(axis=1), expected, atol=1e-9)
    assert set(found.columns) == {PRIOR, REMAINDER, LOG_ODDS} | set(model.schema.names) - {target}
    return found


def gappy(frame: pd.DataFrame) -> pd.DataFrame:
    rows = frame.head(20).copy()
    rng = np.random.default_rng(0)
    return rows.mask(rng.random(rows.shape) < 0.3)


@pytest.mark.parametrize(
    ("clients", "options"),
    [
        (rows_split, {}),
        (columns_split, {"id": "id"}),
        (columns_split, {"id": "id", "agreement": "latent"}),
        (both_split, {"id": "id"}),
        (columns_split, {"id": "id", "placement": "remote"}),
        (rows_split, {"placement": "remote"}),
    ],
    ids=["rows", "columns", "latent", "both", "columns remote", "rows remote"],
)
def test_the_evidence_of_a_federation_adds_up(clients: Any, options: dict[str, Any]) -> None:
    rows = small_table().drop(columns="id", errors="ignore")
    with fc.federate(clients(), label="y", learner=LEARNER, **options) as fed:
        found = check(fed, rows.head(20), "y")
        check(fed, gappy(rows.drop(columns="y")), "y")
        assert found.clients is not None
        if fed.setting == "vertical":
            assert set(fed.clients) <= set(found.clients.columns)


def test_a_model_of_one_table_explains_itself_with_several_classes_and_missing_cells() -> None:
    rng = np.random.default_rng(0)
    kind = rng.integers(3, size=600)
    frame = pd.DataFrame(
        {
            "a": rng.normal(kind, 1.0).round(2),
            "b": np.where(rng.random(600) < 0.7, kind, rng.integers(3, size=600)),
            "kind": np.array(["x", "y", "z"])[kind],
        }
    )
    model = fc.learn(frame, label="kind", seed=0, head=False)
    found = check(model, gappy(frame.drop(columns="kind")), "kind")
    assert (found.columns[["a", "b"]].abs().sum() > 0).all()
    check(model, frame.head(10), "kind", "y")
    empty = check(model, pd.DataFrame({"a": [None]}), "kind", "z")
    assert (empty.columns.drop(columns=[PRIOR, LOG_ODDS]) == 0).all(axis=None)
    assert "log-odds" in repr(found)
    assert len(found.strongest()) == 3
    with pytest.raises(QueryError, match="no value 'w'"):
        model.explain(frame.head(1), "kind", "w")


def test_a_column_s_evidence_is_what_it_says_alone() -> None:
    rows = small_table().drop(columns="id", errors="ignore")
    model = fc.learn(rows, label="y", learner=LEARNER, seed=0)
    found = check(model, rows.head(5), "y")
    for name in [n for n in model.schema.names if n != "y"]:
        alone = model.predict_proba(rows[[name]].head(5), "y")
        expected = logit(alone, found.value) - found.columns[PRIOR]
        np.testing.assert_allclose(found.columns[name], expected, atol=1e-9)
