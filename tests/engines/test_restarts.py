"""A client restarted before any message of any rule changes no bit of the model.

`Replay` and `Keeper` are what Ray and NVFlare use; here they run in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from contracts.runs import CASES, bits, run, specs_of
from fedcircuits.api.client_spec import client_from_spec
from fedcircuits.engines.replay import Keeper, Replay

pytestmark = pytest.mark.slow  # several seconds a case: many restarts of small federations


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
    engine = Restarting(specs_of(case), restart)
    fed = run(case, engine)
    assert fed.dropped == {}
    return engine.verbs, bits(fed)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::fedcircuits.errors.FedcircuitsWarning")
def test_a_client_restarted_before_any_message_makes_the_same_model(case: str) -> None:
    verbs, expected = trained(case, lambda _: False)
    sealed = "score_tilt" in verbs
    if not sealed:  # a client that starts anew before every message never has the key it gave out
        _, always = trained(case, lambda _: True)
        assert always == expected
    # Once before the last message of each kind, so that later messages meet a restarted client.
    for verb in dict.fromkeys(verbs):
        at = len(verbs) - 1 - verbs[::-1].index(verb)
        again, found = trained(case, lambda number, at=at: number == at)
        # What was sealed for a key that is gone is sealed once more.
        assert again == verbs or (sealed and set(again) == set(verbs))
        assert found == expected, f"restarted before {verb!r}, message {at} of {len(verbs)}"
