"""Use of a label that only some clients hold: sent sealed, used by its owner, or left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, local, split
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
