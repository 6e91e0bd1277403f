"""Use of a label that only some clients hold: sent sealed, used by its owner, or left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import fedcircuits as fc
from contracts.coherence import check_coherence
from contracts.engine import table
from contracts.federations import ID, LABEL, local, split
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.engines import LocalEngine
from fedcircuits.errors import FederationError
from fedcircuits.federation.wire.packing import pack_codes
from recorder import Recorder

ROWS = table(seed=9, n=40).drop(columns=ID)


def run(**options: Any) -> tuple[Any, Recorder]:
    """A columns split with the label at client a, and all messages."""
    engine = Recorder(local(split("vertical")))
    fed = fc.federate(id=ID, label=LABEL, engine=engine, **options)
    return fed, engine


def test_a_label_that_is_sent_passes_the_server_as_ciphertext() -> None:
    fed, engine = run(agreement="product")
    assert LABEL in fed.schema
    told = [each for each in engine.messages if each.verb in ("send_label", "take_label")]
    assert {each.client for each in told} == {"a", "b", "c"}
    rows = split("vertical")["a"]
    codes = fed.schema.select([LABEL]).encode(rows).values[:, 0].astype(np.int64)
    for order in (codes, codes[::-1]):
        packed = pack_codes(order, 3).tobytes()
        for each in engine.messages:
            assert packed[:16] not in each.data


def test_what_is_sent_makes_the_model_of_a_label_that_everybody_has() -> None:
    frames = split("vertical")
    label = frames["a"].set_index(ID)[LABEL]
    shared = {
        name: frame if name == "a" else frame.assign(**{LABEL: frame[ID].map(label)})
        for name, frame in frames.items()
    }
    options: dict[str, Any] = {"id": ID, "label": LABEL, "learner": "factorised"}
    one = fc.federate(frames, agreement="product", **options)
    every = fc.federate(shared, agreement="product", schema=one.schema, **options)
    np.testing.assert_allclose(one.log_prob(ROWS), every.log_prob(ROWS), atol=1e-9)


def test_a_label_that_is_used_is_in_no_message() -> None:
    fed, engine = run(agreement="latent", n_clusters=3, label_use="used")
    assert LABEL in fed.schema
    assert not [each for each in engine.messages if each.verb in ("send_label", "take_label")]


def specs(frames: dict[str, pd.DataFrame]) -> dict[str, Any]:
    return {
        name: ClientSpec(name, frame, "hclt", id="id", kinds={"y": "categorical"}).make()
        for name, frame in frames.items()
    }


def generated(n: int, seed: int) -> pd.DataFrame:
    """Numbers at two clients, all of which the label leans on."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4))
    odds = x @ np.array([0.8, -0.8, 1.4, 1.4]) + np.sin(2 * x[:, 2])
    frame = pd.DataFrame(x, columns=list("abcd")).assign(y=rng.random(n) < 1 / (1 + np.exp(-odds)))
    return frame.assign(y=frame["y"].map({True: "yes", False: "no"}), id=np.arange(n))


@pytest.mark.slow
def test_codes_for_the_owner_reach_most_of_what_a_label_that_is_sent_does() -> None:
    rows, test = generated(4000, 0), generated(4000, 1)
    frames = {"a": rows[["id", "a", "b", "y"]], "b": rows[["id", "c", "d"]]}
    found = {}
    for use in ("used", "sent"):
        engine = Recorder(LocalEngine(specs(frames)))
        fed = fc.federate(id="id", label="y", engine=engine, agreement="latent", label_use=use)
        found[use] = auc(fed, test)
        codes = [each for each in engine.messages if each.verb == "codes" and not each.to_client]
        assert len(codes) == (use == "used")
        assert all(len(each.data) < len(rows) + 1000 for each in codes)  # a byte a row
        assert (use == "used") != any(each.verb == "send_label" for each in engine.messages)
    alone = auc(fc.learn(frames["a"].drop(columns="id"), label="y"), test)
    assert found["used"] > alone + 0.6 * (found["sent"] - alone)


def auc(model: fc.Density, test: pd.DataFrame) -> float:
    rows = test[[name for name in model.schema.names if name != "y"]]
    return float(roc_auc_score(test["y"] == "yes", model.predict_proba(rows, "y")["yes"]))


def test_a_label_that_is_used_keeps_the_law_of_coherence() -> None:
    rows = generated(2400, 3)
    for name in "abcd":
        rows[name] = np.where(rows[name] > 0, "high", "low")
    frames = {"A": rows[["id", "a", "b", "y"]], "B": rows[["id", "c", "d"]]}
    fed = fc.federate(frames, id="id", label="y", agreement="latent", label_use="used")
    assert fed.fitted is not None
    assert fed.fitted.tilts
    check_coherence(fed)


def test_a_label_that_takes_no_part_is_not_in_the_model() -> None:
    fed, _ = run(agreement="latent", n_clusters=3, label_use="no")
    assert LABEL not in fed.schema


@pytest.mark.parametrize("old", ["share_label", "label_private"])
def test_old_names_say_the_new_one(old: str) -> None:
    with pytest.raises(FederationError, match=f"{old} is now label_use="):
        run(**{old: True})


def test_other_values_are_refused() -> None:
    with pytest.raises(FederationError, match=r"label_use is 'sent', 'used', 'no', found 'maybe'"):
        run(label_use="maybe")
