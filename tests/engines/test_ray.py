"""The engine on a Ray cluster of this machine: the contract, and what only actors can suffer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

import fedcircuits as fc
from contracts.defaults import SPLITS, by_defaults
from contracts.engine import EngineContract, specs, table
from contracts.engine_faults import CLIENT, EngineFaults, Site
from contracts.faults import During, model_bytes, rows_to_fit
from contracts.faulty import FAULTS
from fedcircuits.api import partition
from fedcircuits.api.client_spec import CLIENT_FROM_SPEC, ClientSpec
from fedcircuits.engines import engine_named
from fedcircuits.errors import ClientError, FedcircuitsWarning, FederationError

pytest.importorskip("ray", reason="the extra [ray] is not installed")
pytestmark = pytest.mark.engine

SLOW = "contracts.engine:slow"
PATHS = os.pathsep.join([os.path.abspath("tests"), os.environ.get("PYTHONPATH", "")])


PROGRAM = """
import os, sys
sys.path.insert(0, "tests")
from contracts.engine import specs
from fedcircuits.engines import engine_named
from fedcircuits.api.client_spec import CLIENT_FROM_SPEC
import psutil, ray

engine = engine_named("ray")({"north": specs()["north"]}, CLIENT_FROM_SPEC)
processes = psutil.Process().children(recursive=True)
everyone = [psutil.Process(), *processes]
ports = {c.laddr.ip for p in everyone for c in p.net_connections() if c.status == "LISTEN"}
print(*[p.pid for p in processes])
print(*ports)
print(ray._private.worker._global_node.get_session_dir_path())
sys.stdout.flush()
"""


def run_program(ending: str) -> tuple[list[int], set[str], Path]:
    """A program that starts an engine and ends; its processes, where they listened, its folder."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + ending],
        capture_output=True,
        text=True,
        timeout=180,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    pids = [int(pid) for pid in lines[0].split()]
    assert len(pids) > 5
    return pids, set(lines[1].split()), Path(lines[2])


@pytest.fixture(scope="module", autouse=True)
def killed() -> list[int]:
    """Processes of a program that was killed: they have the length of the module to end."""
    pids, _, session = run_program("os.kill(os.getpid(), 9)")
    shutil.rmtree(session.parent)
    return pids


