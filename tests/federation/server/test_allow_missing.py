"""`allow_missing`: whatever a client fails at, the others go on without what it alone holds."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, Breaking, local, split
from contracts.rule import LEARNER
from fedcircuits.errors import FederationError

# The rules here send the server row evidence, or are compared with such as do.
federate = functools.partial(fc.federate, trust="one owner")

pytestmark = pytest.mark.slow

ROWS = table(seed=5, n=20)[["height", "colour", "size"]]


def broken(verb: str, setting: str = "vertical") -> Breaking:
    def spoil(said: str, client: str, reply: bytes) -> bytes | Exception:
        return RuntimeError("the line is dead") if (said, client) == (verb, "b") else reply

    return Breaking(local(split(setting), "mixture"), spoil)


@pytest.mark.parametrize(
    ("verb", "rule"),
    [
        ("describe", "latent"),
        ("agree", "latent"),
        ("digests", "latent"),
        ("align", "latent"),
        ("cluster", "latent"),
        ("take_label", "latent"),
        ("fit_tilt", "latent"),
        ("score_tilt", "latent"),
        ("assign", "latent"),
        ("fit", "latent"),
        ("ask", "em"),
        ("branch", "joint"),
    ],
)
@pytest.mark.slow
def test_a_client_that_fails_at_anything_is_left_out(verb: str, rule: str) -> None:
    options: dict[str, Any] = {"id": ID, "label": LABEL, "agreement": rule, "n_clusters": 3}
    with pytest.raises(FederationError, match=r"client 'b'.*the line is dead"):
        federate(engine=broken(verb), **options)
    fed = federate(engine=broken(verb), allow_missing=True, **options)
    assert fed.clients == ("a", "c")
    assert "visits" not in fed.schema
    assert "the line is dead" in fed.dropped["b"]
    assert np.isfinite(fed.log_prob(ROWS)).all()


def test_where_others_hold_the_columns_no_variable_is_lost() -> None:
    for verb in ("describe", "agree"):
        engine = broken(verb, "horizontal")
        fed = federate(engine=engine, label=LABEL, allow_missing=True, agreement="independent")
        assert fed.clients == ("a", "c")
        assert LABEL in fed.schema


def test_one_client_left_is_a_model_of_its_own() -> None:
    rows = table(n=80)
    clients = {"a": rows[[ID, "height"]], "b": rows[[ID, "size"]]}

    def spoil(said: str, client: str, reply: bytes) -> bytes | Exception:
        return RuntimeError("gone") if (said, client) == ("digests", "b") else reply

    engine = Breaking(local(clients), spoil)
    fed = federate(engine=engine, id=ID, allow_missing=True)
    assert fed.clients == ("a",)
    assert fed.schema.names == ("height",)


def test_a_cluster_whose_column_is_all_missing_is_no_failure() -> None:
    """A column that has values at a client, but none in one of its clusters."""
    rng = np.random.default_rng(0)
    n = 200
    z = np.arange(n) % 2
    rows = pd.DataFrame(
        {
            ID: np.arange(n),
            "height": rng.normal(10.0 * z, 0.1),
            "size": np.where(z == 1, rng.normal(size=n), np.nan),
            "visits": rng.poisson(1 + 5 * z),
        }
    )
    clients = {"a": rows[[ID, "height", "size"]], "b": rows[[ID, "visits"]]}
    for learner in ("factorised", "mixture", LEARNER):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fed = federate(clients, id=ID, agreement="latent", n_clusters=2, learner=learner)
        assert fed.dropped == {}
        assert np.isfinite(fed.log_prob(rows.drop(columns=ID))).all()
