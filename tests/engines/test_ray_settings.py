"""Settings and certificates of clusters, and names of engines: nothing here starts Ray."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import fedcircuits as fc
from contracts.engine import table
from fedcircuits.cli.federation_file import read_federation
from fedcircuits.engines.ray.settings import (
    Environment,
    check_address,
    private_folder,
    remove_folder,
    variables,
)
from fedcircuits.errors import FederationError


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("RAY_"):
            monkeypatch.delenv(name)


def test_local_cluster_is_on_loopback_without_telemetry_and_has_a_token_of_its_own() -> None:
    first, second = variables(local=True), variables(local=True)
    assert first["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert first["RAY_USAGE_STATS_ENABLED"] == "0"
    assert first["RAY_AUTH_MODE"] == "token"
    assert len(first["RAY_AUTH_TOKEN"]) == 64
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]


def test_what_the_user_has_set_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "mine")
    found = variables(local=True)
    assert found["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_AUTH_TOKEN" not in found


def test_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "here")
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    environment = Environment()
    environment.set({"RAY_ADDRESS": "there", "RAY_USE_TLS": "1"})
    assert (os.environ["RAY_ADDRESS"], os.environ["RAY_USE_TLS"]) == ("there", "1")
    environment.restore()
    assert os.environ["RAY_ADDRESS"] == "here"
    assert "RAY_USE_TLS" not in os.environ


def test_files_that_are_missing_are_named_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=r"no file with the token.*absent"):
        variables(local=False, token=tmp_path / "absent")
    with pytest.raises(FederationError, match=r"no ca\.crt in"):
        variables(local=False, tls=tmp_path)


def test_folder_is_private_and_its_name_is_short() -> None:
    folder = private_folder()
    try:
        folder.chmod(0o777)  # as Ray does
        assert folder.parent.stat().st_mode & 0o077 == 0
        longest = folder / "session_2026-01-01_00-00-00_000000_4194304" / "sockets/plasma_store"
        assert len(str(longest)) <= 107
    finally:
        remove_folder(folder)
    assert not folder.parent.exists()


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "10.0.0.1", "10.0.0.1:port"])
def test_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(FederationError, match="host:port or auto"):
        check_address(address)


def test_nobody_at_an_address_is_said_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(FederationError, match="no Ray cluster answers at 127"):
            check_address(f"127.0.0.1:{taken.getsockname()[1]}")


def test_one_side_that_encrypts_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = pytest.importorskip("fedcircuits.engines.ray.certificates")
    ours, theirs = (
        certificates.make_certificates(tmp_path / name, ["127.0.0.1"])["127.0.0.1"]
        for name in ("ours", "theirs")
    )
    with _Listener(ours) as port:  # encrypted there and not here
        with pytest.raises(FederationError, match="encrypts: give its certificates"):
            check_address(f"127.0.0.1:{port}")
        for name, value in variables(local=False, tls=theirs).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(FederationError, match="not one of our authority"):
            check_address(f"127.0.0.1:{port}")
        for name, value in variables(local=False, tls=ours).items():
            monkeypatch.setenv(name, value)
        check_address(f"127.0.0.1:{port}")
    with (
        _Listener(None) as port,
        pytest.raises(FederationError, match="no encrypted connection"),
    ):
        check_address(f"127.0.0.1:{port}")


class _Listener:
    """Takes connections on loopback, encrypted with certificates or hanging up at once."""

    def __init__(self, tls: Path | None) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._context = None
        if tls is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(tls / "node.crt", tls / "node.key")
            self._context.load_verify_locations(tls / "ca.crt")
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        while True:
            try:
                taken, _ = self._socket.accept()
            except OSError:
                return
            with taken:
                try:
                    if self._context is not None:
                        self._context.wrap_socket(taken, server_side=True).close()
                except OSError:
                    continue

    def __enter__(self) -> int:
        self._thread.start()
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(timeout=60)


# --- certificates ---------------------------------------------------------------------------------


def test_certificates_are_of_one_authority_private_and_for_their_machine(tmp_path: Path) -> None:
    certificates = pytest.importorskip("fedcircuits.engines.ray.certificates")
    made = certificates.make_certificates(tmp_path, ["10.0.0.1", "bank.example"])
    later = certificates.make_certificates(tmp_path, ["10.0.0.3"])  # by the same authority
    folders = [*made.values(), *later.values()]
    assert [folder.name for folder in folders] == ["10.0.0.1", "bank.example", "10.0.0.3"]
    assert len({(folder / "ca.crt").read_bytes() for folder in folders}) == 1
    for path in tmp_path.rglob("*.key"):
        assert path.stat().st_mode & 0o077 == 0
    text = (made["bank.example"] / "node.crt").read_bytes()
    names = certificates.x509.load_pem_x509_certificate(text).extensions.get_extension_for_class(
        certificates.x509.SubjectAlternativeName
    )
    assert "bank.example" in names.value.get_values_for_type(certificates.x509.DNSName)
    assert not (made["10.0.0.1"] / "ca.key").exists()  # the authority's key stays where it is


def test_authority_without_its_key_cannot_add_machines(tmp_path: Path) -> None:
    certificates = pytest.importorskip("fedcircuits.engines.ray.certificates")
    certificates.make_certificates(tmp_path, [])
    (tmp_path / "ca.key").unlink()
    with pytest.raises(FederationError, match=r"one of ca\.crt and ca\.key"):
        certificates.make_certificates(tmp_path, ["10.0.0.1"])


# --- names of engines -----------------------------------------------------------------------------


def test_unknown_engine_is_refused_with_those_there_are() -> None:
    with pytest.raises(FederationError, match="'magic'; there are local, processes, ray, nvflare"):
        fc.federate({"a": table()}, engine="magic")


def test_engine_whose_package_is_not_installed_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['ray'] = None  # as if it were not there\n"
        "import pandas as pd, fedcircuits as fc\n"
        "try: fc.federate({'a': pd.DataFrame({'x': [1.0]})}, engine='ray')\n"
        "except fc.FedcircuitsError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "engine='ray' needs an extra: pip install 'fedcircuits[ray]'"


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_option_that_an_engine_does_not_have_is_refused(engine: str) -> None:
    with pytest.raises(FederationError, match="no option 'address'"):
        fc.federate({"a": table()}, engine=engine, engine_options={"address": "auto"})


def test_federation_file_gives_options_of_the_engine_with_paths_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(
        'engine = "ray"\n[clients]\na = "/data/a.csv"\n'
        '[engine_options]\naddress = "10.0.0.1:6379"\ntls = "cluster/10.0.0.1"\n'
        "resources = { a = { bank-rows = 1 } }\n"
    )
    read = read_federation(file)
    assert read.settings["engine_options"] == {
        "address": "10.0.0.1:6379",
        "tls": str(tmp_path / "cluster/10.0.0.1"),
        "resources": {"a": {"bank-rows": 1}},
    }
    assert read.clients == {"a": Path("/data/a.csv")}
