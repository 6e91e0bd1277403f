"""All calls of Ray: the connection of this process, the actors, and their replies."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import ray as _ray

from fedcircuits.engines.ray.settings import (
    Environment,
    check_address,
    private_folder,
    remove_folder,
    variables,
)
from fedcircuits.engines.replay import Keeper
from fedcircuits.engines.worker import ERROR, OK
from fedcircuits.errors import ClientError, FederationError

ray: Any = _ray  # its types come and go with its versions
Ref = Any  # what a call to an actor gives at once, and later its reply
PathLike = str | os.PathLike[str]
LONGEST_REASON = 200


@dataclass(frozen=True)
class Place:
    """Where a client runs.

    Attributes:
        node: Ray's name of the machine's node.
        address: of the machine.
        process: number of the process there.
        gpus: numbers of the GPUs it may use, whole or in part.
    """

    node: str
    address: str
    process: int
    gpus: tuple[str, ...]


class LostError(Exception):
    """An actor ended during a request; Ray starts it again."""


# --- actors ---------------------------------------------------------------------------------------


class Members:
    """The actor that holds one client or several; a restart runs its constructor again alone.

    Args:
        make: "module:function" that makes a client.
        names: of the clients.
        identities: a name for the data and settings of each.
        parts: for each the encoded spec and its rows, None where the spec has them.
    """

    def __init__(
        self, make: str, names: Sequence[str], identities: Sequence[str], *parts: Any
    ) -> None:
        self._make = make
        self._identities = dict(zip(names, identities, strict=True))
        self._parts = dict(zip(names, zip(parts[::2], parts[1::2], strict=True), strict=True))
        self._keepers: dict[str, Keeper] = {}

    def start(self, name: str) -> tuple[str, Any]:
        """Make a client; return its place, or the error."""
        try:
            self._kept(name)
        except Exception as error:  # whatever a table or learner raises belongs to the caller
            return ERROR, f"{type(error).__name__}: {error}"
        context = ray.get_runtime_context()
        gpus = tuple(str(gpu) for gpu in context.get_accelerator_ids().get("GPU", []))
        address = ray.util.get_node_ip_address()
        return OK, Place(context.get_node_id(), address, os.getpid(), gpus)

    def answer(self, name: str, parcel: bytes) -> tuple[str, Any]:
        """Return a client's reply, or the error."""
        try:
            return OK, self._kept(name).answer(parcel)
        except Exception as error:  # it cannot be made again: its file is gone, say
            return ERROR, f"{type(error).__name__}: {error}"

    def _kept(self, name: str) -> Keeper:
        if name not in self._keepers:
            module, _, function = self._make.partition(":")
            make = getattr(importlib.import_module(module), function)
            record, there = self._parts[name]
            rows = () if there is None else (_as_frame(there),)
            self._keepers[name] = Keeper(lambda: make(record, *rows), self._identities[name])
        return self._keepers[name]


@dataclass(frozen=True)
class Seat:
    """A client in an actor.

    Attributes:
        actor: that holds it.
        name: of the client.
    """

    actor: Any
    name: str

    def start(self) -> Ref:
        """Have the client made, if it is not."""
        return self.actor.start.remote(self.name)

    def answer(self, parcel: bytes) -> Ref:
        """Have the client answer."""
        return self.actor.answer.remote(self.name, parcel)


def _as_frame(rows: Any) -> pd.DataFrame:
    """Return the rows of an object of the cluster: a DataFrame, or an Arrow table."""
    if hasattr(rows, "to_pandas"):
        rows = rows.to_pandas()
    if not isinstance(rows, pd.DataFrame):
        raise FederationError(
            "the object of the cluster must be a DataFrame or an Arrow table, found "
            f"{type(rows).__name__}"
        )
    return rows


def put(data: object) -> Ref:
    """Store an object in the cluster; it stays as long as its reference is held."""
    return ray.put(data)


def start_members(
    make: str,
    held: Mapping[str, tuple[Ref, Any]],
    identities: Sequence[str],
    max_restarts: int,
    wants: dict[str, Any],
) -> dict[str, Seat]:
    """Start an actor with some clients in it; actors are spread over the nodes.

    A restart reads records and rows again: the caller must hold their references till then.

    Args:
        make: "module:function" that makes a client.
        held: record and rows of each client.
        identities: a name for the data and settings of each.
        max_restarts: how often the actor is started again.
        wants: resources that it asks for.
    """
    options = {"max_restarts": max_restarts, "scheduling_strategy": "SPREAD", **wants}
    parts = [part for pair in held.values() for part in pair]
    actor = ray.remote(Members).options(**options).remote(make, [*held], [*identities], *parts)
    return {name: Seat(actor, name) for name in held}


def is_reference(data: object) -> bool:
    """Whether this is a reference to an object of the cluster."""
    return isinstance(data, ray.ObjectRef)


def first_ready(refs: Iterable[Ref], timeout: float) -> list[Ref]:
    """Return the replies that are ready as soon as one is, or none within the timeout."""
    waiting = list(refs)
    ready: list[Ref] = ray.wait(waiting, timeout=timeout)[0]
    if ready:  # of hundreds of clients many are ready at the same time
        ready = ray.wait(waiting, num_returns=len(waiting), timeout=0)[0] or ready
    return ready