@pytest.fixture(scope="module")
def running(faults: Path) -> Iterator[Any]:
    """One engine for the module: while it runs, others share the cluster that it started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FAULTS, str(faults))
        patch.setenv("PYTHONPATH", PATHS)  # as the actors get it, for clients made by `SLOW`
        engine = engine_named("ray")(specs(), CLIENT_FROM_SPEC)
    with engine:
        yield engine


@pytest.fixture(scope="module")
def slow(running: Any) -> Iterator[Any]:
    """Two clients that do as they are told; the tests run in order, the last ones end them."""
    del running
    records = {name: ClientSpec(name, pd.DataFrame({"x": [1.0]}), "").to_bytes() for name in "ab"}
    with engine_named("ray")(records, SLOW, max_restarts=1) as engine:
        yield engine


class TestRayEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, running: Any) -> str:
        del running
        return "ray"

    @pytest.fixture
    def transport(self, running: Any) -> Any:
        return running


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def faulty(running: Any) -> Iterator[Any]:
    """Clients that fail where they are told to, in the cluster that is running."""
    del running
    with engine_named("ray")(specs(), "contracts.faulty:client_from_spec") as engine:
        yield engine


class TestRayFaults(EngineFaults):
    @pytest.fixture
    def site(self, faulty: Any, faults: Path) -> Iterator[Site]:
        """Ray starts a client again by itself."""
        yield Site(faulty, faults, lambda: [faulty.place(CLIENT).process], lambda: None)
        for path in faults.iterdir():
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("case", SPLITS)
def test_default_policies_and_default_settings_train(
    case: str, running: Any, tmp_path: Path
) -> None:
    """The same bits as in this process, whatever the split."""
    del running
    there = model_bytes(by_defaults(case, engine="ray"), tmp_path / "there.fc")
    assert there == model_bytes(by_defaults(case), tmp_path / "here.fc")


# --- clients that hang, fail or die ---------------------------------------------------------------


def test_hung_client_is_named_in_time_and_the_rest_is_kept(slow: Any) -> None:
    """On first contact, when each client says who it is before it answers."""
    stopped = psutil.Process(slow.place("a").process)
    stopped.suspend()
    try:
        answers = slow.call("echo", {"a": b"x", "b": b"x"}, timeout=20.0)
    finally:
        stopped.resume()
    assert answers["b"] == b"b:x"
    assert "client 'a': no answer to 'echo' within 20.0 s" in str(answers["a"])
    assert slow.call("echo", {"a": b"new"}, timeout=120)["a"] == b"a:new"


def test_an_exception_is_its_clients_and_the_others_answer(slow: Any) -> None:
    answers = slow.call("fail", {"a": b""}, 120.0) | slow.call("echo", {"b": b"x"}, 120.0)
    assert "client 'a': RuntimeError: a would not" in str(answers["a"])
    assert answers["b"] == b"b:x"


def test_large_payloads_travel(slow: Any) -> None:
    answers = slow.call("echo", {"a": bytes(3_000_000)}, timeout=120)
    assert answers["a"] == b"a:" + bytes(3_000_000)


def test_killed_client_is_started_again_as_often_as_allowed(slow: Any) -> None:
    first = slow.place("a").process
    os.kill(first, signal.SIGKILL)
    assert slow.call("echo", {"a": b"x"}, timeout=120)["a"] == b"a:x"
    assert slow.place("a").process != first
    os.kill(slow.place("a").process, signal.SIGKILL)
    for _ in range(2):
        answers = slow.call("echo", {"a": b"x", "b": b"x"}, timeout=120)
        assert "client 'a': its process has ended and is not started again" in str(answers["a"])
        assert answers["b"] == b"b:x"


def test_closed_engine_leaves_no_actor_and_refuses_calls(running: Any) -> None:
    engine = engine_named("ray")({"a": specs()["north"]}, CLIENT_FROM_SPEC)
    process = psutil.Process(engine.place("a").process)
    process.suspend()  # also one that hangs
    engine.close()
    engine.close()
    process.wait(timeout=120)
    with pytest.raises(FederationError, match="closed"):
        engine.call("describe", {"a": b""})
    assert running.call("dance", {"north": b""})  # the cluster is still there for the others


def test_making_a_client_that_cannot_be_made_names_it(running: Any) -> None:
    del running
    records = {"a": ClientSpec("a", pd.DataFrame({"x": [1.0]}), "magic").to_bytes()}
    with pytest.raises(ClientError, match=r"client 'a'.*no learner 'magic'"):
        engine_named("ray")(records, CLIENT_FROM_SPEC)


def test_client_without_a_place_is_an_error_that_says_what_there_is(running: Any) -> None:
    del running
    options = {"num_gpus": 64, "start_timeout": 2.0}
    with pytest.raises(ClientError, match=r"client 'a': not started within 2.0 s.*CPU"):
        fc.federate({"a": table()}, learner="factorised", engine="ray", engine_options=options)


# --- the same model after a death -----------------------------------------------------------------


def records(rows: pd.DataFrame) -> dict[str, bytes]:
    return {
        name: ClientSpec(
            name, rows.iloc[at::2].reset_index(drop=True), "hclt", kinds={"y": "categorical"}
        ).to_bytes()
        for at, name in enumerate("ab")
    }


FAULTY = "contracts.faulty:client_from_spec"


@pytest.fixture
def stuck(running: Any, faults: Path) -> Iterator[Path]:
    """The client b does not get on with a fit while this file is there."""
    del running
    told = faults / "b.fit"
    told.write_text("sleep 1000")
    yield told
    for path in faults.iterdir():
        path.unlink(missing_ok=True)


def test_client_killed_during_fit_is_brought_back_and_the_model_is_the_same(
    stuck: Path, tmp_path: Path
) -> None:
    rows = rows_to_fit()
    clients = {name: rows.iloc[at::2].reset_index(drop=True) for at, name in enumerate("ab")}
    expected = model_bytes(fc.federate(clients, label="y", learner="hclt"), tmp_path / "local.fc")

    def kill() -> None:
        os.kill(engine.place("b").process, signal.SIGKILL)
        stuck.unlink()

    killer = During("fit", kill, stuck)
    with engine_named("ray")(records(rows), FAULTY, progress=killer) as engine:
        before = engine.place("b").process
        fed = fc.federate(label="y", engine=engine)
        assert killer.done
        assert engine.place("b").process != before
        assert engine.replay.brought_back == {"b": 1}
        assert engine.replay.asked["fit"] == 2  # one for each client: the other did not fit again
        assert fed.dropped == {}
        assert model_bytes(fed, tmp_path / "ray.fc") == expected


def test_client_that_hangs_during_fit_is_dropped_by_name_and_the_rest_is_the_model(
    stuck: Path,
) -> None:
    rows = rows_to_fit()
    hang = During("fit", lambda: psutil.Process(engine.place("b").process).suspend(), stuck)
    with engine_named("ray")(records(rows), FAULTY, progress=hang) as engine:
        fed = fc.federate(label="y", engine=engine, timeout=30.0)
        assert hang.done
        assert "client 'b': no answer to 'fit' within 30.0 s" in fed.dropped["b"]
        assert fed.clients == ("a",)


def test_run_that_was_killed_goes_on_from_its_folder_without_fitting_again(
    running: Any, tmp_path: Path
) -> None:
    del running
    rows, saved, asked = table().drop(columns="customer"), [], []
    data = {
        name: ClientSpec(name, rows.iloc[at::2].reset_index(drop=True), "factorised").to_bytes()
        for at, name in enumerate("ab")
    }
    for at in range(2):
        with engine_named("ray")(data, CLIENT_FROM_SPEC, folder=tmp_path / "job") as engine:
            fed = fc.federate(label="bought", engine=engine)
            saved.append(model_bytes(fed, tmp_path / f"{at}.fc"))
            asked.append(engine.replay.asked.get("fit", 0))
    assert saved[0] == saved[1]
    assert asked == [2, 0]


def test_remote_answers_are_those_of_a_gathered_model_and_survive_a_death(running: Any) -> None:
    del running
    rows = table()
    clients = {
        "a": rows[["customer", "height", "colour", "bought"]],
        "b": rows[["customer", "visits", "size"]],
    }
    options: dict[str, Any] = {"id": "customer", "label": "bought", "learner": "factorised"}
    gathered = fc.federate(clients, **options)
    asked = rows.drop(columns="customer")
    expected = np.asarray(gathered.log_prob(asked))
    with fc.federate(clients, **options, engine="ray", placement="remote") as fed:
        engine = fed.run.transport
        np.testing.assert_allclose(fed.log_prob(asked), expected, rtol=0, atol=1e-9)
        before = engine.replay.asked.get("query", 0)
        np.testing.assert_allclose(fed.log_prob(asked), expected, rtol=0, atol=1e-9)
        assert engine.replay.asked["query"] - before == 2  # one for each client, for all rows
        os.kill(engine.place("b").process, signal.SIGKILL)
        answer = fed.log_prob(asked)  # its models are fitted again there, and are the same
        assert answer.attrs["answered"] == ("a", "b")
        np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-9)


def test_client_that_hangs_at_query_time_is_left_out_and_said(running: Any) -> None:
    del running
    rows = table().drop(columns="customer")
    clients = {name: rows.iloc[at::3] for at, name in enumerate("abc")}
    options: dict[str, Any] = {"label": "bought", "learner": "factorised", "agreement": "product"}
    with fc.federate(clients, **options, placement="remote", engine="ray", timeout=200.0) as fed:
        server = next(iter(fed.fitted.models.values())).server
        server.timeout = 20.0
        psutil.Process(fed.run.transport.place("b").process).suspend()
        with pytest.warns(FedcircuitsWarning, match="answered by a, c alone.*client 'b'"):
            answer = fed.log_prob(rows)
        assert answer.attrs["answered"] == ("a", "c")
        expected = fc.federate(clients, **options).without("b").log_prob(rows)
        np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-9)


# --- where rows lie and clients run ---------------------------------------------------------------


def test_rows_may_be_objects_of_the_cluster_or_files_that_the_client_reads(
    running: Any, tmp_path: Path
) -> None:
    del running
    import pyarrow as pa
    import ray

    rows = table()
    parts = [rows.iloc[at::3].reset_index(drop=True) for at in range(3)]
    parts[2].to_parquet(tmp_path / "c.parquet")
    clients = {
        "a": ray.put(parts[0]),
        "b": ray.put(pa.Table.from_pandas(parts[1])),
        "c": tmp_path / "c.parquet",
    }
    options: dict[str, Any] = {"id": "customer", "label": "bought", "learner": "factorised"}
    there = fc.federate(clients, engine="ray", **options)
    here = fc.federate(dict(zip("abc", parts, strict=True)), **options)
    assert model_bytes(there, tmp_path / "0.fc") == model_bytes(here, tmp_path / "1.fc")


def test_file_that_is_not_there_is_an_error_of_the_client(running: Any, tmp_path: Path) -> None:
    del running
    with pytest.raises(ClientError, match=r"client 'a'.*no such file.*absent\.csv"):
        fc.federate({"a": tmp_path / "absent.csv"}, engine="ray", learner="factorised")


def test_object_that_is_no_table_is_an_error_of_the_client(running: Any) -> None:
    del running
    import ray

    with pytest.raises(ClientError, match=r"client 'a'.*DataFrame or an Arrow table, found list"):
        fc.federate({"a": ray.put([1, 2])}, engine="ray", learner="factorised")


def test_one_table_is_split_over_many_clients_in_one_call(running: Any, tmp_path: Path) -> None:
    """More clients than CPUs: none is kept waiting for a place."""
    del running
    shares = partition.iid(table(n=240).drop(columns="customer"), 4)
    told: list[str] = []
    fed = fc.federate(
        shares,
        label="bought",
        learner="factorised",
        engine="ray",
        engine_options={"progress": lambda _, words: told.append(words)},
    )
    local = fc.federate(shares, label="bought", learner="factorised")
    assert model_bytes(fed, tmp_path / "0.fc") == model_bytes(local, tmp_path / "1.fc")
    assert "starting clients" in told
    counts = [
        line.split()[1] for line in told if line.startswith("fit: ") and "of 4 clients" in line
    ]
    assert counts[0] == "0"  # how many are there at a time is up to the machine
    assert counts == sorted(counts)


def test_clients_that_share_a_process_come_back_together_and_the_model_is_the_same(
    running: Any, tmp_path: Path
) -> None:
    del running
    shares = partition.iid(table(n=240).drop(columns="customer"), 5)
    local = fc.federate(shares, label="bought", learner="factorised")
    records = {
        name: ClientSpec(name, rows, "factorised", kinds={"bought": "categorical"}).to_bytes()
        for name, rows in shares.items()
    }
    with engine_named("ray")(records, CLIENT_FROM_SPEC, clients_per_process=2) as engine:
        processes = [engine.place(name).process for name in sorted(records)]
        assert len(set(processes)) == 3
        assert processes[0] == processes[3] != processes[1] == processes[4]
        expected = fc.federate(label="bought", learner="factorised", engine=engine)
        os.kill(processes[0], signal.SIGKILL)
        fed = fc.federate(label="bought", learner="factorised", engine=engine)
        assert set(engine.replay.brought_back) <= set(sorted(records)[:4:3])
        assert engine.place(sorted(records)[0]).process != processes[0]
    assert model_bytes(fed, tmp_path / "0.fc") == model_bytes(expected, tmp_path / "2.fc")
    assert model_bytes(fed, tmp_path / "0.fc") == model_bytes(local, tmp_path / "1.fc")
    with pytest.raises(FederationError, match="clients_per_process is a whole number"):
        engine_named("ray")(records, CLIENT_FROM_SPEC, clients_per_process=0)


def test_option_that_the_engine_does_not_have_is_refused_with_those_it_has(running: Any) -> None:
    del running
    with pytest.raises(FederationError, match=r"no option 'cpus'; it has address, num_cpus"):
        fc.federate({"a": table()}, engine="ray", engine_options={"cpus": 2})


# --- nothing is left ------------------------------------------------------------------------------


def ended(pids: list[int], seconds: float) -> bool:
    """Whether all processes end in time (one that nobody waits for has ended)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(_lives(pid) for pid in pids):
            return True
        time.sleep(0.5)
    return False


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_program_that_fails_leaves_no_process_and_no_file() -> None:
    pids, ports, session = run_program("raise RuntimeError")
    assert ports <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert ended(pids, 120.0)
    assert not session.parent.exists()


def test_program_that_is_killed_leaves_no_process(killed: list[int]) -> None:
    assert ended(killed, 200.0)  # two helpers of Ray try to report it for a minute
