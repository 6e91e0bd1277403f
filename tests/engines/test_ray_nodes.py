"""A Ray cluster of two nodes on this machine, encrypted and with a token."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.faults import During, model_bytes, rows_to_fit
from contracts.faulty import FAULTS
from fedcircuits.api.client_spec import CLIENT_FROM_SPEC, ClientSpec
from fedcircuits.engines import engine_named
from fedcircuits.errors import FederationError

pytest.importorskip("ray", reason="the extra [ray] is not installed")
pytestmark = pytest.mark.engine

# Two nodes until standard input ends; quick to notice that one is gone.
NODES = """
import json, sys
import ray
from ray.cluster_utils import Cluster

common = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 10**8}
cluster = Cluster()
nodes = [
    cluster.add_node(**common, temp_dir=sys.argv[1], resources={"one": 4}),
    cluster.add_node(**common, resources={"two": 4}, num_gpus=1),
]
raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)
sys.stdin.read()
cluster.shutdown()
"""
FAULTY = "contracts.faulty:client_from_spec"


@dataclass(frozen=True)
class Nodes:
    """What a party needs to know, and processes to kill."""

    address: str
    token: Path
    tls: Path
    raylets: tuple[int, int]

    @property
    def options(self) -> dict[str, Any]:
        return {"address": self.address, "token": self.token, "tls": self.tls}


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What clients made by `FAULTY` are told to do."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, faults: Path) -> Iterator[Nodes]:
    from fedcircuits.engines.ray.certificates import make_certificates
    from fedcircuits.engines.ray.settings import private_folder, remove_folder, variables

    folder = tmp_path_factory.mktemp("nodes")
    tls = make_certificates(folder / "certificates", ["127.0.0.1"])["127.0.0.1"]
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    session = private_folder()  # names of sockets must be short
    (session / "ray").mkdir()  # where Ray notes the cluster's address, under RAY_TMPDIR
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # all on loopback
        environment = {
            **os.environ,
            **variables(False, token, tls),
            "RAY_TMPDIR": str(session),
            FAULTS: str(faults),
            "PYTHONPATH": os.pathsep.join(
                [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
            ),
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_failure_threshold": "8",
        }
        cluster = subprocess.Popen(
            [sys.executable, "-c", NODES, str(session)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert cluster.stdin is not None
        assert cluster.stdout is not None
        processes: list[psutil.Process] = []
        try:
            told = json.loads(cluster.stdout.readline())
            processes = psutil.Process(cluster.pid).children(recursive=True)
            yield Nodes(told["address"], token, tls, tuple(told["raylets"]))
        finally:
            cluster.stdin.close()
            try:
                cluster.wait(timeout=60)
            finally:
                for process in psutil.wait_procs(processes, timeout=5)[1]:
                    process.kill()
                cluster.kill()
                remove_folder(session)


# --- strangers ------------------------------------------------------------------------------------


def refused(options: dict[str, Any]) -> str:
    with pytest.raises(FederationError) as caught:
        fc.federate({"a": table()}, learner="factorised", engine="ray", engine_options=options)
    return str(caught.value)


def test_wrong_token_and_no_token_are_refused_and_members_go_on(
    nodes: Nodes, tmp_path: Path
) -> None:
    (tmp_path / "wrong").write_text(secrets.token_hex(32))
    said = refused({**nodes.options, "token": tmp_path / "wrong"})
    assert f"the Ray cluster at {nodes.address} refused this process: the token is" in said
    without = {"address": nodes.address, "tls": nodes.tls}
    assert "the token is missing or wrong" in refused(without)
    # A member afterwards, with rows of two nodes.
    assert fc.federate(
        {"a": table(), "b": table(1)},
        id="customer",
        label="bought",
        learner="factorised",
        engine="ray",
        engine_options=nodes.options,
    ).clients == ("a", "b")


def test_plaintext_and_another_authority_are_refused(nodes: Nodes, tmp_path: Path) -> None:
    from fedcircuits.engines.ray.certificates import make_certificates

    plain = {"address": nodes.address, "token": nodes.token}
    assert "encrypts: give its certificates" in refused(plain)
    other = make_certificates(tmp_path / "other", ["127.0.0.1"])["127.0.0.1"]
    assert "is not one of our authority" in refused({**nodes.options, "tls": other})
    # A stranger who does not look at the cluster's certificate is refused by the cluster.
    assert first_byte(nodes.address, nodes.tls) == b"\0"  # of the first frame of HTTP/2
    assert first_byte(nodes.address, other) == b""


def first_byte(address: str, tls: Path) -> bytes:
    """What the other side says first to whoever shows a certificate; nothing where it hangs up."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(tls / "node.crt", tls / "node.key")
    context.set_alpn_protocols(["h2"])
    host, port = address.split(":")
    try:
        with (
            socket.create_connection((host, int(port)), 10) as raw,
            context.wrap_socket(raw) as encrypted,
        ):
            return encrypted.recv(1)
    except (ssl.SSLError, ConnectionError):
        return b""