def fetch(name: str, ref: Ref) -> Any:
    """Return the reply of a client's actor; a `ClientError` where it has ended or failed."""
    try:
        status, found = ray.get(ref)
    except ray.exceptions.ActorUnavailableError:
        raise LostError from None
    except ray.exceptions.ActorDiedError as error:
        raise ClientError(
            name, f"its process has ended and is not started again{_reason(error)}"
        ) from None
    except ray.exceptions.RayError as error:
        raise ClientError(name, f"{type(error).__name__}: {_first_line(error)}") from None
    if status == ERROR:
        raise ClientError(name, found)
    return found


def _reason(error: Exception) -> str:
    """Return why an actor ended, as far as Ray says so."""
    for line in str(error).splitlines():
        if " because " in line:
            return f" ({line.strip()[:LONGEST_REASON]})"
    return ""


def resources() -> str:
    """Return the cluster's resources and the free ones, as text."""
    return f"the cluster has {_words(ray.cluster_resources())}; free are " + _words(
        ray.available_resources()
    )


def _words(amounts: Mapping[str, float]) -> str:
    kept = {k: v for k, v in amounts.items() if not k.startswith("node:") and "memory" not in k}
    return ", ".join(f"{name} {kept[name]:g}" for name in sorted(kept)) or "nothing"


# --- the connection -------------------------------------------------------------------------------


class _Connection:
    """The connection of this process to a cluster, shared by all its engines."""

    def __init__(self) -> None:
        self._users = 0
        self._environment = Environment()
        self._folder: Path | None = None
        self._lock = threading.Lock()

    def open(self, address: str | None, token: PathLike | None, tls: PathLike | None) -> bool:
        """Connect unless connected; return whether this connection is ours to end."""
        with self._lock:
            address = address or os.environ.get("RAY_ADDRESS")
            if not ray.is_initialized():
                self._begin(address, token, tls)
            else:
                here = ray.get_runtime_context().gcs_address
                if address not in (None, "auto", here):
                    raise FederationError(
                        f"this process is connected to the Ray cluster at {here} and cannot use "
                        f"{address!r} too: close the other engine, or call ray.shutdown()"
                    )
                if not self._users:
                    return False  # somebody else's connection
            self._users += 1
            return True

    def _begin(self, address: str | None, token: PathLike | None, tls: PathLike | None) -> None:
        local = address is None or address == "local"
        self._environment.set(variables(local, token, tls))
        how: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        try:
            _read_environment()
            if local:
                self._folder = private_folder()
                how |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
                ray.init("local", _temp_dir=str(self._folder), **how)
            else:
                check_address(str(address))
                ray.init(address, **how)
        except BaseException as error:
            self._finish()
            known = (ray.exceptions.RayError, OSError, RuntimeError, ValueError)
            if isinstance(error, FederationError) or not isinstance(error, known):
                raise
            raise FederationError(_why_not(None if local else address, error)) from error

    def close(self) -> None:
        """Count one engine fewer; with the last one, disconnect and stop a cluster of ours."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._finish()

    def _finish(self) -> None:
        with contextlib.suppress(Exception):  # a cluster that is gone cannot be left in order
            ray.shutdown()
        self._environment.restore()
        _read_environment()
        if self._folder is not None:
            remove_folder(self._folder)
            self._folder = None


CONNECTION = _Connection()


def leave(seats: Mapping[str, Seat], ours: bool) -> None:
    """Kill actors, also those that hang, and end the connection where it is ours."""
    if ray.is_initialized():
        for actor in {id(seat.actor): seat.actor for seat in seats.values()}.values():
            with contextlib.suppress(Exception):  # it has ended already
                ray.kill(actor, no_restart=True)
    if ours:
        CONNECTION.close()


def _read_environment() -> None:
    """Make Ray read the environment again, which it does once, on import."""
    with contextlib.suppress(ImportError, AttributeError):
        constants: Any = importlib.import_module("ray._private.ray_constants")
        constants.ENABLE_RAY_CLUSTER = constants.env_bool(
            constants.ENABLE_RAY_CLUSTERS_ENV_VAR, not constants.IS_WINDOWS_OR_OSX
        )
        raylet: Any = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def _why_not(address: str | None, error: BaseException) -> str:
    if address is None:
        return f"Ray did not start on this machine: {_first_line(error)}"
    cause: BaseException | None = error
    while cause is not None:
        if "uthentication" in str(cause) or "AuthToken" in str(cause):
            return (
                f"the Ray cluster at {address} refused this process: the token is missing or "
                "wrong. Give engine_options={'token': FILE}, or set RAY_AUTH_MODE=token and "
                "RAY_AUTH_TOKEN_PATH=FILE"
            )
        cause = cause.__cause__ or cause.__context__
    return (
        f"cannot connect to the Ray cluster at {address} ({_first_line(error)}): is this machine "
        "one of its nodes?"
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
