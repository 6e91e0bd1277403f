"""The engine "ray": clients as actors of a Ray cluster.

Ray starts and restarts processes and moves bytes between machines. A restarted actor makes its
client anew from its spec and is sent the earlier requests again (`replay`), so a killed process or
node costs time and changes no model.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from fedcircuits.engines.closing import Closing
from fedcircuits.engines.ray import cluster
from fedcircuits.engines.ray.cluster import LostError, PathLike, Place, Ref, Seat
from fedcircuits.engines.replay import Answers, Replay
from fedcircuits.errors import ClientError, FederationError

Progress = Callable[[float, str], None]  # part that is done of the current request, and words
Amount = float | Mapping[str, float] | None
PAUSE = 0.1  # seconds before an actor that was just lost is called again
BEAT = 0.5  # seconds between looks at what is waited for


class RayEngine(Closing):
    """Clients as actors of a Ray cluster.

    Args:
        specs: the encoded spec of each client, by name.
        make: "module:function" that makes a client of such a spec, in the actor.
        address: of a running cluster ("host:port", or "auto" for the one of this machine); None for
            the one this process is connected to, else for one on this machine alone that is
            started now and stopped in the end.
        num_cpus: CPUs kept for each client, or by client name; by default none are kept, and
            clients are spread over the nodes.
        num_gpus: the same for GPUs; with .25, four clients share one.
        resources: further resources of clients by name, such as {"bank": {"bank-data": 1}}: that
            client runs on a node that was started with them.
        clients_per_process: clients that share an actor, and so a process; by default each has its
            own. Hundreds of small clients of one owner want fewer processes than there are clients.
        max_restarts: how often a client that dies is started again.
        start_timeout: seconds for a client to find a place and read its table.
        token: file with the token of the cluster, for clusters that ask for one.
        tls: folder with `ca.crt`, `node.crt` and `node.key` (`certificates` makes such), for
            clusters that encrypt.
        folder: where replies are kept, so that a run that was killed goes on from there.
        progress: called with the part of the clients that have answered and what was asked.
        rows: references to objects of the cluster, for clients whose spec has no rows.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = (
        "address", "num_cpus", "num_gpus", "resources", "clients_per_process", "max_restarts",
        "start_timeout", "token", "tls", "folder", "progress",
    )  # fmt: skip

    def __init__(
        self,
        specs: Mapping[str, bytes],
        make: str,
        address: str | None = None,
        num_cpus: Amount = None,
        num_gpus: Amount = None,
        resources: Mapping[str, Mapping[str, float]] | None = None,
        clients_per_process: int = 1,
        max_restarts: int = 3,
        start_timeout: float = 300.0,
        token: PathLike | None = None,
        tls: PathLike | None = None,
        folder: PathLike | None = None,
        progress: Progress | None = None,
        rows: Mapping[str, Any] | None = None,
    ) -> None:
        self.replay = Replay(None if folder is None else Answers(Path(folder)))
        self._start_timeout = start_timeout
        self._progress = progress
        self._seats: dict[str, Seat] = {}
        self._places: dict[str, Place] = {}
        self._held: dict[str, tuple[Any, Any]] = {}  # what a restarted client is made of
        self._show(0.0, "connecting to Ray")
        ours = cluster.CONNECTION.open(address, token, tls)
        # Also runs when the engine is forgotten or Python ends.
        self._finalizer = weakref.finalize(self, cluster.leave, self._seats, ours)
        try:
            for name in sorted(specs):
                self._held[name] = (cluster.put(specs[name]), (rows or {}).get(name))
            wants = {n: _wants(n, num_cpus, num_gpus, resources) for n in sorted(specs)}
            for names in _groups(wants, clients_per_process):
                held = {name: self._held[name] for name in names}
                identities = [_identity(specs[name], self._held[name][1]) for name in names]
                self._seats |= cluster.start_members(
                    make, held, identities, max_restarts, wants[names[0]]
                )
            self._wait_for_clients()
        except BaseException:
            self.close()
            raise

    def _wait_for_clients(self) -> None:
        """Wait until every client is made."""
        waiting = {seat.start(): name for name, seat in self._seats.items()}
        deadline = time.monotonic() + self._start_timeout
        while waiting:
            self._show(1 - len(waiting) / len(self._seats), "starting clients")
            ready = cluster.first_ready(waiting, BEAT)
            if not ready and time.monotonic() > deadline:
                first, *others = sorted(waiting.values())
                too = f" (nor were {', '.join(map(repr, others))})" if others else ""
                why = f"not started within {self._start_timeout} s{too}"
                raise ClientError(first, f"{why}; {cluster.resources()}")
            for ref in ready:
                name = waiting.pop(ref)
                try:
                    self._places[name] = cluster.fetch(name, ref)
                except LostError:  # while it read its table
                    waiting[self._seats[name].start()] = name

    @staticmethod
    def is_there(data: object) -> bool:
        """Whether rows are an object of the cluster, which only its actors read."""
        return cluster.is_reference(data)

    def members(self) -> list[str]:
        """Return the names of the clients, sorted, also of those that have ended."""
        return sorted(self._seats)

    def place(self, client: str) -> Place:
        """Return where a client runs, as of its last known start."""
        return self._places[client]

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        """Send all payloads at once and return each client's reply, or what went wrong."""
        if not self._finalizer.alive:
            raise FederationError("the engine is closed: its clients are gone")
        answers: dict[str, bytes | Exception] = {
            name: ClientError(name, "is not a client of this engine")
            for name in payloads
            if name not in self._seats
        }
        known = {name: data for name, data in payloads.items() if name not in answers}

        def send(parcels: Mapping[str, bytes], left: float | None) -> dict[str, bytes | Exception]:
            found = self._exchange(verb, parcels, left)
            why = f"no answer to {verb!r} within {timeout} s"
            return {name: found.get(name, ClientError(name, why)) for name in parcels}

        answers |= self.replay.call(send, verb, known, timeout)
        return {name: answers[name] for name in sorted(answers)}

    def _exchange(
        self, verb: str, parcels: Mapping[str, bytes], timeout: float | None
    ) -> dict[str, bytes | Exception]:
        """Send parcels and return replies, also of restarted clients; late ones are left out."""
        answers: dict[str, bytes | Exception] = {}
        sent = dict(parcels)
        asked = {self._seats[name].answer(data): name for name, data in sent.items()}
        coming: dict[Ref, str] = {}  # actors that are started again ...
        due: dict[str, float] = {}  # ... and when they must be there
        deadline = None if timeout is None else time.monotonic() + timeout

        def show() -> None:
            self._show(
                len(answers) / len(parcels),
                f"{verb}: {len(answers)} of {len(parcels)} clients have answered"
                + "".join(f", {name!r} is started again" for name in sorted(coming.values())),
            )

        while asked or coming:
            show()
            left = BEAT if deadline is None else min(BEAT, deadline - time.monotonic())
            if left <= 0:
                break
            for ref in cluster.first_ready([*asked, *coming], left):
                is_back = ref in coming
                name = coming.pop(ref) if is_back else asked.pop(ref)
                try:
                    found = cluster.fetch(name, ref)
                    if is_back:
                        self._places[name] = found
                    else:
                        again = self.replay.catch_up(name, found)
                        if again is None:
                            self.replay.received(name, found)
                            answers[name] = found
                            show()
                            continue
                        sent[name] = again
                    asked[self._seats[name].answer(sent[name])] = name
                except LostError:
                    time.sleep(PAUSE)
                    due.setdefault(name, time.monotonic() + self._start_timeout)
                    coming[self._seats[name].start()] = name
                except ClientError as error:
                    answers[name] = error
            for ref, name in list(coming.items()):
                if time.monotonic() > due[name]:
                    why = f"it has ended and was not back within {self._start_timeout} s"
                    answers[name] = ClientError(name, f"{why}; {cluster.resources()}")
                    del coming[ref]
        return answers

    def _show(self, part: float, words: str) -> None:
        if self._progress is not None:
            self._progress(part, words)

    def close(self) -> None:
        """Release the clients and stop the cluster if it was started here; may be called again."""
        self._finalizer()


