"""All that touches NVFlare: its controller, its executor, its kits and its sessions.

The controller runs one of our programs with a way to reach the clients; the executor hands parcels
to a client. Neither knows what is in a parcel. Which client a site runs is said by a file of the
site itself, never by the job, so a coordinator sends settings and no code.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import io
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedcircuits.engines.nvflare.site_file import SITE_FILE
from fedcircuits.engines.replay import Keeper
from fedcircuits.errors import ClientError, FederationError, MissingExtraError

try:
    from nvflare.apis.controller_spec import ClientTask, Task
    from nvflare.apis.executor import Executor
    from nvflare.apis.fl_constant import FLContextKey, ReturnCode
    from nvflare.apis.impl.controller import Controller
    from nvflare.apis.shareable import Shareable, make_reply
except ImportError:
    raise MissingExtraError("engine='nvflare'", "nvflare") from None

TASK, END, PARCEL = "parcel", "end", "parcel"
LONGEST = 24 * 3600.0  # seconds a task may take where nobody said otherwise
ALONE = 60.0  # seconds without a connection to the server after which a site's part ends
FAREWELL = 3.0  # seconds that sites have to end their part of a job
LOOPBACK = ("localhost", "127.0.0.1")
log = logging.getLogger(__name__)


def packed(value: object) -> str:
    """Return a JSON value as text that NVFlare's configuration leaves as it is."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def unpacked(word: str) -> Any:
    """Return the value that `packed` encoded."""
    return json.loads(base64.urlsafe_b64decode(word))


def named(name: str) -> Any:
    """Return the function that "module:function" names."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def end_when_alone(server: str | None = None) -> None:
    """End this process when the one that started it ends, whatever it is doing.

    Args:
        server: "host:port" that a site's part of a job has a connection to; without one for some
            time it ends too, because the job is over or its server is gone.
    """
    import psutil  # type: ignore[import-untyped]

    parent = os.getppid()
    port = None if server is None else int(server.rpartition(":")[2])

    def connected() -> bool:
        found = psutil.Process().net_connections(kind="tcp")
        return any(c.raddr and c.raddr.port == port and c.status == "ESTABLISHED" for c in found)

    def watch() -> None:
        last = time.monotonic()
        while os.getppid() == parent and time.monotonic() - last < ALONE:
            time.sleep(0.5)
            if port is None or connected():
                last = time.monotonic()
        os._exit(1)

    threading.Thread(target=watch, name="fedcircuits-alone", daemon=True).start()


# --- at a site ------------------------------------------------------------------------------------


class SiloExecutor(Executor):  # type: ignore[misc]
    """Answers parcels with the client that this site's own file describes.

    Args:
        settings: what the coordinator says about the run (learner, kinds, ...), packed.
    """

    def __init__(self, settings: str = "") -> None:
        super().__init__()
        self._settings = unpacked(settings) if settings else {}
        self._keeper: Keeper | None = None

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """Return the client's reply to a parcel."""
        del abort_signal  # a client is not interrupted; whoever asked has stopped waiting
        if task_name == END:  # NVFlare itself takes ten seconds for it
            threading.Timer(0.5, os._exit, [0]).start()
            return make_reply(ReturnCode.OK)
        if task_name != TASK or not isinstance(shareable.get(PARCEL), bytes):
            return make_reply(ReturnCode.TASK_UNKNOWN)
        reply = Shareable()
        try:
            if self._keeper is None:
                workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
                end_when_alone(_server_of(Path(workspace.get_startup_kit_dir())))
                self._keeper = self._make(Path(workspace.get_site_config_dir()))
            reply[PARCEL] = self._keeper.answer(shareable[PARCEL])
        except Exception as error:  # a table that cannot be read, say
            log.exception("the client of this site cannot be made")
            reply["error"] = f"{type(error).__name__}: {error}"
        return reply

    def _make(self, folder: Path) -> Keeper:
        site = json.loads((folder / SITE_FILE).read_text(encoding="utf-8"))
        made: Keeper = named(site["client"])(folder, site, self._settings)
        return made


def _server_of(startup: Path) -> str:
    settings = json.loads((startup / "fed_client.json").read_text(encoding="utf-8"))
    return str(settings["servers"][0]["service"]["target"])


# --- at the server --------------------------------------------------------------------------------


class FederationController(Controller):  # type: ignore[misc]
    """Runs a program of ours with the sites at hand.

    Args:
        program: "module:function", a function of this package that takes (carrier, arguments).
        arguments: of the program, packed.
        sites: the site of each client, packed.
    """

    def __init__(self, program: str, arguments: str, sites: str) -> None:
        super().__init__()
        if not program.startswith("fedcircuits."):
            raise FederationError(f"{program!r} is no program of fedcircuits")
        self._program, self._arguments = program, unpacked(arguments)
        self._sites: dict[str, str] = unpacked(sites)

    def start_controller(self, fl_ctx: Any) -> None:
        """Do nothing: there is nothing to prepare."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Do nothing: there is nothing to release."""

    def process_result_of_unknown_task(self, *_: Any, **__: Any) -> None:
        """Discard the late reply of a slow client."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run the program; its exception ends the job as failed."""
        end_when_alone()
        workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        folder = Path(workspace.get_run_dir(fl_ctx.get_job_id()))
        carrier = Carrier(self, fl_ctx, abort_signal, self._sites, folder)
        try:
            named(self._program)(carrier, self._arguments)
        except Exception as error:
            log.exception("the program of this job failed")
            self.system_panic(f"{type(error).__name__}: {error}", fl_ctx)


