"""`engine="nvflare"`: real server and sites, on this machine or at the parties of a federation."""

from __future__ import annotations

import hashlib
import logging
import shutil
import socket
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from fedcircuits.engines.closing import Closing
from fedcircuits.engines.nvflare.channel import RELAY, Link
from fedcircuits.engines.nvflare.coordinator import AWAY, HAS_JOB, NO_JOB, Coordinator
from fedcircuits.engines.nvflare.flare import named
from fedcircuits.engines.nvflare.kits import Kits, provision, write_json
from fedcircuits.engines.nvflare.site_file import SITE_FILE, SPEC_FILE
from fedcircuits.engines.nvflare.sites import Process
from fedcircuits.engines.replay import Keeper, Replay
from fedcircuits.errors import ClientError, FederationError

log = logging.getLogger(__name__)
# While an answer is waited for, the server is asked about its sites after so many seconds, again
# and again; a site that was away so many times in a row is given up.
LOOK, MISSES = 10.0, 3
HERE = "fedcircuits.engines.nvflare.engine:client_here"


class Parties(Closing):
    """An engine whose clients are the silos of a provisioned federation.

    Args:
        kits: folder of the kits; the coordinator's is used.
        settings: what each party is sent about the run (see `cli.silo`), by name.
        start_timeout: seconds for the parties to be there and the job to start.
        sites: NVFlare's name of each party, where it is another.
        scratch: folder to work in, a new one by default; removed at the end, also after a crash.
    """

    def __init__(
        self,
        kits: Kits,
        settings: Mapping[str, Mapping[str, Any]],
        *,
        start_timeout: float = 120.0,
        sites: Mapping[str, str] | None = None,
        scratch: Path | None = None,
    ) -> None:
        self._settings = settings
        self._sites = dict(sites or {name: name for name in settings})
        self._start_timeout = start_timeout
        self._folder = scratch or Path(tempfile.mkdtemp(prefix="fedcircuits-"))
        self._processes: dict[str, Process] = {}
        self._lost: set[str] = set()  # clients whose last answer was none
        self._states: dict[str, str] = {}  # what their sites did when last looked at
        self._looked_at = 0.0
        self._misses: dict[str, int] = {}  # looks in a row that found no part of the job there
        self.replay = Replay()
        self._link = Link(self._folder / "link")
        self._coordinator: Coordinator | None = None
        # Also runs when the engine is forgotten or Python ends.
        self._finalizer = weakref.finalize(
            self, _end, self._link, self._processes, self._folder, holder := []
        )
        try:
            self._coordinator = Coordinator(kits, start_timeout, self._folder)
            holder.append(self._coordinator)
            self._start_sites()
            self._start_job()
        except BaseException:
            self.close()
            raise

    def _start_sites(self) -> None:
        """Do nothing: the parties start their own sites."""

    def _start_job(self) -> None:
        assert self._coordinator is not None
        with self._coordinator.session() as session:
            self._coordinator.wait_for(
                session, list(self._sites.values()), self._start_timeout, check=self._check_sites
            )
            self._submit(session, self._sites)

    def _submit(self, session: Any, sites: Mapping[str, str]) -> None:
        assert self._coordinator is not None
        self._link.hang_up()
        arguments = {"socket": str(self._link.path)}
        self._coordinator.submit(session, RELAY, arguments, sites, self._settings)
        self._link.wait(self._start_timeout, self._coordinator.check)
        self._lost.clear()

    def _check_sites(self) -> None:
        for name, process in self._processes.items():
            if process.ended:
                raise ClientError(name, f"its site has ended; it said: {process.last_words()}")

    def members(self) -> list[str]:
        """Return the names of the clients, sorted, also of those that are away."""
        return sorted(self._sites)

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        """Send all payloads at once and return each client's reply, or what went wrong."""
        if not self._finalizer.alive:
            raise FederationError("the engine is closed: its clients are gone")
        if not self._link.is_up or self._lost & payloads.keys():
            self._mend()
        self._looked_at = time.monotonic()
        return self.replay.call(self._send, verb, payloads, timeout)

    def _send(
        self, parcels: Mapping[str, bytes], timeout: float | None
    ) -> dict[str, bytes | Exception]:
        answers = self._link.send(parcels, timeout, self._gone)
        self._lost |= {name for name, a in answers.items() if isinstance(a, ClientError)}
        return answers

    def _gone(self, name: str) -> str | None:
        """Return why a client will not reply, as far as is known; called while waiting for it.

        NVFlare does not report that a site has ended or was started again without its job, so its
        server is asked from time to time.
        """
        process = self._processes.get(name)
        if process is not None and process.ended:
            return "its site has ended"
        if time.monotonic() - self._looked_at > LOOK:
            self._look()
        enough = 1 if name in self._lost else MISSES  # a short break in a network is no loss
        return f"its site {self._states[name]}" if self._misses.get(name, 0) >= enough else None

    def _look(self) -> None:
        assert self._coordinator is not None
        self._looked_at = time.monotonic()
        try:
            with self._coordinator.session() as session:
                found = self._coordinator.states(session, list(self._sites.values()))
        except FederationError:
            raise
        except Exception as error:  # NVFlare has many; the next look may be luckier
            log.warning("the server was asked about its sites in vain: %s", error)
            return
        self._states = {name: found[site] for name, site in self._sites.items()}
        self._misses = {
            name: 0 if state == HAS_JOB else self._misses.get(name, 0) + 1
            for name, state in self._states.items()
        }

    def _mend(self) -> None:
        """Start the job anew where a site came back without it: a job does not grow by itself."""
        self._look()
        came_back = [name for name in self._lost if self._states.get(name) == NO_JOB]
        if self._link.is_up and not came_back:
            return
        assert self._coordinator is not None
        here = {name: site for name, site in self._sites.items() if self._states.get(name) != AWAY}
        with self._coordinator.session() as session:
            self._submit(session, here)
        self._states = {name: HAS_JOB if name in here else AWAY for name in self._sites}
        self._lost = set(self._sites) - set(here)
        self._misses = {name: int(name in self._lost) for name in self._sites}

    def close(self) -> None:
        """End the job, the server and the sites started here; a second call does nothing."""
        self._finalizer()