# --- members --------------------------------------------------------------------------------------


def record(name: str, rows: pd.DataFrame | Path) -> bytes:
    return ClientSpec(name, rows, "factorised", id="customer").to_bytes()


def test_clients_are_spread_over_the_nodes_and_the_cluster_outlives_them(nodes: Nodes) -> None:
    records = {name: record(name, table()) for name in "abc"}
    with engine_named("ray")(records, CLIENT_FROM_SPEC, **nodes.options) as engine:
        assert len({engine.place(name).node for name in "abc"}) == 2
        clients = [psutil.Process(engine.place(name).process) for name in "abc"]
    assert not psutil.wait_procs(clients, timeout=120)[1]
    assert all(psutil.pid_exists(pid) for pid in nodes.raylets)


def test_clients_run_where_resources_say_and_read_files_there(nodes: Nodes, tmp_path: Path) -> None:
    table().to_parquet(tmp_path / "there.parquet")
    records = {name: record(name, tmp_path / "there.parquet") for name in "abc"}
    options: dict[str, Any] = {
        **nodes.options,
        "resources": {"a": {"one": 1}, "b": {"two": 1}, "c": {"two": 1}},
        "num_gpus": {"b": 0.5, "c": 0.5},
    }
    with engine_named("ray")(records, CLIENT_FROM_SPEC, **options) as engine:
        a, b, c = (engine.place(name) for name in "abc")
        assert a.node != b.node == c.node
        assert (a.gpus, b.gpus, c.gpus) == ((), ("0",), ("0",))  # two share one
        assert len({a.process, b.process, c.process}) == 3
        assert fc.federate(engine=engine).n_rows == {"a": 120, "b": 120, "c": 120}


def kill_node(raylet: int) -> None:
    """End a node as a power cut does: its workers with it."""
    process = psutil.Process(raylet)
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def test_node_killed_during_fit_is_survived_and_the_model_is_the_same(
    nodes: Nodes, faults: Path, tmp_path: Path
) -> None:
    """The last test of the module: it leaves one node. No client ends its fit before."""
    told = [faults / f"{name}.fit" for name in "abc"]
    for path in told:
        path.write_text("sleep 1000")

    def kill() -> None:
        kill_node(nodes.raylets[1])
        for path in told:
            path.unlink()

    rows = rows_to_fit()
    clients = {name: rows.iloc[at::3].reset_index(drop=True) for at, name in enumerate("abc")}
    expected = model_bytes(fc.federate(clients, label="y", learner="hclt"), tmp_path / "local.fc")
    records = {
        name: ClientSpec(name, part, "hclt", kinds={"y": "categorical"}).to_bytes()
        for name, part in clients.items()
    }
    killing = During("fit", kill, *told)
    with engine_named("ray")(records, FAULTY, progress=killing, **nodes.options) as engine:
        before = {name: engine.place(name) for name in "abc"}
        assert len({place.node for place in before.values()}) == 2
        fed = fc.federate(label="y", engine=engine)
        assert killing.done
        after = {name: engine.place(name) for name in "abc"}
        assert len({place.node for place in after.values()}) == 1
        moved = {name for name in "abc" if before[name].node != after[name].node}
        assert moved
        assert set(engine.replay.brought_back) == moved
        assert fed.dropped == {}
        assert model_bytes(fed, tmp_path / "ray.fc") == expected