def _groups(wants: Mapping[str, object], size: int) -> list[list[str]]:
    """Return the clients by actor: those that ask for the same, at most so many together.

    Neighbours by name get different actors: the server may ask some of them before the others.
    """
    if type(size) is not int or size < 1:
        raise FederationError(f"clients_per_process is a whole number from 1 on, found {size!r}")
    alike: list[list[str]] = []
    for name, asked in wants.items():
        mine = next((names for names in alike if wants[names[0]] == asked), None)
        if mine is None:
            alike.append(mine := [])
        mine.append(name)
    groups: list[list[str]] = []
    for names in alike:
        n_actors = -(-len(names) // size)
        groups += [names[at::n_actors] for at in range(n_actors)]
    return groups


def _wants(
    name: str,
    num_cpus: Amount,
    num_gpus: Amount,
    resources: Mapping[str, Mapping[str, float]] | None,
) -> dict[str, Any]:
    """Return the resources that a client's actor asks of a node."""
    found = {
        "num_cpus": num_cpus.get(name) if isinstance(num_cpus, Mapping) else num_cpus,
        "num_gpus": num_gpus.get(name) if isinstance(num_gpus, Mapping) else num_gpus,
        "resources": dict((resources or {}).get(name, {})) or None,
    }
    wants: dict[str, Any] = {kind: amount for kind, amount in found.items() if amount is not None}
    if wants:
        wants.setdefault("num_cpus", 0)  # else Ray keeps one where another resource is named
    return wants


def _identity(record: bytes, rows: Any) -> str:
    """Return a digest of a client's data and settings."""
    there = b"" if rows is None else rows.binary()
    return hashlib.sha256(record + there).hexdigest()
