"""One message of a run comes to grief: the model is right, or an error of ours says what happened.

Every message of a small run of every rule meets every fault: without replay, as in the engine
"local", and with it, as in Ray and NVFlare, where the run is started again and goes on. `make test`
tries a sample that is drawn once; `make release-check` (FEDCIRCUITS_FULL=1) tries all, and
FEDCIRCUITS_FULL=2/5 the second fifth of them.
"""

from __future__ import annotations

import functools
import os
import random
import warnings
from pathlib import Path

import numpy as np
import pytest

from contracts.bad_lines import FAULTS, Fault, ResumedLine, plain_line
from contracts.engine import table
from contracts.federations import ID, LABEL
from contracts.runs import ALL, bits, run, specs_of
from fedcircuits.errors import FedcircuitsWarning, FederationError
from fedcircuits.federation.model.federated_circuit import FederatedCircuit
from fedcircuits.federation.wire.requests import VERBS

FULL = os.environ.get("FEDCIRCUITS_FULL", "")  # "1": all faults; "2/5": the second fifth
SAMPLED, OF_SLOW = 6, 2  # faults a case in `make test`; runs of a tilt take a second each
pytestmark = pytest.mark.slow


@functools.cache
def expected(case: str) -> tuple[bytes, FederatedCircuit, int, int]:
    """A case's model in bits and as it is, and how many messages make it, without and with replay.

    With replay every client is greeted once more, to be brought to its first state.
    """
    specs = specs_of(case)
    line = plain_line(specs)
    fed = run(case, line)
    made = bits(fed)  # of models that stay by messages, too
    return made, fed, len(line.sent), len(line.sent) + len(specs)


def faults(case: str, n_messages: int) -> list[Fault]:
    every = [
        Fault(kind, at, seed)
        for kind in FAULTS
        for at in range(n_messages)
        for seed in range(3 if "flipped" in kind or "truncated" in kind else 1)
    ]
    if FULL:
        part, _, of = FULL.partition("/")
        return every[int(part) - 1 :: int(of or 1)]
    n = OF_SLOW if "tilt" in case or "heads" in case else SAMPLED
    return random.Random(case).sample(every, n)


def check(case: str, fault: Fault, engine: object) -> bool:
    """Whether the run ended with a model; either way the outcome is right and in words."""
    want, whole, *_ = expected(case)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fed = run(case, engine)
            found = bits(fed)
        except FederationError as error:  # any other exception fails the test
            text = str(error)
            named = [name for name in whole.clients if f"client {name!r}" in text]
            if not named:
                raise AssertionError(f"{fault}: no client is named in {text!r}") from error
            return False
    said = [str(w.message) for w in caught if issubclass(w.category, FedcircuitsWarning)]
    if not fed.dropped:
        assert found == want, fault
        return True
    for client in fed.dropped:  # a client that is lost is said, and nothing else is
        assert any(f"without the client {client!r}" in text for text in said), (fault, said)
        assert set(fed.schema.names) == set(whole.schema.names), fault
    if case in ("rows, independent", "rows, product"):
        rows = table(n=20, seed=1).drop(columns=ID)
        rest = whole
        for client in fed.dropped:
            rest = rest.without(client)
        np.testing.assert_allclose(fed.log_prob(rows), rest.log_prob(rows), rtol=0, atol=1e-9)
    proba = fed.predict_proba(table(n=20, seed=1).drop(columns=ID), LABEL)
    assert np.isfinite(proba.to_numpy()).all()
    return True


@pytest.mark.filterwarnings("ignore::fedcircuits.errors.FedcircuitsWarning")
def test_the_runs_have_every_message() -> None:
    sent = set()
    for case in ALL:
        line = plain_line(specs_of(case))
        bits(run(case, line))
        sent |= {verb for _, verb in line.sent}
    assert sent == set(VERBS)


@pytest.mark.parametrize("case", ALL)
@pytest.mark.filterwarnings("ignore::fedcircuits.errors.FedcircuitsWarning")
def test_a_message_that_comes_to_grief_makes_no_other_model(case: str) -> None:
    for fault in faults(case, expected(case)[2]):
        check(case, fault, plain_line(specs_of(case), fault))


@pytest.mark.parametrize("case", ALL)
@pytest.mark.filterwarnings("ignore::fedcircuits.errors.FedcircuitsWarning")
def test_a_run_that_ended_with_an_error_goes_on_to_the_same_model(
    case: str, tmp_path: Path
) -> None:
    for number, fault in enumerate(faults(case, expected(case)[3])):
        folder = tmp_path / str(number)
        if not check(case, fault, ResumedLine(specs_of(case), folder, fault)):
            assert bits(run(case, ResumedLine(specs_of(case), folder, None))) == expected(case)[0]
