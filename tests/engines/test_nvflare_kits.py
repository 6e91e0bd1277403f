"""Start-up kits: who signs them, and what a party lets the other side do. Nothing is started."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedcircuits.cli.federation_file import read_parties
from fedcircuits.engines.nvflare.coordinator import Coordinator
from fedcircuits.engines.nvflare.jobs import write_job
from fedcircuits.errors import FederationError

pytest.importorskip("nvflare")

from fedcircuits.engines.nvflare import flare, kits

FILE = """
label = "bought"
learner = "factorised"
output = "model.fc"
[coordinator]
host = "coordinator.example.org"
port = 9000
[clients]
bank = {}
shop = { learner = "mixture" }
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> kits.Kits:
    return kits.provision(tmp_path_factory.mktemp("kits"), "localhost", 9000, ["bank", "shop"])


def told(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_party_lets_nobody_bring_code_or_read_its_files(made: kits.Kits) -> None:
    local = made.site("bank") / "local"
    rights = told(local / "authorization.json")["permissions"]
    assert set(rights) == {"lead"}
    assert {right for right, who in rights["lead"].items() if who == "none"} >= {
        "byoc", "shell_commands", "operate",
    }  # fmt: skip
    resources = told(local / "resources.json")
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["class_allow_list"] == [kits.EXECUTOR]
    assert resources["allow_log_streaming"] is False
    assert not [c for c in resources["components"] if "log" in c["id"]]


def test_every_connection_needs_certificates_on_both_ends(made: kits.Kits) -> None:
    server = told(made.server / "startup" / "fed_server.json")["servers"][0]
    client = told(made.site("bank") / "startup" / "fed_client.json")["client"]
    admin = told(made.admin / "startup" / "fed_admin.json")["admin"]
    assert {x["connection_security"] for x in (server, client, admin)} == {"mtls"}


def test_keys_are_for_their_owner_and_no_kit_holds_the_authoritys(made: kits.Kits) -> None:
    for kit in (made.server, made.admin, made.site("bank"), made.site("shop")):
        assert stat.S_IMODE(kit.stat().st_mode) == 0o700
        (key,) = kit.glob("startup/*.key")
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    authority = made.folder / "coordinator" / "authority"
    assert stat.S_IMODE(authority.stat().st_mode) == 0o700
    (state,) = authority.rglob("cert.json")
    secret = told(state)["root_pri_key"].encode()
    assert b"PRIVATE KEY" in secret
    for kit in (made.server, made.admin, made.site("bank"), made.site("shop")):
        assert not [p for p in kit.rglob("*") if p.is_file() and secret in p.read_bytes()]


def test_a_later_party_gets_a_kit_of_the_same_authority_and_the_others_keep_theirs(
    made: kits.Kits,
) -> None:
    before = {p: p.read_bytes() for p in made.folder.rglob("startup/*") if p.is_file()}
    kits.provision(made.folder, "localhost", 9000, ["bank", "shop", "lab"])
    assert all(path.read_bytes() == data for path, data in before.items())
    root = (made.server / "startup" / "rootCA.pem").read_bytes()
    assert (made.site("lab") / "startup" / "rootCA.pem").read_bytes() == root
    context = ssl.create_default_context(cafile=str(made.server / "startup" / "rootCA.pem"))
    startup = made.site("lab") / "startup"
    context.load_cert_chain(startup / "client.crt", startup / "client.key")  # they belong together


@pytest.mark.parametrize("name", ["server", "coordinator", "", "a b", "../x", "-x", "x" * 64])
def test_names_that_cannot_be_a_party_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="a name is letters, digits"):
        kits.provision(tmp_path, "localhost", 9000, [name])
    assert not list(tmp_path.iterdir())


