"""What is submitted to NVFlare: a folder with the names of our components and their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcircuits.engines.nvflare.kits import CONTROLLER, EXECUTOR, write_json

POLL = 0.1  # seconds between the questions for work of an idle site
GONE = 3.0  # seconds from the server's notice that a site is gone until its task is given up


def write_job(
    folder: Path,
    program: str,
    arguments: Mapping[str, Any],
    sites: Mapping[str, str],
    settings: Mapping[str, Mapping[str, Any]],
) -> Path:
    """Write the folder of a job for NVFlare.

    Args:
        folder: to write in.
        program: what the controller runs.
        arguments: of the program.
        sites: the site of each client.
        settings: what each client is sent about the run.
    """
    from fedcircuits.engines.nvflare.flare import END, TASK, packed

    apps = {"server": ["server"], **{f"app-{site}": [site] for site in sites.values()}}
    meta = {"name": "fedcircuits", "resource_spec": {}, "min_clients": 1, "deploy_map": apps}
    folder.mkdir(parents=True)
    write_json(folder / "meta.json", meta)
    controller = {
        "id": "federation",
        "path": CONTROLLER,
        "args": {
            "program": program,
            "arguments": packed(dict(arguments)),
            "sites": packed(dict(sites)),
        },
    }
    filters: dict[str, Any] = {"task_data_filters": [], "task_result_filters": [], "components": []}
    server = {
        "format_version": 2,
        "workflows": [controller],
        "server": {"task_request_interval": POLL},
        "dead_client_grace_period": GONE,
        "dead_client_check_lead_time": GONE,
        **filters,
    }
    _write(folder / "server" / "config" / "config_fed_server.json", server)
    for client, site in sites.items():
        arguments = {"settings": packed(dict(settings.get(client, {})))}
        executor = {"tasks": [TASK, END], "executor": {"path": EXECUTOR, "args": arguments}}
        config = {
            "format_version": 2,
            "executors": [executor],
            "default_task_fetch_interval": POLL,
            **filters,
        }
        _write(folder / f"app-{site}" / "config" / "config_fed_client.json", config)
    return folder


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True)
    write_json(path, value)
