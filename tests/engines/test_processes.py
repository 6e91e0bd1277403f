"""The engine with a process for each client: the contract, and what only processes can suffer."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.engine import EngineContract, specs, table
from fedcircuits.api.client_spec import CLIENT_FROM_SPEC, ClientSpec, learner_by_name
from fedcircuits.engines import ProcessEngine
from fedcircuits.errors import ClientError, FedcircuitsWarning, FederationError
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import Job, JobId, JobKind
from fedcircuits.learners import Hclt

SLOW = "contracts.engine:slow"
PATHS = os.pathsep.join(["tests", os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="class")
def running() -> Iterator[ProcessEngine]:
    with ProcessEngine(specs(), CLIENT_FROM_SPEC) as engine:
        yield engine


class TestProcessEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> str:
        return "processes"

    @pytest.fixture
    def transport(self, running: ProcessEngine) -> Any:
        return running

    @pytest.mark.slow
    @pytest.mark.parametrize("setting", ["horizontal", "vertical"])
    def test_same_model_bit_for_bit_as_in_this_process(
        self, engine: Any, setting: str, tmp_path: Path
    ) -> None:
        """Slow: it starts processes for every federation."""
        super().test_same_model_bit_for_bit_as_in_this_process(engine, setting, tmp_path)


@pytest.fixture(scope="module")
def slow() -> Iterator[ProcessEngine]:
    """Two clients that do as they are told; the tests run in order, the last ones end them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PATHS)
        records = {
            name: ClientSpec(name, pd.DataFrame({"x": [1.0]}), "").to_bytes() for name in "ab"
        }
        engine = ProcessEngine(records, SLOW)
    with engine:
        yield engine


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_slow_client_times_out_and_its_late_answer_is_not_mistaken_for_the_next(
    slow: ProcessEngine, tmp_path: Path
) -> None:
    go, gone = tmp_path / "go", str(tmp_path).encode()
    answers = slow.call("wait", {"a": str(go).encode(), "b": gone}, timeout=10.0)
    assert answers["b"] == b"b:" + gone
    assert isinstance(answers["a"], ClientError)
    assert "within 10.0 s" in str(answers["a"])
    go.touch()
    assert slow.call("echo", {"a": b"new"}, timeout=120)["a"] == b"a:new"


def test_an_exception_is_its_clients_and_the_others_answer(slow: ProcessEngine) -> None:
    assert isinstance(slow.call("fail", {"a": b""})["a"], ClientError)
    answers = slow.call("fail", {"a": b""}) | slow.call("echo", {"b": b"x"})
    assert "client 'a': RuntimeError: a would not" in str(answers["a"])
    assert answers["b"] == b"b:x"


def test_large_payloads_do_not_deadlock(slow: ProcessEngine) -> None:
    big = bytes(3_000_000)
    answers = slow.call("echo", {"a": big, "b": big}, timeout=120)
    assert {name: len(answer) for name, answer in answers.items()} == {
        "a": 3_000_002,
        "b": 3_000_002,
    }


def test_killed_client_is_named_and_the_others_answer(slow: ProcessEngine) -> None:
    os.kill(slow.process_id("a"), signal.SIGKILL)
    for _ in range(2):
        answers = slow.call("echo", {"a": b"x", "b": b"x"})
        assert isinstance(answers["a"], ClientError)
        assert "client 'a': its process has ended (exit code -9)" in str(answers["a"])
        assert answers["b"] == b"b:x"


def test_close_ends_processes_and_further_calls_are_refused(slow: ProcessEngine) -> None:
    pids = [slow.process_id(name) for name in "ab"]
    slow.close()
    slow.close()
    assert not any(alive(pid) for pid in pids)
    with pytest.raises(FederationError, match="closed"):
        slow.call("echo", {"a": b""})


def test_processes_end_when_the_engine_is_forgotten() -> None:
    engine = ProcessEngine({"a": specs()["north"]}, CLIENT_FROM_SPEC)
    pid = engine.process_id("a")
    del engine
    gc.collect()
    assert not alive(pid)


