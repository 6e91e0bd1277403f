"""Federations of files as they come: columns to leave out, empty ones, one that a client lacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.errors import ClientError, FedcircuitsWarning, FederationError


def rows(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 80, n)
    return pd.DataFrame(
        {
            "key": [f"{seed}-{i}" for i in range(n)],
            "age": age,
            "ward": rng.choice(["a", "b", "c"], n),
            "dead": np.where(age + rng.normal(0, 9, n) > 60, "yes", "no"),
        }
    )


@pytest.fixture
def tables() -> dict[str, pd.DataFrame]:
    return {f"h{seed}": rows(120, seed) for seed in range(3)}


def test_columns_to_leave_out_are_learned_by_nobody(tables: dict[str, pd.DataFrame]) -> None:
    with pytest.raises(ClientError, match=r"'key' holds another text .* \(drop=\['key'\]\)"):
        fc.federate(tables, label="dead", learner="factorised")
    fed = fc.federate(tables, label="dead", learner="factorised", drop=["key"])
    assert fed.schema.names == ("age", "ward", "dead")
    in_processes = fc.federate(
        tables, label="dead", learner="factorised", drop=["key"], engine="processes"
    )
    without = {name: frame.drop(columns="key") for name, frame in tables.items()}
    same = fc.federate(without, label="dead", learner="factorised")
    for other in (in_processes, same):
        assert np.array_equal(fed.log_prob(tables["h0"]), other.log_prob(tables["h0"]))


def test_a_column_to_leave_out_that_nobody_has(
    tables: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    tables["h0"].to_csv(tmp_path / "h0.csv", index=False)
    for clients in (tables, {**tables, "h0": tmp_path / "h0.csv"}):
        with pytest.raises(FederationError, match=r"drop: no column 'keys'; .* did you mean 'key'"):
            fc.federate(clients, label="dead", drop=["keys"])
    with pytest.raises(FederationError, match="drop names 'dead', which is the label"):
        fc.federate(tables, label="dead", drop=["dead"])
    with pytest.raises(FederationError, match="drop is a list of names of columns, found 'key'"):
        fc.federate(tables, label="dead", drop="key")


@pytest.mark.parametrize("label", ["dead", None])
def test_a_client_may_lack_a_column_or_its_values_without_an_id(
    tables: dict[str, pd.DataFrame], label: str | None
) -> None:
    lacking = {**tables, "h2": tables["h2"].drop(columns="ward")}
    fed = fc.federate(lacking, label=label, drop=["key"])
    assert (fed.setting, fed.schema.names) == ("hybrid", ("age", "ward", "dead"))
    assert np.isfinite(fed.mean_log_prob(tables["h2"].drop(columns="key")))
    empty = {**tables, "h2": tables["h2"].assign(ward=np.nan)}
    with pytest.warns(FedcircuitsWarning, match="client 'h2': left out column 'ward': no value"):
        same = fc.federate(empty, label=label, drop=["key"])
    assert np.array_equal(fed.log_prob(tables["h0"]), same.log_prob(tables["h0"]))


def test_what_is_revealed_is_that_of_the_split(tables: dict[str, pd.DataFrame]) -> None:
    fed = fc.federate(tables, label="dead", learner="factorised", drop=["key"])
    assert fed.reveals
    assert not [line for line in fed.reveals if "split" in line]
