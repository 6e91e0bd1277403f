"""The contract of an engine: subclass `EngineContract` and give one fixture.

```python
class TestMyEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls): ...       # what `fc.federate(engine=...)` takes: a name or a class
    @pytest.fixture
    def transport(self): ...   # one running engine with the members of `contracts.engine.specs()`
```

Laws: members sorted; each client gets its own payload and answers with its own bytes; a failing
client's error names it and the others' answers are kept; a call that takes too long comes back in
time; closing twice is once; the same model bit for bit as in this process.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.settings import ServerSettings
from fedcircuits.federation.wire import requests as m


def table(seed: int = 0, n: int = 120) -> pd.DataFrame:
    """Rows with numbers, counts, categories, gaps, a label and an id."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    colour = pd.Series(rng.choice(["red", "green", "blue"], n))
    return pd.DataFrame(
        {
            "customer": 1000 + np.arange(n),
            "height": np.where(rng.random(n) < 0.1, np.nan, rng.normal(y, 0.8)),
            "colour": colour.mask(rng.random(n) < 0.05),
            "visits": rng.poisson(1.0 + 2.0 * y),
            "size": rng.normal(-y, 1.0),
            "bought": np.where(y == 1, "yes", "no"),
        }
    )


def specs() -> dict[str, bytes]:
    """ClientSpec records of three clients of one table."""
    rows = table().drop(columns="customer")
    return {
        name: ClientSpec(name, rows.iloc[at::3].reset_index(drop=True), "factorised").to_bytes()
        for at, name in enumerate(("north", "south", "west"))
    }


def slow(payload: bytes) -> Slow:
    """A client that misbehaves on request; made from a client spec like any other."""
    return Slow(ClientSpec.from_bytes(payload).name)


class Slow:
    """Echoes, waits for a file or fails, by verb."""

    def __init__(self, name: str) -> None:
        self.name = name

    def handle(self, verb: str, payload: bytes) -> bytes:
        if verb == "wait":
            while not Path(payload.decode()).exists():
                time.sleep(0.02)
        if verb == "fail":
            raise RuntimeError(f"{self.name} would not")
        return self.name.encode() + b":" + payload


class EngineContract:
    """Laws of every engine."""

    def test_members_are_sorted(self, transport: Any) -> None:
        assert transport.members() == ["north", "south", "west"]

    def test_every_client_answers_for_itself(self, transport: Any) -> None:
        payload = m.Describe(5).to_bytes()
        answers = transport.call("describe", dict.fromkeys(transport.members(), payload))
        assert sorted(answers) == ["north", "south", "west"]
        for answer in answers.values():
            assert m.Description.from_bytes(answer).n_rows == 40

    def test_some_clients_can_be_asked(self, transport: Any) -> None:
        answers = transport.call("describe", {"south": m.Describe(5).to_bytes()})
        assert list(answers) == ["south"]

    def test_an_unknown_verb_is_a_failure_and_not_a_crash(self, transport: Any) -> None:
        answers = transport.call("dance", {"north": b""})
        assert "dance" in m.Failed.from_bytes(answers["north"]).error

    def test_garbage_is_a_failure_and_the_client_lives_on(self, transport: Any) -> None:
        answers = transport.call("describe", {"north": b"garbage"})
        assert "message" in m.Failed.from_bytes(answers["north"]).error
        again = transport.call("describe", {"north": m.Describe(5).to_bytes()})
        assert m.Description.from_bytes(again["north"]).n_rows == 40

    def test_a_stranger_is_an_error_by_name(self, transport: Any) -> None:
        answers = transport.call("describe", {"east": m.Describe(5).to_bytes()})
        assert isinstance(answers["east"], Exception)
        assert "east" in str(answers["east"])

    def test_server_agrees_with_all_clients(self, transport: Any) -> None:
        server = Server.start(transport, ServerSettings(label="bought"))
        assert server.setting == "horizontal"
        assert server.n_rows == {"north": 40, "south": 40, "west": 40}

    @pytest.mark.parametrize("setting", ["horizontal", "vertical"])
    def test_same_model_bit_for_bit_as_in_this_process(
        self, engine: Any, setting: str, tmp_path: Path
    ) -> None:
        rows = table()
        if setting == "horizontal":
            clients = {"a": rows.iloc[:50], "b": rows.iloc[50:]}
            options: dict[str, Any] = {"learner": "factorised"}
        else:
            clients = {
                "a": rows[["customer", "height", "colour", "bought"]],
                "b": rows[["customer", "visits", "size"]].sample(frac=0.9, random_state=1),
            }
            options = {"learner": "mixture", "agreement": "latent", "n_classes": 2}
        saved = []
        for at, chosen in enumerate(("local", engine)):
            fed = fc.federate(clients, id="customer", label="bought", engine=chosen, **options)
            assert fed.setting == setting
            fed.save(tmp_path / f"{at}.fc")
            saved.append((tmp_path / f"{at}.fc").read_bytes())
        assert saved[0] == saved[1]
