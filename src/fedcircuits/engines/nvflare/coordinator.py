"""Start the server of a federation and submit jobs to it."""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedcircuits.engines.nvflare.jobs import write_job
from fedcircuits.engines.nvflare.kits import ADMIN, Kits, forget_jobs, set_storage
from fedcircuits.engines.nvflare.launch import SERVER
from fedcircuits.engines.nvflare.sites import Process
from fedcircuits.errors import FederationError

Say = Callable[[str], None]
HAS_JOB, NO_JOB, AWAY = "has its part of the job", "runs no job", "gives no reply"
REPLY = 3.0  # seconds that a site has to say what it does


class Coordinator:
    """A running server.

    Args:
        kits: where the coordinator's kit is.
        start_timeout: seconds for the server to answer.
        scratch: folder that the server's process removes when it ends.
    """

    def __init__(
        self, kits: Kits, start_timeout: float = 60.0, scratch: Path | None = None
    ) -> None:
        self._kits = kits
        if not kits.server.is_dir():
            raise FederationError(
                f"{kits.folder} holds no coordinator's kit: make one with `fedcircuits provision`"
            )
        host, port = self._address
        if self._listens():
            raise FederationError(
                f"somebody listens at {host}:{port} already: is another coordinator running?"
            )
        forget_jobs(kits.server)
        set_storage(kits.server)
        self._start_timeout = start_timeout
        self.process = Process(kits.server, SERVER, scratch)

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Open a session with the server, which may still be starting."""
        from fedcircuits.engines.nvflare import flare

        deadline = time.monotonic() + self._start_timeout
        while not self._listens():  # a session opened too early waits long before it tries again
            self.check()
            if time.monotonic() > deadline:
                raise FederationError(f"no server after {self._start_timeout:.0f} s")
            time.sleep(0.2)
        with contextlib.ExitStack() as stack:
            try:
                left = max(5.0, deadline - time.monotonic())
                opened = stack.enter_context(flare.session(self._kits.admin, ADMIN, left))
            except Exception as error:  # NVFlare has many
                raise FederationError(f"the server lets nobody in: {error}") from None
            yield opened

    @property
    def _address(self) -> tuple[str, int]:
        admin = json.loads((self._kits.admin / "startup" / "fed_admin.json").read_text())["admin"]
        return str(admin["host"]), int(admin["port"])

    def _listens(self) -> bool:
        try:
            socket.create_connection(self._address, timeout=2.0).close()
        except OSError:
            return False
        return True

    def check(self) -> None:
        """Raise an error if the server has ended."""
        if self.process.ended:
            raise FederationError(f"the server has ended; it said: {self.process.last_words()}")

    def wait_for(
        self,
        session: Any,
        sites: Sequence[str],
        timeout: float,
        say: Say = lambda _: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until sites have registered; an error names those that have not."""
        deadline = time.monotonic() + timeout
        said: set[str] = set()
        while True:
            self.check()
            check()
            info = session.get_system_info().client_info
            here = {client.name for client in info}
            for site in sorted((here & set(sites)) - said):
                say(f"{site} is here")
            said |= here
            missing = sorted(set(sites) - here)
            if not missing:
                return
            if time.monotonic() > deadline:
                raise FederationError(
                    f"no sign of {', '.join(map(repr, missing))} within {timeout:.0f} s: is "
                    "`fedcircuits silo` running there, with the kit of this federation, and can it "
                    "reach the coordinator's port?"
                )
            time.sleep(0.25)

    @staticmethod
    def states(session: Any, sites: Sequence[str]) -> dict[str, str]:
        """Return the state of each site: HAS_JOB, NO_JOB, or AWAY where it gives no reply."""
        registered = {client.name for client in session.get_system_info().client_info}
        here = sorted(registered & set(sites))
        session.set_timeout(REPLY)  # of a site that is there
        reported = (session.get_client_job_status(here) if here else None) or []
        session.unset_timeout()
        found = {str(one["client_name"]): str(one["status"]) for one in reported}
        known = {"no_reply": AWAY, "no_jobs": NO_JOB}
        return {site: known.get(found.get(site, "no_reply"), HAS_JOB) for site in sites}

    def submit(
        self,
        session: Any,
        program: str,
        arguments: Mapping[str, Any],
        sites: Mapping[str, str],
        settings: Mapping[str, Mapping[str, Any]],
    ) -> str:
        """Submit a job and return its name."""
        with tempfile.TemporaryDirectory(prefix="fedcircuits-") as folder:
            job = write_job(Path(folder) / "job", program, arguments, sites, settings)
            return str(session.submit_job(str(job)))

    @staticmethod
    def status(session: Any, job: str) -> str:
        """Return the status of a job as NVFlare names it."""
        return str(session.get_job_meta(job).get("status", ""))

    def stop(self) -> None:
        """End the server; a second call does nothing."""
        self.process.stop()
