"""Ten faults on a running engine: the right model, or an error by name and a run that goes on.

```python
class TestMyFaults(EngineFaults):
    @pytest.fixture
    def site(self, ...) -> Site: ...
```
"""

from __future__ import annotations

import errno
import os
import signal
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedcircuits as fc
from contracts.engine import specs, table
from contracts.faults import model_bytes
from fedcircuits import encoding
from fedcircuits.api.client_spec import client_from_spec
from fedcircuits.engines import LocalEngine
from fedcircuits.engines.replay import Answers
from fedcircuits.errors import FedcircuitsError, FedcircuitsWarning
from recorder import Recorder

OPTIONS: dict[str, Any] = {"label": "bought", "agreement": "product"}
CLIENT = "south"  # to whom it happens
PATIENCE = 30.0  # seconds that the server waits for a message that is dropped
# What the client is told to do with a message (`faulty.py`).
AT_THE_CLIENT = {
    "dropped": f"sleep {100 * PATIENCE}",
    "delayed": "sleep 0.5",
    "doubled": "double",
    "truncated": "truncate",
    "flipped": "corrupt",
    "of another client": "other north",
    "killed before": "die before",
    "killed after": "die after",
}
SPOILT = ("truncated", "flipped", "of another client")


@dataclass(frozen=True)
class Site:
    """A running engine whose clients are made by `contracts.faulty:client_from_spec`.

    Attributes:
        engine: with the members of `contracts.engine.specs()`.
        faults: folder that tells them what to do.
        processes: ids of what ends where the client is killed.
        bring_back: starts it again, where the engine does not.
    """

    engine: Any
    faults: Path
    processes: Callable[[], list[int]]
    bring_back: Callable[[], None]

    def kill(self) -> None:
        """End the client's processes."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


class Killing(Recorder):
    """Ends a client's process, and brings it back, before a request is sent."""

    def __init__(self, site: Site, verb: str) -> None:
        super().__init__(site.engine)
        self._site, self._verb, self.done = site, verb, False

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        if verb == self._verb and not self.done:
            self.done = True
            self._site.kill()
            self._site.bring_back()
        return super().call(verb, payloads, timeout)


def whole() -> Any:
    """The same federation in this process."""
    clients = {name: client_from_spec(data) for name, data in specs().items()}
    return fc.federate(None, engine=LocalEngine(clients), **OPTIONS)


def outcome(engine: Any, timeout: float) -> Any:
    """A model that is right for the clients that it was made with, or None for an error by name."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FedcircuitsWarning)
        try:
            fed = fc.federate(None, engine=engine, timeout=timeout, **OPTIONS)
        except FedcircuitsError as error:
            if f"client {CLIENT!r}" not in str(error):
                raise
            return None
    rows = table(seed=1).drop(columns="customer")
    expected = whole()
    for client in fed.dropped:
        assert client == CLIENT
        assert any(f"without the client {client!r}" in str(w.message) for w in caught)
        expected = expected.without(client)
    np.testing.assert_allclose(fed.log_prob(rows), expected.log_prob(rows), rtol=0, atol=1e-9)
    return fed


class EngineFaults:
    """Laws of every engine under faults; where a client was lost, the next run has it again."""

    timeout = 200.0

    @pytest.mark.parametrize("fault", [each for each in AT_THE_CLIENT if each not in SPOILT])
    def test_a_message_that_comes_to_grief_makes_no_other_model(
        self, fault: str, site: Site, tmp_path: Path
    ) -> None:
        fed = self._with(fault, site)
        if fault.startswith("killed"):
            site.bring_back()
        if fed is not None and not fed.dropped:
            assert model_bytes(fed, tmp_path / "a.fc") == model_bytes(whole(), tmp_path / "b.fc")
        else:
            assert fault not in ("delayed", "doubled")
            self._whole(site.engine, tmp_path)

    def test_a_spoilt_reply_makes_no_other_model(self, site: Site, tmp_path: Path) -> None:
        for fault in SPOILT:
            fed = self._with(fault, site)
            assert fed is None or list(fed.dropped) == [CLIENT]
        self._whole(site.engine, tmp_path)

    def _with(self, fault: str, site: Site) -> Any:
        """The outcome of a run in which a fit comes to grief."""
        told = site.faults / f"{CLIENT}.fit"
        ids = " ".join(map(str, site.processes())) if fault.startswith("killed") else ""
        told.write_text(f"{AT_THE_CLIENT[fault]} {ids}".strip())
        begun = told.with_name(f"{told.name}.begun")
        fed = outcome(site.engine, PATIENCE if fault == "dropped" else self.timeout)
        assert begun.exists()
        for path in (told, begun):
            path.unlink(missing_ok=True)
        return fed

    def test_a_disk_that_is_full_is_said_and_the_run_goes_on(
        self, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(path: Path, data: bytes) -> None:
            del data
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

        monkeypatch.setattr(site.engine.replay, "_answers", Answers(tmp_path / "job"))
        with monkeypatch.context() as patch:
            patch.setattr(encoding, "write", full)
            with pytest.raises((FedcircuitsError, OSError), match="No space left"):
                fc.federate(None, engine=site.engine, timeout=self.timeout, **OPTIONS)
        self._whole(site.engine, tmp_path)
        assert any((tmp_path / "job").iterdir())

    def test_a_client_started_anew_between_messages_is_brought_to_its_state(
        self, site: Site, tmp_path: Path
    ) -> None:
        engine = Killing(site, "fit")
        fed = outcome(engine, self.timeout)
        assert engine.done
        if fed is None or fed.dropped:
            fed = fc.federate(None, engine=site.engine, timeout=self.timeout, **OPTIONS)
        assert model_bytes(fed, tmp_path / "a.fc") == model_bytes(whole(), tmp_path / "b.fc")

    def _whole(self, engine: Any, folder: Path) -> None:
        """The next run has every client, and the bits of the model of this process."""
        fed = fc.federate(None, engine=engine, timeout=self.timeout, **OPTIONS)
        assert fed.dropped == {}
        assert model_bytes(fed, folder / "a.fc") == model_bytes(whole(), folder / "b.fc")
