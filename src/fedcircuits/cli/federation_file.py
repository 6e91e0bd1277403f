"""Federation files: TOML with the clients and the settings of a run.

Every setting of `RunSettings` may stand at the top of the file under its own name; mappings (kinds,
options, engine_options) are tables. Types are those of the dataclass, so a setting that is added
there is read here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedcircuits.errors import FederationError, unknown_name

PORT = 8002
# Options of engines that are files or folders: relative to the federation file, as clients are.
PATHS = ("token", "tls", "folder")
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text",
         list: "a list", dict: "a table"}  # fmt: skip


@dataclass(frozen=True)
class FederationFile:
    """A federation file as it was read.

    Attributes:
        file: where it is.
        clients: name to data file; None where the client has its data on its own machine.
        settings: keyword arguments of `federate`, options of the rule among them.
        output: where the model goes; None where the file does not say.
        host: name or address under which clients reach the coordinator.
        port: the one that is open there.
        kits: folder of start-up kits.
    """

    file: Path
    clients: dict[str, Any]
    settings: dict[str, Any]
    output: Path | None
    host: str
    port: int
    kits: Path

    @property
    def names(self) -> list[str]:
        """Names of the clients, sorted."""
        return sorted(self.clients)

    def client_settings(self) -> dict[str, dict[str, Any]]:
        """Return what each client is sent about the run before the first message, by name."""
        from fedcircuits.api.settings import RunSettings

        run = RunSettings.from_keywords(**self.settings)
        return {
            name: {
                "learner": run.learner_of(name),
                "id": run.id,
                "kinds": run.kinds_with_label(),
                "missing_values": list(run.missing_values),
            }
            for name in self.names
        }


@dataclass(frozen=True)
class Coordinator:
    """The table [coordinator] of a federation file."""

    host: str = "localhost"
    port: int = PORT
    kits: str = "kits"


def read_federation(file: Path, needs_data: bool = True) -> FederationFile:
    """Return what a federation file says, paths made relative to its folder.

    Args:
        file: in TOML.
        needs_data: whether every client must have a data file; the clients of a federation over
            several machines read their own.
    """
    from fedcircuits.api.settings import RunSettings

    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FederationError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FederationError(f"{file} is not a TOML file: {error}") from None
    clients = found.pop("clients", None)
    place = Coordinator(
        **_checked(file, found.pop("coordinator", {}), Coordinator, "[coordinator]")
    )
    output = found.pop("output", None)
    settings = _checked(file, found, RunSettings, also=("clients", "coordinator", "output"))
    if not isinstance(clients, dict) or not clients:
        raise FederationError(f"{file}: name the clients: [clients] with NAME = 'file.csv'")
    settings |= settings.pop("options", {})
    if "engine_options" in settings:
        settings["engine_options"] = {
            name: str(file.parent / value) if name in PATHS else value
            for name, value in settings["engine_options"].items()
        }
    rows, learners = {}, {}
    for name, entry in clients.items():
        entry = {"data": entry} if isinstance(entry, str) else entry
        if not isinstance(entry, dict) or not isinstance(
            entry.get("data", None if needs_data else ""), str
        ):
            raise FederationError(f"{file}: client {name!r} needs data = 'file.csv'")
        for key in entry:
            if key not in ("data", "learner"):
                owner = f"client {name!r}"
                raise FederationError(
                    f"{file}: {unknown_name('setting', key, ('data', 'learner'), owner)}"
                )
        rows[name] = file.parent / entry["data"] if "data" in entry else None
        if "learner" in entry:
            learners[name] = str(entry["learner"])
    if learners:
        default = settings.get("learner", RunSettings.learner)
        settings["learner"] = {name: learners.get(name, default) for name in rows}
    return FederationFile(
        file,
        rows,
        settings,
        None if output is None else file.parent / str(output),
        place.host,
        place.port,
        file.parent / place.kits,
    )


def read_parties(file: Path, kits: Path | None = None) -> FederationFile:
    """Return the federation file of a coordinator, whose clients read their own data.

    Args:
        file: in TOML, without data files.
        kits: folder of the start-up kits; by default the one that the file names.
    """
    found = read_federation(file, needs_data=False)
    if "id_secret" in found.settings:
        raise FederationError(
            f"{file}: id_secret is for the parties alone, who give it to `fedcircuits silo` in a "
            "file (--id-secret-file): take it out of the coordinator's file"
        )
    settings = {name: value for name, value in found.settings.items() if name != "engine"}
    return replace(found, settings=settings, kits=kits or found.kits)


def _checked(
    file: Path, found: Any, kind: type[Any], table: str = "", also: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the entries of a table of the file whose names and types are those of a dataclass."""
    if not isinstance(found, dict):
        raise FederationError(f"{file}: {table} is a table, found {found!r}")
    types = {name: _toml_types(hint) for name, hint in get_type_hints(kind).items()}
    known = {name: accepted for name, accepted in types.items() if accepted}
    for name, value in found.items():
        if name not in known:
            unknown = unknown_name("setting", name, sorted([*known, *also]), table)
            raise FederationError(f"{file}: {unknown}")
        # bool is an int to Python, and not to whoever writes the file
        if not isinstance(value, known[name]) or (
            isinstance(value, bool) and bool not in known[name]
        ):
            expected = " or ".join(WORDS[one] for one in known[name] if one in WORDS)
            raise FederationError(
                f"{file}: {name}{f' of {table}' if table else ''} has a value of the wrong type: "
                f"expected {expected}, found {value!r}"
            )
    return dict(found)


def _toml_types(hint: Any) -> tuple[type, ...]:
    """Return the TOML types that a setting's type accepts; none where a file cannot say it."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        found = [one for part in get_args(hint) for one in _toml_types(part)]
        return tuple(dict.fromkeys(found))
    if origin is Literal:
        return tuple(dict.fromkeys(type(value) for value in get_args(hint)))
    if origin is not None and issubclass(origin, Mapping):
        return (dict,)
    if origin is not None and issubclass(origin, Sequence):
        return (list,)
    if hint is float:
        return (float, int)
    return (hint,) if hint in (bool, int, str) else ()