def test_job_tells_a_party_its_own_settings_and_no_code(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(FILE)
    federation = read_parties(tmp_path / "f.toml")
    assert (federation.host, federation.port) == ("coordinator.example.org", 9000)
    assert federation.kits == tmp_path / "kits"
    settings = federation.client_settings()
    assert settings["bank"]["learner"] == "factorised"
    assert settings["shop"]["learner"] == "mixture"
    assert settings["bank"]["label"] == "bought"
    sites = {name: name for name in settings}
    job = write_job(tmp_path / "job", "fedcircuits.cli.coordinate:train", {}, sites, settings)
    files = [p for p in job.rglob("*") if p.is_file()]
    assert {p.suffix for p in files} == {".json"}
    (one,) = told(job / "app-shop" / "config" / "config_fed_client.json")["executors"]
    assert one["executor"]["path"] == kits.EXECUTOR
    assert flare.unpacked(one["executor"]["args"]["settings"]) == settings["shop"]


def test_controller_runs_programs_of_this_package_alone() -> None:
    with pytest.raises(FederationError, match="no program of fedcircuits"):
        flare.FederationController("os:system", flare.packed({}), flare.packed({}))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('host = "coordinator.example.org"', "host = 3", "host of .coordinator. has a value of"),
        ("port = 9000", 'colour = "red"', "no setting 'colour'"),
        (
            'label = "bought"',
            'id_secret = "a long and random one"',
            "id_secret is for the parties alone",
        ),
        ("bank = {}", "bank = 3", "client 'bank' needs data"),
    ],
)
def test_bad_federation_file_is_told(old: str, new: str, words: str, tmp_path: Path) -> None:
    assert old in FILE
    (tmp_path / "f.toml").write_text(FILE.replace(old, new))
    with pytest.raises(FederationError, match=words):
        read_parties(tmp_path / "f.toml")


def test_kits_of_another_coordinator_are_not_mixed_up(made: kits.Kits) -> None:
    with pytest.raises(FederationError, match=r"for a coordinator at localhost:9000, not other:1"):
        kits.provision(made.folder, "other", 1, ["bank"])


def test_client_that_cannot_be_made_quotes_no_cell(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from fedcircuits.cli import silo

    (tmp_path / silo.IDENTITY_KEY).write_text("0" * 64)
    (tmp_path / silo.SEALING_KEY).write_text("0" * 64)
    (tmp_path / "rows.csv").write_text("size\n" + "1.0\n" * 9 + "secret-cell\n")
    (tmp_path / "policy.toml").write_text('[kinds]\nsize = "count"\n')
    site = {
        "party": "bank",
        "data": str(tmp_path / "rows.csv"),
        "policy": str(tmp_path / "policy.toml"),
        "pins": None,
        "id_secret": "",
        "audit": str(tmp_path / "audit.jsonl"),
    }
    settings = {"learner": "hclt", "id": None, "label": None}
    with pytest.raises(FederationError, match="it cannot be made") as caught:
        silo.keeper(tmp_path, site, settings)
    assert "secret-cell" not in str(caught.value)
    assert "secret-cell" in caplog.text


def test_coordinator_whose_port_is_taken_says_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        made = kits.provision(tmp_path, "127.0.0.1", port, ["bank"])
        with pytest.raises(FederationError, match=f"somebody listens at 127.0.0.1:{port} already"):
            Coordinator(made)


def test_earlier_jobs_are_forgotten_and_the_kit_is_not(tmp_path: Path) -> None:
    made = kits.provision(tmp_path, "localhost", 9000, ["bank"])
    kept = sorted(p.name for p in made.server.iterdir())
    for name in ("0a1b2c3d-0000-4000-8000-00000000000f", "jobs", "snapshots"):
        (made.server / name).mkdir()
    kits.forget_jobs(made.server)
    assert sorted(p.name for p in made.server.iterdir()) == kept


def test_without_nvflare_the_error_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['nvflare'] = None\n"
        "import fedcircuits as fc\n"
        "try:\n"
        "    fc.federate({'a': {'x': [1.0] * 20}}, engine='nvflare')\n"
        "except fc.FedcircuitsError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert "pip install 'fedcircuits[nvflare]'" in done.stdout


def test_a_server_for_this_machine_listens_on_this_machine_alone(made: kits.Kits) -> None:
    """NVFlare listens on all interfaces unless the target of its service is a loopback name."""
    found = [path for path in made.folder.rglob("fed_server.json") if path.parent.name == "startup"]
    assert found
    for path in found:
        for server in told(path)["servers"]:
            assert server["service"]["target"] == "localhost:9000"
