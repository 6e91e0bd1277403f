"""A client restarted before any message of any rule changes no bit of the model.

`Replay` and `Keeper` are what Ray and NVFlare use; here they run in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, split
from fedcircuits.api.client_spec import ClientSpec, client_from_spec
from fedcircuits.engines.replay import Keeper, Replay

pytestmark = pytest.mark.slow  # several seconds a case: many restarts of small federations
SETTINGS = {"n_clusters": 3, "n_classes": 3}
TABLE = {"agreement": "latent", "table": True, **SETTINGS}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "rows, independent": ("horizontal", {"agreement": "independent"}),
    "rows, product": ("horizontal", {"agreement": "product"}),
    "rows, joint": ("horizontal", {"agreement": "joint"}),
    "columns, independent": ("vertical", {"agreement": "independent"}),
    "columns, product": ("vertical", {"agreement": "product"}),
    "columns, product, label shared": ("vertical", {"agreement": "product", "share_label": True}),
    "columns, latent": ("vertical", {"agreement": "latent", **SETTINGS}),
    "columns, latent from a table": (
        "vertical",
        {"agreement": "latent", "table": True, **SETTINGS},
    ),
    "columns, em": ("vertical", {"agreement": "em", "n_clusters": 3}),
    "columns, joint": ("vertical", {"agreement": "joint", "n_rounds": 2, **SETTINGS}),
    "columns, auto": ("vertical", {"agreement": "auto"}),
    "both, product": ("hybrid", {"agreement": "product"}),
    "both, latent": ("hybrid", {"agreement": "latent", **SETTINGS}),
    "both, anchors": (
        "hybrid",
        {"agreement": "anchors", "n_clusters": 3, "n_anchors": 3, "n_rounds": 2},
    ),
    "both, joint": ("hybrid", {"agreement": "joint", "n_rounds": 1, **SETTINGS}),
}


class Restarting:
    """Clients of this process; one of them is made anew before chosen messages."""

    def __init__(self, specs: Mapping[str, bytes], restart: Callable[[int], bool]) -> None:
        self._specs = dict(specs)
        self._keepers = {name: self._keeper(name) for name in specs}
        self._restart = restart
        self.replay = Replay()
        self.verbs: list[str] = []

    def _keeper(self, name: str) -> Keeper:
        return Keeper(lambda: client_from_spec(self._specs[name]), name)

    def members(self) -> list[str]:
        return sorted(self._keepers)

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        if self._restart(len(self.verbs)):
            for name in list(payloads)[:1]:
                self._keepers[name] = self._keeper(name)
        self.verbs.append(verb)
        return self.replay.call(self._send, verb, payloads, timeout)

    def _send(self, parcels: Mapping[str, bytes], _: float | None) -> dict[str, bytes | Exception]:
        return {name: self._keepers[name].answer(parcel) for name, parcel in parcels.items()}

    def close(self) -> None:
        """No process is held."""


def trained(case: str, restart: Callable[[int], bool]) -> tuple[list[str], bytes]:
    """The messages of a run, and the bits of its model's parameters and answers."""
    setting, options = CASES[case]
    rows = table(n=300 if case == "columns, auto" else 90)
    learner = ("mixture", {"n_iterations": 3}) if "joint" in case else ("factorised", {})
    label = None if case == "rows, joint" else LABEL  # without one it takes fewer rounds
    kinds: dict[str, Any] = {LABEL: "categorical"}
    specs = {
        name: ClientSpec(
            name, frame, *learner, id=ID, kinds={k: v for k, v in kinds.items() if k in frame}
        ).to_bytes()
        for name, frame in split(setting, rows).items()
    }
    engine = Restarting(specs, restart)
    fed = fc.federate(None, engine=engine, id=ID, label=label, min_rows=3, **options)
    assert fed.dropped == {}
    arrays = fed.merged().to_record().arrays
    test = table(n=20, seed=1).drop(columns=ID)
    answers = fed.log_prob(test).to_numpy(), fed.predict_proba(test, LABEL).to_numpy()
    found = [*(arrays[name] for name in sorted(arrays)), *answers]
    return engine.verbs, b"".join(np.ascontiguousarray(array).tobytes() for array in found)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::fedcircuits.errors.FedcircuitsWarning")
def test_a_client_restarted_before_any_message_makes_the_same_model(case: str) -> None:
    verbs, expected = trained(case, lambda _: False)
    _, always = trained(case, lambda _: True)
    assert always == expected
    # Once before the last message of each kind, so that later messages meet a restarted client.
    for verb in dict.fromkeys(verbs):
        at = len(verbs) - 1 - verbs[::-1].index(verb)
        again, found = trained(case, lambda number, at=at: number == at)
        assert again == verbs
        assert found == expected, f"restarted before {verb!r}, message {at} of {len(verbs)}"
