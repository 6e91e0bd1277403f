"""Start-up kits: certificates, and what a site lets the other side do.

A folder of kits holds `coordinator/` (server, administrator and the authority's key) and one folder
for each party. A party's kit says that only our executor runs there: a job may bring no code of its
own, and nobody may list or read the party's files through the engine.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcircuits.engines.nvflare.site_file import PARTY_FILE
from fedcircuits.errors import FederationError

ADMIN = "coordinator@fedcircuits.org"  # a name in a certificate; nothing is sent there
COORDINATOR = "coordinator"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # how NVFlare names a job
TAKEN = ("server", COORDINATOR, "authority", "admin")
EXECUTOR = "fedcircuits.engines.nvflare.flare.SiloExecutor"
CONTROLLER = "fedcircuits.engines.nvflare.flare.FederationController"
# What the one role there is may do. "none" for the commands that reach into a site.
RIGHTS = {
    "submit_job": "any",
    "clone_job": "none",
    "manage_job": "any",
    "download_job": "any",
    "view": "any",
    "operate": "none",
    "shell_commands": "none",
    "byoc": "none",
    "server-predeployed-flwr": "none",
}
SILENT_AFTER = 30  # seconds without a sign of life after which the server counts a site as gone


@dataclass(frozen=True)
class Kits:
    """The folders of the kits of one federation.

    Attributes:
        folder: of all of them.
    """

    folder: Path

    @property
    def server(self) -> Path:
        """The kit of the server."""
        return self.folder / COORDINATOR / "server"

    @property
    def admin(self) -> Path:
        """The kit of whoever submits jobs."""
        return self.folder / COORDINATOR / "admin"

    def site(self, party: str) -> Path:
        """The kit of a party."""
        return self.folder / party


def provision(folder: Path, host: str, port: int, parties: Sequence[str]) -> Kits:
    """Make kits for new parties; existing kits and the authority stay as they are.

    Args:
        folder: of the kits.
        host: name or address under which parties reach the coordinator's machine.
        port: the one port that must be open there.
        parties: their names.
    """
    from fedcircuits.engines.nvflare.flare import make_kits

    for party in parties:
        if NAME.fullmatch(party) is None or party in TAKEN:
            raise FederationError(
                f"party {party!r}: a name is letters, digits, '-' and '_', begins with a letter or "
                f"digit, and is none of {', '.join(TAKEN)}"
            )
    kits = Kits(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = folder / COORDINATOR / "authority"
    first = not authority.exists()
    if not first:
        admin = json.loads((kits.admin / "startup" / "fed_admin.json").read_text(encoding="utf-8"))
        there = f"{admin['admin']['host']}:{admin['admin']['port']}"
        if there != f"{host}:{port}":
            raise FederationError(
                f"the kits in {folder} are for a coordinator at {there}, not {host}:{port}: say so "
                "in the federation file, or make new kits for all in another folder"
            )
    authority.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = make_kits(authority, host, port, list(parties), ADMIN)
    if first:
        _place(made / "server", kits.server)
        _place(made / ADMIN, kits.admin)
        _change(kits.server, class_allow_list=[CONTROLLER])
    for party in parties:
        if not kits.site(party).exists():
            _place(made / party, kits.site(party))
            _change(kits.site(party), class_allow_list=[EXECUTOR], allow_log_streaming=False)
            settings = {"party": party, "coordinator": f"{host}:{port}"}
            write_json(kits.site(party) / "local" / PARTY_FILE, settings)
    shutil.rmtree(made)
    return kits


def _place(source: Path, to: Path) -> None:
    shutil.move(source, to)
    to.chmod(0o700)
    for key in to.glob("startup/*.key"):
        key.chmod(0o600)


def _change(kit: Path, **values: Any) -> None:
    """Write the site's own settings over the default ones."""
    settings = json.loads((kit / "local" / "resources.json.default").read_text(encoding="utf-8"))
    settings.update(values)
    # Error logs stay where they are written: a traceback may quote a cell.
    settings["components"] = [c for c in settings["components"] if c["id"] not in STREAMERS]
    write_json(kit / "local" / "resources.json", settings)
    logs = json.loads((kit / "local" / "log_config.json.default").read_text(encoding="utf-8"))
    logs["loggers"]["root"]["handlers"] = ["logFileHandler", "errorFileHandler"]
    write_json(kit / "local" / "log_config.json", logs)
    rights = {"format_version": "1.0", "permissions": {"lead": RIGHTS}}
    write_json(kit / "local" / "authorization.json", rights)


STREAMERS = ("site_log_streamer", "log_receiver")


def set_storage(server: Path) -> None:
    """Have the server keep its jobs and snapshots in its own kit."""
    path = server / "local" / "resources.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["servers"][0]["heart_beat_timeout"] = SILENT_AFTER
    storage = settings["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(server.resolve() / "snapshots")
    for component in settings["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(server.resolve() / "jobs")
    write_json(path, settings)


def forget_jobs(kit: Path) -> None:
    """Remove what NVFlare left of earlier jobs: folders with models and logs."""
    for path in kit.iterdir():
        if path.is_dir() and (path.name in ("jobs", "snapshots") or JOB.fullmatch(path.name)):
            shutil.rmtree(path, ignore_errors=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