class NvflareEngine(Parties):
    """A whole federation on this machine, for trying it out: kits, server and sites as processes.

    Attributes:
        folder: of the kits; removed at the end.

    Args:
        specs: the encoded spec of each client, by name.
        make: "module:function" that makes a client of such a spec, at its site.
        start_timeout: seconds for all of it to start.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ("start_timeout",)

    def __init__(self, specs: Mapping[str, bytes], make: str, start_timeout: float = 180.0) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fedcircuits-"))
        sites = {name: f"site-{at}" for at, name in enumerate(sorted(specs), 1)}
        try:
            self._kits = provision(self.folder, "localhost", free_port(), list(sites.values()))
            for name, site in sites.items():
                local = self._kits.site(site) / "local"
                (local / SPEC_FILE).write_bytes(specs[name])
                write_json(local / SITE_FILE, {"client": HERE, "make": make})
            super().__init__(
                self._kits, {}, start_timeout=start_timeout, sites=sites, scratch=self.folder
            )
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _start_sites(self) -> None:
        for name in self._sites:
            self.start_site(name)

    def start_site(self, client: str) -> None:
        """Start the site of a client, again where its process has ended, and wait for it."""
        site = self._sites[client]
        self._processes[client] = Process(self._kits.site(site), site)
        deadline = time.monotonic() + self._start_timeout
        while self._link.is_up:  # else it is started with all the others
            self._look()
            if self._states.get(client) == NO_JOB:
                self._lost.add(client)
                return
            if self._processes[client].ended or time.monotonic() > deadline:
                said = self._processes[client].last_words()
                raise ClientError(client, f"its site does not come back; it said: {said}")
            time.sleep(0.5)

    def process_id(self, client: str) -> int:
        """Return the id of the process of a client's site."""
        return self._processes[client].pid

    @property
    def server_id(self) -> int:
        """The id of the server's process."""
        assert self._coordinator is not None
        return self._coordinator.process.pid


def client_here(folder: Path, site: Mapping[str, Any], settings: Mapping[str, Any]) -> Keeper:
    """Return the client whose encoded spec lies in the site's own folder."""
    del settings
    spec = (folder / SPEC_FILE).read_bytes()
    return Keeper(lambda: named(site["make"])(spec), hashlib.sha256(spec).hexdigest())


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _end(
    link: Link, processes: Mapping[str, Process], folder: Path, holder: list[Coordinator]
) -> None:
    link.close()
    for process in processes.values():
        process.stop()
    for coordinator in holder:
        coordinator.stop()
    shutil.rmtree(folder, ignore_errors=True)