class Carrier:
    """Carries parcels from the controller to the sites and back.

    Attributes:
        folder: of the job at the server; what is in it can be fetched when the job is over.
    """

    def __init__(
        self,
        controller: FederationController,
        fl_ctx: Any,
        abort_signal: Any,
        sites: dict[str, str],
        folder: Path,
    ) -> None:
        self._controller, self._context, self._abort = controller, fl_ctx, abort_signal
        self._sites = sites
        self.folder = folder

    def members(self) -> list[str]:
        """Return the names of the clients, sorted."""
        return sorted(self._sites)

    @property
    def stopped(self) -> bool:
        """Whether the job was aborted."""
        return bool(self._abort.triggered)

    def send(
        self,
        parcels: Mapping[str, bytes],
        timeout: float | None = None,
        received: Callable[[str, bytes | Exception], None] | None = None,
        give_up: Callable[[], bool] = lambda: False,
    ) -> dict[str, bytes | Exception]:
        """One task for each client, all at once; each reply, or what went wrong.

        Args:
            parcels: by client.
            timeout: seconds for all of them.
            received: called with each reply as it comes.
            give_up: asked again and again; a yes ends the waiting.
        """
        answers: dict[str, bytes | Exception] = {}
        waiting: dict[str, _Errand] = {}

        def note(name: str, answer: bytes | Exception) -> None:
            answers[name] = answer
            waiting.pop(name, None)
            if received is not None:
                received(name, answer)

        for name in sorted(parcels):
            if name in self._sites:
                waiting[name] = self._errand(name, TASK, parcels[name], timeout)
            else:
                note(name, ClientError(name, "is no member of this federation"))
        deadline = time.monotonic() + (LONGEST if timeout is None else timeout)
        while waiting and time.monotonic() < deadline and not (self.stopped or give_up()):
            for name, errand in list(waiting.items()):
                if errand.is_over(0.02 / len(waiting)):
                    note(name, errand.answer(name))
        for name, errand in list(waiting.items()):
            self._controller.cancel_task(errand.task)
            why = "the job was stopped" if self.stopped else f"no answer within {timeout} s"
            note(name, ClientError(name, why))
        return {name: answers[name] for name in sorted(answers)}

    def _errand(self, name: str, kind: str, parcel: bytes, timeout: float | None) -> _Errand:
        errand = _Errand(kind, parcel, timeout)
        self._controller.send(errand.task, self._context, targets=[self._sites[name]])
        return errand

    def end(self) -> None:
        """Have the sites end their part of the job, before the job itself ends."""
        errands = [self._errand(name, END, b"", FAREWELL) for name in self.members()]
        deadline = time.monotonic() + FAREWELL
        for errand in errands:
            errand.is_over(max(0.0, deadline - time.monotonic()))


class _Errand:
    """One task that was sent to one site."""

    def __init__(self, kind: str, parcel: bytes, timeout: float | None) -> None:
        data = Shareable()
        data[PARCEL] = parcel
        self._result: Any = None
        self._done = threading.Event()
        # Ours is the timeout that counts; NVFlare's, in whole seconds, comes after it.
        seconds = int(LONGEST if timeout is None else timeout) + 2
        self.task = Task(kind, data, timeout=seconds, result_received_cb=self._received)

    def _received(self, client_task: ClientTask, **_: Any) -> None:
        self._result, client_task.result = client_task.result, None
        self._done.set()

    def is_over(self, patience: float) -> bool:
        """Whether the task is done, or never will be."""
        return self._done.wait(patience) or self.task.completion_status is not None

    def answer(self, name: str) -> bytes | Exception:
        """Return the reply, or what went wrong."""
        if not self._done.is_set():
            status = getattr(self.task.completion_status, "name", "unknown").lower()
            return ClientError(name, f"its site is gone (NVFlare says {status})")
        if self._result.get_return_code() != ReturnCode.OK:
            return ClientError(name, f"its site says {self._result.get_return_code()}")
        if "error" in self._result:
            return ClientError(name, str(self._result["error"]))
        parcel = self._result.get(PARCEL)
        if not isinstance(parcel, bytes):
            return ClientError(name, "a reply that cannot be read: no parcel in it")
        return parcel


# --- kits and sessions ----------------------------------------------------------------------------


def make_kits(folder: Path, host: str, port: int, sites: list[str], admin: str) -> Path:
    """Certificates and start-up files for a server, an administrator and sites; where they are."""
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project = Project("fedcircuits", "", props={"api_version": 3})
    org = "fedcircuits"
    props = {"fed_learn_port": port, "admin_port": port, "default_host": host, "host_names": [host]}
    project.set_server("server", org, props)
    for site in sites:
        project.add_client(site, org, {"allow_log_streaming": False})
    project.add_admin(admin, org, {"role": "lead"})
    builders = [
        WorkspaceBuilder(["master_template.yml"]),
        StaticFileBuilder(config_folder="config", scheme="grpc"),
        CertBuilder(),
    ]
    made = Provisioner(str(folder), builders).provision(project, logger=log)
    if made.get(CtxKey.BUILD_ERROR):
        raise FederationError(f"start-up kits cannot be made: {'; '.join(made.get_errors())}")
    kits = Path(made[CtxKey.CURRENT_PROD_DIR])
    if host in LOOPBACK:
        _listen_on(kits / "server" / "startup" / "fed_server.json", f"{host}:{port}")
    return kits


def _listen_on(file: Path, target: str) -> None:
    """Have a server listen at an address of this machine alone; else it is all interfaces."""
    settings = json.loads(file.read_text())
    for server in settings["servers"]:
        server["service"]["target"] = target
    file.write_text(json.dumps(settings, indent=2))


@contextlib.contextmanager
def session(kit: Path, admin: str, timeout: float) -> Iterator[Any]:
    """Open a session of the administrator; closed at the end of the block."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it is doing
        opened = new_secure_session(admin, str(kit), timeout=timeout)
    try:
        yield opened
    finally:
        opened.close()
