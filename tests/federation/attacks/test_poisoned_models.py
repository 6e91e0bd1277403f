"""A client that sends arrays which are no model: it is named, and the others' model stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedcircuits as fc
from contracts.federations import LABEL, Breaking, local, split
from fedcircuits import encoding
from fedcircuits.errors import FedcircuitsWarning
from fedcircuits.federation.wire import requests as m


def with_numbers(value: float) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        for name, array in arrays.items():
            if array.dtype.kind == "f" and array.size:
                arrays[name] = array.copy()
                arrays[name].flat[0] = value

    return change


def beyond(arrays: dict[str, Any]) -> None:
    """Edges to nodes that there are not."""
    arrays["child"] = arrays["child"] + 10**6


def looped(arrays: dict[str, Any]) -> None:
    """A node that is its own child."""
    arrays["child"] = np.full_like(arrays["child"], arrays["child"].max() + 1)


POISON = {
    "not a number": with_numbers(np.nan),
    "negative": with_numbers(-5.0),
    "infinite": with_numbers(np.inf),
    "too large": with_numbers(50.0),
    "beyond": beyond,
    "looped": looped,
}


@pytest.mark.parametrize("what", POISON)
def test_a_poisoned_model_is_its_clients_error(what: str) -> None:
    def spoil(verb: str, client: str, answer: bytes) -> bytes | Exception:
        if verb != "fit" or client != "b":
            return answer
        reply, models = m.Fitted.from_bytes(answer), []
        for each in reply.models:
            record = encoding.unpack(m.model_bytes(each.model))
            arrays = dict(record.arrays)
            POISON[what](arrays)
            packed = encoding.pack(replace(record, arrays=arrays))
            models.append(replace(each, model=m.model_array(packed)))
        asked = next(x.data for x in engine.messages if (x.verb, x.client) == ("fit", "b"))
        name = m.request_name("b", "fit", asked)
        return replace(reply, models=tuple(models)).to_bytes(answers=name)

    engine = Breaking(local(split("horizontal")), spoil)
    with pytest.warns(FedcircuitsWarning, match="without the client 'b': a model that cannot be"):
        fed = fc.federate(engine=engine, label=LABEL, agreement="product")
    rows = split("horizontal")["a"].drop(columns="customer")
    honest = fc.federate(engine=local(split("horizontal")), label=LABEL, agreement="product")
    np.testing.assert_allclose(
        fed.log_prob(rows), honest.without("b").log_prob(rows), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("what", ["not a number", "looped"])
def test_a_poisoned_model_of_all_rows_is_its_senders_error(what: str) -> None:
    """Of `joint` one client sends the model that all have made."""

    def spoil(verb: str, client: str, answer: bytes) -> bytes | Exception:
        reply = m.RoundDone.from_bytes(answer) if verb == "round" else None
        if reply is None or client != "a" or not reply.model.size:
            return answer
        record = encoding.unpack(m.model_bytes(reply.model))
        arrays = dict(record.arrays)
        POISON[what](arrays)
        packed = m.model_array(encoding.pack(replace(record, arrays=arrays)))
        asked = [x.data for x in engine.messages if x.to_client and x.client == "a"][-1]
        name = m.request_name("a", "round", asked)
        return replace(reply, model=packed).to_bytes(answers=name)

    engine = Breaking(local(split("horizontal"), "mixture"), spoil)
    with pytest.warns(FedcircuitsWarning, match="without the client 'a': a model that cannot be"):
        fed = fc.federate(engine=engine, label=LABEL, agreement="joint")
    assert sorted(fed.clients) == ["b", "c"]
