"""Events against sums over all worlds: averaged trees, heads, federations gathered and remote."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.learners import Hclt

SAME = 1e-9
EVENTS: dict[str, Any] = {"a": fc.one_of(["0", "2"]), "n": fc.between(2, 4), "c": fc.not_("1")}
HOLDS: dict[str, Callable[[Any], bool]] = {
    "a": lambda x: x in ("0", "2"),
    "n": lambda x: 2 <= x <= 4,
    "c": lambda x: x != "1",
}


def table(n: int = 1800) -> pd.DataFrame:
    """Categories and a count; the label is a parity, which no sum over columns tells."""
    rng = np.random.default_rng(0)
    hidden = rng.integers(0, 3, n)
    a, c = ((hidden + rng.integers(0, 2, n)) % 3 for _ in range(2))
    count = np.minimum(rng.poisson(1 + hidden), 4)
    y = (a > 0) ^ (count > 1) ^ (rng.random(n) < 0.1)
    columns = {"a": a.astype(str), "n": count, "c": c.astype(str), "y": np.where(y, "yes", "no")}
    return pd.DataFrame(columns).assign(id=np.arange(n))


def rows_split() -> dict[str, pd.DataFrame]:
    return {c: table()[at::2].drop(columns="id") for at, c in enumerate("pq")}


def columns_split() -> dict[str, pd.DataFrame]:
    return {"p": table()[["id", "a", "y"]], "q": table()[["id", "n", "c"]]}


MODELS: dict[str, Callable[[], fc.Density]] = {
    "averaged trees": lambda: fc.learn(table().drop(columns="id"), learner=Hclt(n_trees=3)),
    "averaged, a label": lambda: fc.learn(
        table().drop(columns="id"), label="y", learner=Hclt(n_trees=2, head=False)
    ),
    "a head": lambda: fc.learn(table().drop(columns="id"), label="y", learner=Hclt(head=True)),
    "rows": lambda: fc.federate(rows_split(), label="y", head=False),
    "rows, a head": lambda: fc.federate(rows_split(), label="y"),
    "rows, remote": lambda: fc.federate(rows_split(), label="y", placement="remote"),
    "columns": lambda: fc.federate(columns_split(), label="y", id="id", head=False),
    "columns, a head": lambda: fc.federate(columns_split(), label="y", id="id"),
    "columns, remote": lambda: fc.federate(columns_split(), label="y", id="id", placement="remote"),
}


@pytest.mark.parametrize("name", MODELS)
def test_events_are_sums_over_worlds(name: str) -> None:
    model = MODELS[name]()
    rows = itertools.product("012", range(5), "012", ("no", "yes"))
    worlds = pd.DataFrame(rows, columns=["a", "n", "c", "y"])
    mass = np.exp(model.log_prob(worlds).to_numpy())  # complete rows: exact, with a head too
    for chosen in (["n"], ["a", "n"], ["n", "c"], ["a", "n", "c"]):  # counts beyond have a tail
        inside = np.all([worlds[c].map(HOLDS[c]).to_numpy() for c in chosen], axis=0)
        given = {c: EVENTS[c] for c in chosen}
        total = mass[inside].sum()
        assert model.probability(given) == pytest.approx(total, abs=SAME)
        asked = pd.DataFrame({c: pd.Series([event]) for c, event in given.items()})
        by_hand = mass[inside & (worlds["y"] == "yes").to_numpy()].sum() / total
        if model.is_exact:
            assert model.probability({"y": "yes"}, given) == pytest.approx(by_hand, abs=SAME)
            found = model.predict_proba(asked, "y")
            assert found.iloc[0]["yes"] == pytest.approx(by_hand, abs=SAME)
            continue
        found, error = model.predict_proba(asked, "y", with_error=True)
        assert abs(found.iloc[0]["yes"] - by_hand) <= 4 * error.iloc[0]["yes"] + SAME
        assert model.probability({"y": "yes"}, given) == pytest.approx(found.iloc[0]["yes"])