def test_processes_end_with_the_script_that_started_them() -> None:
    script = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from contracts.engine import specs\n"
        "from fedcircuits.engines import ProcessEngine\n"
        "from fedcircuits.api.client_spec import CLIENT_FROM_SPEC\n"
        "engine = ProcessEngine({'a': specs()['north']}, CLIENT_FROM_SPEC)\n"
        "sys.stdout.write(str(engine.process_id('a')))\n"
    )  # no `if __name__ == '__main__'`: the script is not imported in the child
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert not alive(int(done.stdout))


def test_child_does_not_import_what_it_does_not_need() -> None:
    script = (
        "import sys, fedcircuits.api.client_spec\n"
        "print([m for m in ('sklearn', 'torch', 'matplotlib', 'typer', 'fedcircuits.api.federate') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"


def test_making_a_client_that_cannot_be_made_names_it() -> None:
    records = {"a": ClientSpec("a", pd.DataFrame({"x": [1.0]}), "magic").to_bytes()}
    with pytest.raises(ClientError, match=r"client 'a'.*no learner 'magic'"):
        ProcessEngine(records, CLIENT_FROM_SPEC)


def test_client_spec_keeps_rows_exactly() -> None:
    frame = table().assign(flag=lambda t: t["size"] > 0, kind=pd.Categorical(["x", "y"] * 60))
    again = ClientSpec.from_bytes(ClientSpec("a", frame, "hclt", {"n_states": 4}).to_bytes())
    pd.testing.assert_frame_equal(again.data, frame)
    assert again.options == {"n_states": 4}


def test_learner_objects_of_ours_travel_and_others_are_refused() -> None:
    assert learner_by_name(Hclt(n_states=8), {}, "a") == ("hclt", {"n_states": 8})

    class Mine:
        def fit(self, table: Any, rng: np.random.Generator) -> Any:
            raise NotImplementedError

    with pytest.raises(FederationError, match=r"client 'a'.*Mine cannot be sent.*engine='local'"):
        fc.federate({"a": table()}, learner=Mine(), engine="processes")


def test_table_that_cannot_travel_is_refused_by_name() -> None:
    odd = pd.DataFrame({"x": [1, "two", 3.0]})
    with pytest.raises(FederationError, match="client 'a': its table cannot be sent"):
        fc.federate({"a": odd}, learner="factorised", engine="processes")


def test_client_killed_before_a_remote_query_is_left_out_and_said() -> None:
    rows = table().drop(columns="customer")
    clients = {name: rows.iloc[at::3] for at, name in enumerate("abc")}
    options: dict[str, Any] = {"label": "bought", "learner": "factorised", "agreement": "product"}
    with fc.federate(clients, **options, placement="remote", engine="processes") as fed:
        assert fed.log_prob(rows).attrs["answered"] == ("a", "b", "c")
        os.kill(fed.run.transport.process_id("b"), signal.SIGKILL)
        with pytest.warns(FedcircuitsWarning, match="answered by a, c alone.*client 'b'"):
            answer = fed.log_prob(rows)
        assert answer.attrs["answered"] == ("a", "c")
        assert "its process has ended" in answer.attrs["away"]["b"]
        expected = fc.federate(clients, **options).without("b").log_prob(rows)
        np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-9)


def test_fit_twice_gives_the_same_reply_without_fitting_twice() -> None:
    with ProcessEngine({"north": specs()["north"]}, CLIENT_FROM_SPEC) as engine:
        schema = m.Description.from_bytes(
            _bytes(engine.call("describe", {"north": m.Describe(5).to_bytes()})["north"])
        ).schema
        engine.call("agree", {"north": m.Agree(schema, 0, None).to_bytes()})
        job = Job(JobId(JobKind.SUBSPACE, 0), ("size",))
        fit = m.Fit((job,), False).to_bytes()
        first, second = (engine.call("fit", {"north": fit})["north"] for _ in range(2))
        assert first == second  # the time of the fit is in it, so a second fit would differ


def _bytes(answer: bytes | Exception) -> bytes:
    assert isinstance(answer, bytes)
    return answer
